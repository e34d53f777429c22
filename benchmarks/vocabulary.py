"""Vocabularies of several learners, from the same text and applied by the same tokenizer.

    python -m benchmarks.vocabulary --corpus='books/train-*.txt' --heldout=books/heldout.txt

For each size and learner: pieces a word and unknown words in the held-out text, and the time and the peak memory from
text files to vocabulary. Every learner has a process of its own and one core. Its peak is the largest resident size
the system saw of it, Python and imports included. Time is processor time, so that other work on the machine does not
count; alone on its core a learner takes as long by the clock. Hugging Face's trainer needs `pip install tokenizers`.
"""

import glob
import json
import os
import resource
import subprocess
import sys
import time

from absl import flags

import command_line
from data import vocabulary, word_counts
from data.tokenization import UNKNOWN_TOKEN, FullTokenizer, split_words

_CORPUS = flags.DEFINE_string("corpus", None, "Glob of text files to learn from.", required=True)
_HELDOUT = flags.DEFINE_string("heldout", None, "Text file to apply the vocabularies to.", required=True)
_VOCAB_SIZES = flags.DEFINE_list("vocab_sizes", ["8000", "30000"], "Sizes to ask for.")
_MIN_COUNT = flags.DEFINE_integer(
    "min_count", 2, "Words seen fewer times are not learned from, nor rarer pairs merged."
)
_MAX_ALPHABET = flags.DEFINE_integer("max_alphabet", 6000, "Distinct characters that are kept.")
_LEARNERS = flags.DEFINE_list(
    "learners",
    ["likelihood", "ratio", "ratio_100", "tensorflow_text", "hugging_face"],
    "Learners to compare. ratio_100 is the ratio with a --min_pair_count of 100.",
)
_MEASURE = flags.DEFINE_string("measure", None, "Measure one learner in this process.")


def learn_ours(name: str, files: list[str], vocab_size: int) -> list[str]:
    counted = word_counts.count_words(files, do_lower_case=True, strip_accents=True)
    lexicon = vocabulary.make_lexicon(counted, _MIN_COUNT.value, _MAX_ALPHABET.value)
    reserved = vocabulary.reserved_tokens()
    if name == "tensorflow_text":
        return vocabulary.learn_tensorflow_text(lexicon, vocab_size, reserved)
    score, _, min_pair_count = name.partition("_")
    return vocabulary.learn_wordpiece(lexicon, vocab_size, reserved, score, int(min_pair_count or _MIN_COUNT.value))


def learn_hugging_face(files: list[str], vocab_size: int) -> list[str]:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    limits = {"min_frequency": _MIN_COUNT.value, "limit_alphabet": _MAX_ALPHABET.value}
    tokenizer.train(files, vocab_size, **limits, show_progress=False)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.get)


def measure(name: str, vocab_size: int) -> dict[str, float]:
    """Learns a vocabulary, says what that cost, and applies it to the held-out text."""
    files = sorted(glob.glob(_CORPUS.value))
    start = time.process_time()
    pieces = learn_hugging_face(files, vocab_size) if name == "hugging_face" else learn_ours(name, files, vocab_size)
    result = {
        "size": len(pieces),
        "seconds": time.process_time() - start,
        # Before anything is tokenized: what follows is no part of learning.
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    tokenizer = FullTokenizer(vocab={piece: index for index, piece in enumerate(pieces)})
    words = tokens = unknown = 0
    with open(_HELDOUT.value, encoding="utf-8", errors="ignore") as file:
        for line in file:
            words += len(split_words(line, do_lower_case=True, strip_accents=True))
            line_tokens = tokenizer.tokenize(line)
            tokens += len(line_tokens)
            unknown += line_tokens.count(UNKNOWN_TOKEN)
    return result | {"pieces_per_word": tokens / words, "unknown_rate": unknown / words}


def measure_in_a_process(name: str, vocab_size: str) -> dict[str, float]:
    # This process stays small: a child's peak counts from the size of its parent.
    command = [sys.executable, "-m", "benchmarks.vocabulary", *sys.argv[1:], f"--measure={name}"]
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    output = subprocess.run(
        [*command, f"--vocab_sizes={vocab_size}"], stdout=subprocess.PIPE, env=environment, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    if not glob.glob(_CORPUS.value):
        raise ValueError(f"--corpus: no file matches {_CORPUS.value!r}. Check the path, and quote globs in the shell.")
    if _MEASURE.value:
        print(json.dumps(measure(_MEASURE.value, int(_VOCAB_SIZES.value[0]))))
        return
    print("| asked for | learner | pieces learned | pieces a word | unknown words | CPU seconds | peak MB |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for vocab_size in _VOCAB_SIZES.value:
        for name in _LEARNERS.value:
            result = measure_in_a_process(name, vocab_size)
            print(
                f"| {vocab_size} | {name} | {result['size']} | {result['pieces_per_word']:.4f} "
                f"| {result['unknown_rate']:.4%} | {result['seconds']:.0f} | {result['megabytes']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    command_line.run(main)
