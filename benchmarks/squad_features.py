"""Questions a second made into records: ours beside the plain way of the original, in one process each and in two.

    python -m benchmarks.squad_features --questions=devsplit-eval-v1.1.json --vocab_file=vocab.txt

On the same questions; the best of several runs of ours counts. What they make is compared, record for record.
"""

import tempfile
import time
from pathlib import Path

from absl import flags

import command_line
from data.squad import read_questions
from data.squad_features import WindowEncoder
from data.squad_records import WindowRecords
from data.tokenization import FullTokenizer, load_vocab

_QUESTIONS = flags.DEFINE_string("questions", None, "Questions as SQuAD's JSON.", required=True)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.", required=True)
_REPEATS = flags.DEFINE_integer("repeats", 3, "How often to measure ours; the plain way is measured once.")


def write_plainly(path: Path, questions, vocab) -> None:
    import tensorflow as tf

    from benchmarks import plain_squad

    def numbers(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    unique_id = 1_000_000_000
    with tf.io.TFRecordWriter(str(path)) as writer:
        for question in questions:
            for window in plain_squad.windows(question, vocab):
                names = ("input_ids", "input_mask", "segment_ids", "start_positions", "end_positions", "is_impossible")
                feature = {name: numbers(window[name]) for name in names} | {"unique_ids": numbers([unique_id])}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
                unique_id += 1


def is_same(path: Path, other: Path) -> bool:
    """Whether two files hold the same examples in the same order."""
    import tensorflow as tf

    for a, b in zip(tf.data.TFRecordDataset(str(path)), tf.data.TFRecordDataset(str(other)), strict=True):
        if tf.train.Example.FromString(a.numpy()) != tf.train.Example.FromString(b.numpy()):
            return False
    return True


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    import tensorflow  # noqa: F401  (its import is not what is measured)

    questions = read_questions(_QUESTIONS.value, True, False)
    vocab = load_vocab(_VOCAB_FILE.value)

    def write(path: Path, num_workers: int) -> None:
        # A new tokenizer each time: it remembers words that it has seen.
        WindowRecords.write(path, questions, WindowEncoder(FullTokenizer(vocab=vocab)), True, num_workers)

    with tempfile.TemporaryDirectory() as directory:
        plain, ours = Path(directory, "plain.tf_record"), Path(directory, "ours.tf_record")
        times = {"the original's way": [seconds(lambda: write_plainly(plain, questions, vocab))]}
        for _ in range(_REPEATS.value):
            for num_workers in (1, 2):
                took = seconds(lambda n=num_workers: write(ours, n))
                times.setdefault(f"ours, {num_workers} process(es)", []).append(took)
        same = is_same(plain, ours)
    slowest = min(times["the original's way"])
    for way, took in times.items():
        print(f"{way:>22}: {len(questions) / min(took):8.1f} questions/s, {slowest / min(took):6.1f} times")
    print(f"The records are {'the same' if same else 'NOT the same'}.")


if __name__ == "__main__":
    command_line.run(main)
