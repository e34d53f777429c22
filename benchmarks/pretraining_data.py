"""Cost of pre-training records: ours beside the plain way of the original, one worker beside two, and a whole corpus.

    python -m benchmarks.pretraining_data --corpus='books/train-*.txt' --vocab_file=vocab.txt

Every measurement is a process of its own; memory is its largest resident size less what it had after the imports;
for workers it is the whole of theirs.
"""

import glob
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import flags

import command_line
from data.pretraining import InstanceOptions
from data.shards import Job, jobs_by_file, run_job, run_jobs

_CORPUS = flags.DEFINE_string("corpus", None, "Texts, as a glob. The first is measured alone.", required=True)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.", required=True)
_DUPE_FACTOR = flags.DEFINE_integer("dupe_factor", 5, "Passes over the text.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "How often to measure; the best counts.")
_WHOLE = flags.DEFINE_bool("whole", True, "Whether to build the whole corpus, too: sharded, and as one pool.")
_MEASURE = flags.DEFINE_string("measure", None, "Measure one of the ways in this process.")


def job(inputs: list[str], output: str) -> Job:
    options = InstanceOptions(dupe_factor=_DUPE_FACTOR.value)
    return Job(tuple(inputs), (output,), 12345, _VOCAB_FILE.value, True, options, overwrite=True)


def build_plainly(text: str, output: str) -> int:
    import tensorflow as tf

    from benchmarks import plain_pretraining
    from data.tokenization import load_vocab

    vocab, options = load_vocab(_VOCAB_FILE.value), InstanceOptions(dupe_factor=_DUPE_FACTOR.value)
    with open(text, "rb") as lines:
        instances = plain_pretraining.create_instances(lines, vocab, options, random.Random(12345))
    with tf.io.TFRecordWriter(output) as writer:
        for instance in instances:
            writer.write(plain_pretraining.serialize(instance, vocab, options))
    return len(instances)


def build_shards(texts: list[str], output: str, num_workers: int) -> int:
    return sum(result.num_records for result in run_jobs(jobs_by_file(job(texts, output), output), num_workers))


def measure(way: str, output: str) -> dict[str, float]:
    texts = sorted(glob.glob(_CORPUS.value))
    build = {
        "plain": lambda: build_plainly(texts[0], output),
        "ours": lambda: run_job(job(texts[:1], output)).num_records,
        "one worker": lambda: build_shards(texts[:8], output, num_workers=1),
        "two workers": lambda: build_shards(texts[:8], output, num_workers=2),
        "whole, sharded": lambda: build_shards(texts, output, num_workers=2),
        "whole, one pool": lambda: run_job(job(texts, output)).num_records,
    }[way]
    if way == "plain":
        import tensorflow  # noqa: F401  (its import is not what is measured)
    imports = memory()
    wall, cpu = time.perf_counter(), time.process_time()
    records = build()
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "megabytes": memory() - imports + memory_of_workers(2 if way in ("two workers", "whole, sharded") else 0),
        "records": records,
    }


def memory() -> float:
    """Largest resident size of this process so far, in MB. The count of a child starts at its parent's, so the parent
    has to stay small: it loads TensorFlow only after everything is measured."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_of_workers(count: int) -> float:
    """The largest worker's peak, times their number."""
    return count * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def run(way: str, output: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.pretraining_data", *sys.argv[1:], f"--measure={way}:{output}"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def same_records(file: str, other: str) -> bool:
    import tensorflow as tf

    pairs = zip(*(tf.data.TFRecordDataset(name).as_numpy_iterator() for name in (file, other)), strict=True)
    return all(tf.train.Example.FromString(a) == tf.train.Example.FromString(b) for a, b in pairs)


def show(way: str, result: dict[str, float]) -> None:
    print(
        f"{way:>16}: {result['records']:8.0f} records, {result['seconds']:6.1f} s, {result['cpu_seconds']:6.1f} s of "
        f"CPU in the main process, {result['megabytes']:6.0f} MB",
        flush=True,
    )


def main() -> None:
    if _MEASURE.value:
        print(json.dumps(measure(*_MEASURE.value.split(":", 1))))
        return
    with tempfile.TemporaryDirectory() as directory:
        files = {way: str(Path(directory) / f"{way}.tfrecord") for way in ("plain", "ours")}
        best = {}
        for _ in range(_REPEATS.value):
            for way, file in files.items():
                result = run(way, file)
                show(way, result)
                best[way] = min(best.get(way, result), result, key=lambda r: r["cpu_seconds"])
        ratio = best["plain"]["cpu_seconds"] / best["ours"]["cpu_seconds"]
        print(f"One core: {ratio:.1f} times as fast as the plain way, best of {_REPEATS.value} each.")
        workers = {}
        for _ in range(_REPEATS.value):
            for way in ("one worker", "two workers"):
                result = run(way, str(Path(directory) / f"{way}.tfrecord"))
                show(way, result)
                workers[way] = min(workers.get(way, 1e9), result["seconds"])
        print(f"Two workers: {workers['one worker'] / workers['two workers']:.2f} times as fast as one.")
        for way in ("whole, sharded", "whole, one pool") if _WHOLE.value else ():
            show(way, run(way, str(Path(directory) / f"{way}.tfrecord")))
        print("Same records:", same_records(*files.values()))


if __name__ == "__main__":
    command_line.run(main)
