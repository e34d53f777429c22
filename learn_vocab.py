"""Learns a WordPiece vocabulary from text.

    python learn_vocab.py --input_file='books/*.txt,wiki/*.txt.gz' --output_file=vocab.txt --vocab_size=30522

The file has one piece a line: the special tokens ([PAD] first, so that its id is 0), [unused0] and so on if asked for,
characters, and then longer pieces, those learned first before the others. docs/vocabulary.md compares the learners.
"""

import logging
import os

from absl import flags

import command_line
from data import vocabulary, word_counts
from data.text_files import find_files
from flag_help import heading

command_line.offer_dry_run()

heading("Required")
_INPUT_FILE = flags.DEFINE_string(
    "input_file",
    None,
    "Learn from the text of these files: names or globs, with commas between them. The text is UTF-8, a sentence a "
    "line or in any other form; bytes that are not UTF-8 are left out. Files whose name ends in .gz are decompressed.",
)
_OUTPUT_FILE = flags.DEFINE_string(
    "output_file",
    None,
    "Write the vocabulary to this file. Its directory is made if there is none. The file appears when done.",
)

heading("Model")
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size",
    30522,
    "The vocabulary has this many lines, special tokens included. A small text may not have as many pieces; what was "
    "learned is printed at the end, and vocab_size in bert_config.json has to be at least that.",
    lower_bound=1,
)
_DO_LOWER_CASE = flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Whether to lower-case the text, for an uncased model. Use the vocabulary with the same value.",
)
_STRIP_ACCENTS = flags.DEFINE_bool(
    "strip_accents",
    None,
    "Whether to take accents off letters. If it is not set, --do_lower_case decides, as in the original.",
)
_SPECIAL_TOKENS = flags.DEFINE_list(
    "special_tokens",
    list(vocabulary.SPECIAL_TOKENS),
    "The vocabulary begins with these tokens. [PAD] has to be the first; tokens of your own may follow those of BERT.",
)
_NUM_UNUSED = flags.DEFINE_integer(
    "num_unused",
    0,
    "This many slots, [unused0], [unused1] and so on, follow the special tokens, to be given a meaning later without "
    "training anew. The released English vocabulary has 994 of them.",
    lower_bound=0,
)
_MAX_ALPHABET = flags.DEFINE_integer(
    "max_alphabet",
    6000,
    "Keep this many distinct characters, the most frequent ones. A word with any other character becomes [UNK]. The "
    "default is enough for Chinese; lower it if rare characters of foreign scripts take room from the pieces.",
    lower_bound=1,
)

heading("Training")
_LEARNER = flags.DEFINE_enum(
    "learner",
    "wordpiece",
    ["wordpiece", "tensorflow_text"],
    "Learn in this way: 'wordpiece' merges characters into longer and longer pieces until the size is reached exactly; "
    "'tensorflow_text' is the learner of tensorflow-text; it takes longer and stops at a size some 5 % below or less.",
)
_WORDPIECE_SCORE = flags.DEFINE_enum(
    "wordpiece_score",
    "likelihood",
    vocabulary.SCORES,
    "The wordpiece learner merges next the pair of pieces (a, b) that raises the likelihood of the text most, or the "
    "one with the highest ratio, which is count(ab) / (count(a) * count(b)). The latter prefers rare pairs, cuts text "
    "into more pieces, and wants a --min_pair_count of 100 or so.",
)
_MIN_COUNT = flags.DEFINE_integer(
    "min_count", 2, "Nothing but their characters is learned from words that are seen fewer times.", lower_bound=1
)
_MIN_PAIR_COUNT = flags.DEFINE_integer(
    "min_pair_count", 2, "The wordpiece learner never merges pairs that are seen fewer times.", lower_bound=1
)
_MIN_GAIN = flags.DEFINE_float(
    "min_gain",
    0.0,
    "The wordpiece learner stops before the size is reached if the best merge raises the log-likelihood of the whole "
    "text, in nats, by no more than this. Any number will do; below 0, it also makes merges that lower it.",
)
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers", 1, "This many processes count words. The vocabulary does not depend on it.", lower_bound=1
)


def validate_flags() -> None:
    """Refuses what cannot work, before any text is read."""
    for flag in (_INPUT_FILE, _OUTPUT_FILE):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    command_line.check_output_file(_OUTPUT_FILE.name, _OUTPUT_FILE.value)
    if not any(map(os.path.getsize, find_files(_INPUT_FILE.value, flag="input_file"))):
        raise ValueError(f"All files of --input_file={_INPUT_FILE.value} are empty. Name files with text in them.")
    reserved = vocabulary.reserved_tokens(_SPECIAL_TOKENS.value, _NUM_UNUSED.value)
    if _VOCAB_SIZE.value <= len(reserved):
        raise ValueError(
            f"--vocab_size={_VOCAB_SIZE.value} leaves no room beside {len(reserved)} special tokens and unused slots. "
            "Raise it, or lower --num_unused."
        )


def main() -> None:
    validate_flags()
    # A file that two globs match is one file.
    files = sorted(set(find_files(_INPUT_FILE.value, flag="input_file")))
    if command_line.is_dry_run():
        megabytes = sum(map(os.path.getsize, files)) / 1e6
        command_line.end_dry_run(
            {
                "input": f"{len(files)} files, {megabytes:.1f} MB",
                "output": _OUTPUT_FILE.value,
                # Measured: docs/vocabulary.md. How many there are, only counting tells.
                "memory": "about 200 bytes for each distinct word, beside Python's own",
            }
        )
    strip_accents = _DO_LOWER_CASE.value if _STRIP_ACCENTS.value is None else _STRIP_ACCENTS.value
    counted = word_counts.count_words(files, _DO_LOWER_CASE.value, strip_accents, _NUM_WORKERS.value, True)
    lexicon = vocabulary.make_lexicon(counted, _MIN_COUNT.value, _MAX_ALPHABET.value)
    logging.info("%d words, %d of them distinct.", counted.total(), len(counted))
    logging.info("%d were seen --min_count=%d times or more.", len(lexicon.words), _MIN_COUNT.value)
    pieces = learn(lexicon, vocabulary.reserved_tokens(_SPECIAL_TOKENS.value, _NUM_UNUSED.value))
    vocabulary.write_vocab(_OUTPUT_FILE.value, pieces)
    logging.info("Wrote %d pieces to %s.", len(pieces), _OUTPUT_FILE.value)
    if len(pieces) < _VOCAB_SIZE.value:
        logging.info("--vocab_size was %d: write %d into bert_config.json.", _VOCAB_SIZE.value, len(pieces))


def learn(lexicon: vocabulary.Lexicon, reserved: list[str]) -> list[str]:
    if _LEARNER.value == "tensorflow_text":
        logging.info("tensorflow-text tries one threshold of counts after the other, for minutes, without a report.")
        return vocabulary.learn_tensorflow_text(lexicon, _VOCAB_SIZE.value, reserved)
    score, min_pair_count, min_gain = _WORDPIECE_SCORE.value, _MIN_PAIR_COUNT.value, _MIN_GAIN.value
    return vocabulary.learn_wordpiece(lexicon, _VOCAB_SIZE.value, reserved, score, min_pair_count, min_gain, True)


if __name__ == "__main__":
    command_line.run(main)
