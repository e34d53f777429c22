"""Any checkpoint of BERT into any other format: Google's, Hugging Face's, KerasHub's.

    python convert_checkpoint.py --input=uncased_L-12_H-768_A-12 --format=hugging_face --output=bert-base
    python convert_checkpoint.py --input=bert-base --inspect

The input may be a prefix or directory of Google's, a directory of Hugging Face or KerasHub, hf://owner/name,
kaggle://…, or the output directory of one of our scripts.
"""

import dataclasses
from pathlib import Path

import numpy as np
from absl import flags

import command_line
from flag_help import heading

# Two programs may round differently, and half precision rounds the weights, but not by more.
_LARGEST_ROUNDING = {"float32": 1e-4, "float16": 5e-2}

command_line.offer_dry_run()

heading("Required")
_INPUT = flags.DEFINE_string("input", None, "Read this checkpoint, which may be in any format.")
_OUTPUT = flags.DEFINE_string(
    "output", None, "Write to this directory, which is made where it does not exist. Not needed with --inspect."
)
_FORMAT = flags.DEFINE_enum(
    "format", None, ["google", "hugging_face", "keras_hub"], "Write in this format. Not needed with --inspect."
)

heading("Output")
_ARCHITECTURE = flags.DEFINE_string(
    "architecture",
    None,
    "Write for this class of Hugging Face, e.g. BertForTokenClassification; by default for one with the heads of the "
    "input.",
)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "float16"], "Write weights in this precision; float16 is only for hugging_face."
)
_VERIFY = flags.DEFINE_bool("verify", True, "Whether to run input and output on the same random tokens and compare.")
_INSPECT = flags.DEFINE_bool("inspect", False, "Whether to print what the input holds and can do, and write nothing.")

heading("Model")
_BERT_CONFIG_FILE = flags.DEFINE_string(
    "bert_config_file", None, "Read the config here, where none lies beside the input."
)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "Read the vocabulary here, where none lies beside the input.")
_DO_LOWER_CASE = flags.DEFINE_bool(
    "do_lower_case", None, "Whether the model wants text in lower case. By default the input tells."
)
_EXTRA_TOKENS = flags.DEFINE_string(
    "extra_tokens",
    None,
    "Add the tokens of this file, one a line. They take the places of [unusedN] pieces, and then grow the embedding; "
    "the new vocab.txt is written with the rest.",
)
_MAX_POSITION_EMBEDDINGS = flags.DEFINE_integer(
    "max_position_embeddings",
    None,
    "Give the output this many positions. Fewer than the input has are its first ones; more are repeated from the "
    "first on, for training on longer sequences to start from.",
    lower_bound=1,
)
_DROP_UNKNOWN = flags.DEFINE_bool("drop_unknown", False, "Whether to leave out variables that no BERT has.")


def validate_flags() -> None:
    if not _INPUT.value:
        raise ValueError("--input is missing: the checkpoint to read.")
    if _INSPECT.value:
        return
    for flag in (_OUTPUT, _FORMAT):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing. To see what the input holds, use --inspect.")
    if _DTYPE.value == "float16" and _FORMAT.value != "hugging_face":
        raise ValueError("--dtype=float16 is for --format=hugging_face: the other formats hold float32.")
    output = Path(_OUTPUT.value)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"--output={output} is there and not empty: old files in it could be taken for new ones.")
    command_line.check_output_dir(_OUTPUT.name, _OUTPUT.value)


