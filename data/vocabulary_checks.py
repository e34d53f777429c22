"""Whether a vocabulary, a model and the flags belong together: asked before training starts, not answered by a NaN."""

import logging
import re
from collections.abc import Mapping, Sequence

from data.metadata import LARGEST_PADDING

# What a vocabulary of this size usually is, among the models that were released.
KNOWN_SIZES = {
    30522: "English, uncased",
    28996: "English, cased",
    21128: "Chinese",
    119547: "104 languages, cased (multilingual)",
    105879: "102 languages, uncased (multilingual)",
}

# Released models that lower-case without saying "uncased" in their name.
_UNCASED_NAMES = re.compile(r"(chinese_L-12_H-768_A-12|multilingual_L-12_H-768_A-12|bert-base-chinese)")


def check_size(vocab: Mapping[str, int], vocab_file: str, vocab_size: int) -> None:
    """Raises where ids of the vocabulary and rows of the embedding table do not fit together."""
    pieces = max(vocab.values()) + 1
    if pieces > vocab_size or vocab_size - pieces > LARGEST_PADDING:
        raise ValueError(
            f"{vocab_file} has {pieces} pieces, but the model has vocab_size {vocab_size}. Its ids would stand for "
            "other words, or for none: use the vocab.txt that belongs to the model."
        )


def casing_of_name(path: str) -> bool | None:
    """Whether a released model lower-cases its text, by the name in its path; None where the name does not tell."""
    for part in reversed(path.split("/")):
        if _UNCASED_NAMES.search(part) or re.search(r"(?<![a-z])uncased(?![a-z])", part):
            return True
        if re.search(r"(?<![a-z])cased(?![a-z])", part):
            return False
    return None


def casing_of_vocab(vocab: Mapping[str, int]) -> bool | None:
    """Whether a vocabulary is one of lower-cased text; None where it has no Latin letters to tell by."""
    words = [token for token in vocab if not re.fullmatch(r"[\[<].*[\]>]", token) and re.search("[A-Za-z]", token)]
    return not any(re.search("[A-Z]", word) for word in words) if words else None


def check_casing(do_lower_case: bool, path: str, vocab: Mapping[str, int], vocab_file: str) -> None:
    """Raises where text would be cased otherwise than that which a released model has learned from.

    For other models there is only the vocabulary to tell by, and a warning: one without capitals may still be cased.
    """
    by_name, by_vocab = casing_of_name(path), casing_of_vocab(vocab)
    if by_name is not None and by_name != do_lower_case:
        raise ValueError(
            f"--do_lower_case is {do_lower_case}, but {path} is {'an uncased' if by_name else 'a cased'} model by its "
            f"name. Its words would not be found in its vocabulary: use --do_lower_case={by_name}."
        )
    if by_name is None and by_vocab is not None and by_vocab != do_lower_case:
        logging.getLogger(__name__).warning(
            "--do_lower_case is %s, but the pieces of %s look otherwise: many words will be [UNK].",
            do_lower_case,
            vocab_file,
        )


def add_tokens(vocab: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """A vocabulary with further tokens: in the place of `[unusedN]` slots first, then at the end.

    Raises:
        ValueError: a token is empty, has white space in it, or is given twice. One that is there is passed over.
    """
    for number, token in enumerate(tokens, 1):
        if not token or token.split() != [token]:
            raise ValueError(f"Token {number}, {token!r}, is empty or has white space in it.")
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"Given twice: {', '.join(sorted({t for t in tokens if list(tokens).count(t) > 1}))}.")
    grown, known = list(vocab), set(vocab)
    slots = [index for index, token in enumerate(grown) if re.fullmatch(r"\[unused_?\w*\]", token)]
    for token in (token for token in tokens if token not in known):
        if slots:
            grown[slots.pop(0)] = token
        else:
            grown.append(token)
    return grown
