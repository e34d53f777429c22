"""Our side of text: pre-training records, beside the original's way; and pieces of text, in Python and in the graph."""

import hashlib
import random
import tempfile
import time
from pathlib import Path

from benchmarks.peers.shapes import ids_fingerprint, read_lines
from data.pretraining import InstanceOptions
from data.shards import Job, run_job
from data.tokenization import FullTokenizer, load_vocab

_SEED = 12345


def records_fingerprint(file: str, options: InstanceOptions) -> str:
    """Of what is in the records, in their order; the bytes of a record depend on who wrote it."""
    import tensorflow as tf

    from data.records import RecordFormat

    parse = RecordFormat(options.max_seq_length, options.max_predictions_per_seq).parse
    digest, count = hashlib.sha256(), 0
    for batch in tf.data.TFRecordDataset(file).batch(1024).map(parse).as_numpy_iterator():
        count += len(batch["input_ids"])
        for name in sorted(batch):
            digest.update(batch[name].tobytes())
    return f"{count} records {digest.hexdigest()[:12]}"


def _measured(build, options: InstanceOptions):
    """Records that `build(file)` makes in a second of CPU of this process."""
    import tensorflow  # noqa: F401  (its import is not what is measured)

    def measure(count: int) -> dict:
        with tempfile.TemporaryDirectory() as directory:
            file = str(Path(directory) / "records.tfrecord")
            begin = time.process_time()
            num_records = build(file)
            seconds = time.process_time() - begin
            fingerprint = records_fingerprint(file, options)
        return {"value": num_records / seconds, "cpu_seconds": seconds, "fingerprint": fingerprint}

    return measure


def records(text: str, vocab_file: str, dupe_factor: int):
    """As create_pretraining_data.py makes them."""
    options = InstanceOptions(dupe_factor=dupe_factor)

    def build(file: str) -> int:
        return run_job(Job((text,), (file,), _SEED, vocab_file, True, options, overwrite=True)).num_records

    return _measured(build, options)


def plain_records(text: str, vocab_file: str, dupe_factor: int):
    """As the original makes them."""
    import tensorflow as tf

    from benchmarks import plain_pretraining

    options = InstanceOptions(dupe_factor=dupe_factor)

    def build(file: str) -> int:
        vocab = load_vocab(vocab_file)
        with open(text, "rb") as lines:
            instances = plain_pretraining.create_instances(lines, vocab, options, random.Random(_SEED))
        with tf.io.TFRecordWriter(file) as writer:
            for instance in instances:
                writer.write(plain_pretraining.serialize(instance, vocab, options))
        return len(instances)

    return _measured(build, options)


def pieces(text: str, vocab_file: str):
    """MB of text a second, by a tokenizer that has seen nothing before: each measurement has a new one."""
    lines = read_lines(text)
    megabytes = sum(len(line.encode()) for line in lines) / 1e6

    def measure(count: int) -> dict:
        tokenizer = FullTokenizer(vocab_file)
        begin = time.perf_counter()
        ids = [tokenizer.tokenize_to_ids(line) for line in lines]
        seconds = time.perf_counter() - begin
        return {"value": megabytes / seconds, "fingerprint": ids_fingerprint(ids)}

    return measure


def pieces_in_graph(text: str, vocab_file: str):
    """MB of text a second in the graph, on one thread."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from data.graph_tokenization import GraphTokenizer

    lines = read_lines(text)
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    batches = [tf.constant(lines[first : first + 1024]) for first in range(0, len(lines), 1024)]
    tokenizer = GraphTokenizer(FullTokenizer(vocab_file))
    tokenize = tf.function(tokenizer.tokenize, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    tokenize(batches[0])

    def measure(count: int) -> dict:
        begin = time.perf_counter()
        ragged = [tokenize(batch) for batch in batches]
        seconds = time.perf_counter() - begin
        ids = [row for batch in ragged for row in batch.to_list()]
        return {"value": megabytes / seconds, "fingerprint": ids_fingerprint(ids)}

    return measure