def main() -> None:
    validate_flags()
    command_line.load_tensorflow()  # late, so that --help does not wait for it
    from data.tokenization import load_vocab, pieces_by_id
    from data.vocabulary_checks import add_tokens, check_casing, check_size
    from modeling import conversion

    conversion.check_architecture(_ARCHITECTURE.value)
    source = read(_INPUT.value)
    vocab_file = _VOCAB_FILE.value or source.vocab_file
    vocab = load_vocab(vocab_file) if vocab_file else None
    if vocab:
        check_size(vocab, vocab_file, source.config.vocab_size)
        if _DO_LOWER_CASE.value is not None:
            check_casing(_DO_LOWER_CASE.value, _INPUT.value, vocab, vocab_file)
    if _INSPECT.value:
        print(conversion.describe(source), describe_vocabulary(vocab, vocab_file), sep="\n")
        return

    pieces = pieces_by_id(vocab) if vocab else None
    if _EXTRA_TOKENS.value:
        if not pieces:
            raise ValueError("--extra_tokens needs a vocabulary: name it by --vocab_file.")
        tokens = Path(_EXTRA_TOKENS.value).read_text(encoding="utf-8").split("\n")
        pieces = add_tokens(pieces, [token for token in map(str.strip, tokens) if token])
        source = conversion.grow(source, len(pieces), np.random.default_rng(0))
    if _MAX_POSITION_EMBEDDINGS.value:
        source = conversion.with_positions(source, _MAX_POSITION_EMBEDDINGS.value)
    source = without_unknown(source)
    if command_line.is_dry_run():
        print(conversion.describe(source))
        facts = {"output": f"{len(source.variables)} variables for {_FORMAT.value}, in {_OUTPUT.value}"}
        num_bytes = sum(value.nbytes for value in source.variables.values())
        command_line.end_dry_run(facts | command_line.weights_memory(num_bytes))
    conversion.write(
        source,
        _OUTPUT.value,
        _FORMAT.value,
        vocab=pieces,
        do_lower_case=casing(source, vocab),
        architecture=_ARCHITECTURE.value,
        dtype=_DTYPE.value,
    )
    print(f"Wrote {len(source.variables)} variables to {_OUTPUT.value}.")
    if _VERIFY.value:
        difference = conversion.largest_difference(source, _OUTPUT.value)
        print(f"Largest difference of outputs on random tokens and of heads: {difference:.1e}.")
        if difference > _LARGEST_ROUNDING[_DTYPE.value]:
            raise RuntimeError(f"{_OUTPUT.value} does not compute what {_INPUT.value} does. Do not use it.")


def read(path: str):
    """The checkpoint, with a config from beside it or from the flag."""
    from modeling.checkpoint import check_config, read_checkpoint
    from modeling.config import BertConfig

    checkpoint = read_checkpoint(path)
    if _BERT_CONFIG_FILE.value:
        checkpoint = dataclasses.replace(checkpoint, config=BertConfig.from_json_file(_BERT_CONFIG_FILE.value))
        check_config(checkpoint)
    if checkpoint.config is None:
        raise ValueError(f"There is no bert_config.json beside {checkpoint.source}: name it by --bert_config_file.")
    return checkpoint


def without_unknown(checkpoint):
    """The checkpoint without variables that no BERT has, if they may be dropped."""
    from modeling.conversion import unknown_variables

    unknown = unknown_variables(checkpoint)
    if unknown and not _DROP_UNKNOWN.value:
        raise ValueError(
            f"{checkpoint.source} holds what no BERT has: {', '.join(unknown)}. No other format has a place for it: "
            "leave it out with --drop_unknown."
        )
    kept = {name: value for name, value in checkpoint.variables.items() if name not in unknown}
    return dataclasses.replace(checkpoint, variables=kept)


def casing(source, vocab) -> bool | None:
    """What the flag says, or the files beside the input, or its name, or its vocabulary."""
    from data.vocabulary_checks import casing_of_name, casing_of_vocab

    for answer in (_DO_LOWER_CASE.value, source.do_lower_case, casing_of_name(_INPUT.value)):
        if answer is not None:
            return answer
    return casing_of_vocab(vocab) if vocab else None


def describe_vocabulary(vocab, vocab_file) -> str:
    from data.vocabulary_checks import KNOWN_SIZES, casing_of_vocab

    if not vocab:
        return "Vocabulary: none beside it."
    casing = {True: "uncased", False: "cased", None: "no Latin letters"}[casing_of_vocab(vocab)]
    return f"Vocabulary: {vocab_file}, {len(vocab)} pieces, {casing}; {KNOWN_SIZES.get(len(vocab), 'its own')}."


if __name__ == "__main__":
    command_line.run(main)
