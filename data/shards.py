"""Texts into files of pre-training records: one job or many, in one process, several, or on Apache Beam."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import tqdm

from data.metadata import (
    RECORDS_PER_BLOCK,
    RecordMetadata,
    check_flags,
    file_sha256,
    load_metadata,
    vocab_sha256,
)
from data.pretraining import Corpus, InstanceOptions, Instances, Pieces, create_instances
from data.text_files import read_lines
from data.tfrecord import AtomicRecordWriter, ExampleEncoder, Varints
from data.tokenization import FullTokenizer, load_vocab, vocab_size


@dataclasses.dataclass(frozen=True)
class Job:
    """Some texts that make one pool of documents, and the files that their records go to, in turn."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seed: int | str
    vocab_file: str
    do_lower_case: bool
    options: InstanceOptions
    overwrite: bool = False

    def flags(self) -> dict:
        """All that decides the content of the records, besides the texts and the vocabulary."""
        return dataclasses.asdict(self.options) | {"random_seed": self.seed, "do_lower_case": self.do_lower_case}


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a job."""

    num_records: int
    skipped: bool = False  # it was there already


def jobs_by_file(job: Job, output: str) -> list[Job]:
    """A job for each input, with files named after `output`: `out.tfrecord` -> `out-00000-of-00031.tfrecord`, …

    Each draws from (seed, name of its text), so that it does not matter who does it, when, and beside which others.
    """
    path = Path(output)
    stem, count = path.name.removesuffix(".tfrecord"), len(job.inputs)
    return [
        dataclasses.replace(
            job,
            inputs=(text,),
            outputs=(str(path.with_name(f"{stem}-{number:05d}-of-{count:05d}.tfrecord")),),
            seed=f"{job.seed}:{Path(text).name}",
        )
        for number, text in enumerate(job.inputs)
    ]


# How a job tells how far it is: (work, documents, instances) done since it last did. Work is measured in bytes of text,
# each counted once for reading it, once for each pass over it, and in part again for writing what came of the pass.
AddProgress = Callable[[float, float, int], None]


_WRITING = 0.5


def _passes(options: InstanceOptions) -> int:
    return 1 if options.masking == "dynamic" else options.dupe_factor


def _size(job: Job) -> int:
    return sum(Path(path).stat().st_size for path in job.inputs)


def _work(job: Job) -> float:
    return _size(job) * (1 + (1 + _WRITING) * _passes(job.options))


def _add_nothing(work: float, documents: float, instances: int) -> None:
    pass


def run_job(job: Job, add_progress: AddProgress = _add_nothing) -> Result:
    """Makes the records of one job, or finds that they are there.

    Raises:
        ValueError: an output is there that was made of something else; or there is not a single document.
    """
    inputs = tuple((Path(path).name, file_sha256(path)) for path in job.inputs)
    if not job.overwrite and _is_done(job, inputs):
        add_progress(_work(job), 0, 0)
        return Result(sum(load_metadata(path).num_records for path in job.outputs), skipped=True)

    tokenizer = FullTokenizer(job.vocab_file, do_lower_case=job.do_lower_case)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(AtomicRecordWriter(path)) for path in job.outputs]
        if not job.overwrite:
            _is_done(job, inputs)  # again: another process may have made something else of it, and now none can
        corpus = Corpus.from_lines(_read_with_progress(job.inputs, add_progress), tokenizer)
        if not corpus.num_documents:
            raise ValueError(f"There is no text in {', '.join(job.inputs)}.")
        return _write_records(job, inputs, tokenizer, corpus, writers, add_progress)


def _write_records(
    job: Job,
    inputs: tuple[tuple[str, str], ...],
    tokenizer: FullTokenizer,
    corpus: Corpus,
    writers: Sequence[AtomicRecordWriter],
    add_progress: AddProgress,
) -> Result:
    passes = _passes(job.options)
    size = _size(job)
    instances = create_instances(
        corpus,
        Pieces.of(tokenizer.vocab),
        job.options,
        random.Random(job.seed),
        on_document=lambda count: add_progress(size / corpus.num_documents, 1 / passes, count),
    )
    encoder = RecordEncoder(job.options, vocab_size(tokenizer.vocab))
    for number, record in enumerate(encoder.records(instances)):
        writers[number % len(writers)].write(record)
        if number % 1024 == 0:
            add_progress(1024 * _WRITING * passes * size / len(instances), 0, 0)
    for writer in writers:
        writer.sync()  # old records are let go when there is room for the new ones
    # Metadata goes first: without records it is nothing, but records without it would be taken for a stranger's.
    for number, writer in enumerate(writers):
        writer.path.unlink(missing_ok=True)
        RecordMetadata(
            num_records=len(writer.offsets),
            num_bytes=writer.num_bytes,
            block_offsets=tuple(writer.offsets[::RECORDS_PER_BLOCK]),
            vocab_size=vocab_size(tokenizer.vocab),
            vocab_sha256=vocab_sha256(tokenizer.vocab),
            flags=job.flags(),
            inputs=inputs,
            shard=(number, len(writers)),
            num_documents=corpus.num_documents,
            num_sentences=corpus.num_sentences,
            num_tokens=len(corpus.tokens),
        ).save(writer.path)
    return Result(len(instances))


def _is_done(job: Job, inputs: tuple[tuple[str, str], ...]) -> bool:
    """Whether all outputs are there and whole; raises where one was made of something else."""
    done = []
    for number, output in enumerate(job.outputs):
        if not Path(output).exists():
            done.append(False)
            continue
        metadata = load_metadata(output)
        if metadata is None:
            raise ValueError(f"{output} is there already, and nothing tells what it is. Move it, or set --overwrite.")
        try:
            check_flags(output, metadata, job.flags())
        except ValueError as error:
            raise ValueError(f"{error} Set --overwrite to replace it, or name another --output_file.") from error
        vocab = load_vocab(job.vocab_file)
        differing = [
            what
            for what, differs in (
                ("other text", metadata.inputs != inputs),
                ("another vocabulary", metadata.vocab_sha256 != vocab_sha256(vocab)),
                ("the same text for another list of files", metadata.shard != (number, len(job.outputs))),
            )
            if differs
        ]
        if differing:
            what = " and ".join(differing)
            raise ValueError(
                f"{output} is there already, made from {what}. Set --overwrite to replace it, or name another "
                "--output_file."
            )
        done.append(Path(output).stat().st_size == metadata.num_bytes)
    return all(done)


def _read_with_progress(paths: Iterable[str], add_progress: AddProgress) -> Iterator[bytes]:
    for path in paths:
        pending = 0
        for line in read_lines(path):
            yield line
            pending += len(line)
            if pending > 1 << 16:
                add_progress(pending, 0, 0)
                pending = 0
        add_progress(pending, 0, 0)


class RecordEncoder:
    """Instances into serialized tf.Examples with the features of the original."""

    def __init__(self, options: InstanceOptions, num_ids: int):
        self._options = options
        self._encoder = ExampleEncoder(max_number=0)
        self._varints = Varints(max(num_ids, options.max_seq_length))
        # Most features follow from a length or two, and come again and again.
        self._shape_features = functools.lru_cache(1 << 14)(self._encode_shape)
        self._weights = functools.cache(self._encode_weights)

    def records(self, instances: Instances) -> Iterator[bytes]:
        """The records of all instances, in their order."""
        for block in instances.blocks():
            varints, places = self._varints(block.numbers)
            parts = [
                block.b_starts,
                block.is_random_next,
                block.positions - block.tokens,
                block.ends - block.labels,
                *(places[starts] for starts in (block.tokens, block.positions, block.labels, block.ends)),
            ]
            for part in zip(*(part.tolist() for part in parts), strict=True):
                yield self._record(varints, *part)

    def _record(self, varints: bytes, b_start, is_random_next, length, count, tokens, positions, labels, end) -> bytes:
        """One record of `length` tokens and `count` predictions; the last four are places in `varints`."""
        encoder = self._encoder
        features = [
            encoder.packed("input_ids", varints[tokens:positions], self._options.max_seq_length - length),
            self._shape_features(length, b_start, is_random_next),
        ]
        if self._options.masking == "static":
            unused = self._options.max_predictions_per_seq - count
            features += [
                encoder.packed("masked_lm_positions", varints[positions:labels], unused),
                encoder.packed("masked_lm_ids", varints[labels:end], unused),
                self._weights(count),
            ]
        return encoder.example(*features)

    def _encode_shape(self, length: int, b_start: int, is_random_next: int) -> bytes:
        encoder, padding = self._encoder, self._options.max_seq_length - length
        return (
            encoder.repeated("input_mask", (1, length), (0, padding))
            + encoder.repeated("segment_ids", (0, b_start), (1, length - b_start), (0, padding))
            + encoder.repeated("next_sentence_labels", (is_random_next, 1))
        )

    def _encode_weights(self, count: int) -> bytes:
        return self._encoder.ones("masked_lm_weights", count, self._options.max_predictions_per_seq - count)


def run_jobs(jobs: Sequence[Job], num_workers: int = 1) -> list[Result]:
    """Runs all jobs and shows how far they are. One that fails is named, and does not stop the others.

    Raises:
        RuntimeError: some jobs failed. What the others made is there, and is not made again.
    """
    work = {job: _work(job) for job in jobs}
    counters = multiprocessing.get_context("spawn").Array("d", 3)  # work, documents, instances
    with _progress_bar(counters, sum(work.values())) as update:
        largest_first = sorted(jobs, key=work.__getitem__, reverse=True)
        run = _run_here if num_workers == 1 else _run_in_processes
        outcomes = run(largest_first, num_workers, counters, update)
    failed = {job.inputs[0]: outcome for job, outcome in outcomes.items() if isinstance(outcome, Exception)}
    if failed:
        if len(jobs) == 1:
            raise next(iter(failed.values()))
        reasons = "\n".join(f"  {name}: {error}" for name, error in sorted(failed.items()))
        raise RuntimeError(f"{len(failed)} of {len(jobs)} texts failed; the rest is done and is kept:\n{reasons}")
    return [outcomes[job] for job in jobs]


def _run_here(jobs: Sequence[Job], num_workers: int, counters, update) -> dict[Job, Result | Exception]:
    add = _counting(counters)

    def add_and_show(work: float, documents: float, instances: int) -> None:
        add(work, documents, instances)
        update()

    outcomes: dict[Job, Result | Exception] = {}
    for job in jobs:
        try:
            outcomes[job] = run_job(job, add_and_show)
        except Exception as error:
            outcomes[job] = error
    return outcomes


def _run_in_processes(jobs: Sequence[Job], num_workers: int, counters, update) -> dict[Job, Result | Exception]:
    # Spawned, not forked: a fork of a process that has imported TensorFlow may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_remember_counters, initargs=(counters,)
    ) as pool:
        futures = {pool.submit(_run_in_worker, job): job for job in jobs}
        waiting = set(futures)
        while waiting:
            _, waiting = concurrent.futures.wait(waiting, timeout=0.2)
            update()
    return {job: future.exception() or future.result() for future, job in futures.items()}


def _remember_counters(counters) -> None:
    global _worker_counters
    _worker_counters = counters


def _run_in_worker(job: Job) -> Result:
    return run_job(job, _counting(_worker_counters))


def _counting(counters) -> AddProgress:
    def add(work: float, documents: float, instances: int) -> None:
        with counters.get_lock():
            counters[0] += work
            counters[1] += documents
            counters[2] += instances

    return add


@contextlib.contextmanager
def _progress_bar(counters, total: float) -> Iterator[Callable[[], None]]:
    start = time.monotonic()
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, desc="Building records") as bar:
        shown = 0.0

        def update() -> None:
            nonlocal shown
            if time.monotonic() - shown < 0.2:
                return
            shown = time.monotonic()
            work, documents, instances = counters[:]
            seconds = max(time.monotonic() - start, 1e-3)
            rates = f"{documents / seconds:.0f} documents/s, {instances / seconds:.0f} instances/s"
            bar.set_postfix_str(rates, refresh=False)
            bar.update(min(work, total) - bar.n)

        yield update
        bar.update(total - bar.n)


def run_on_beam(jobs: Sequence[Job], runner: str, options: Sequence[str] = ()) -> None:
    """Runs the jobs as an Apache Beam pipeline. Texts, vocabulary and outputs must be within reach of its workers."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions

    pipeline_options = PipelineOptions([f"--runner={runner}", *options])
    pipeline_options.view_as(SetupOptions).save_main_session = False
    with beam.Pipeline(options=pipeline_options) as pipeline:
        (pipeline | "Jobs" >> beam.Create(list(jobs)) | "Spread" >> beam.Reshuffle() | "Build" >> beam.Map(_run_named))


def _run_named(job: Job) -> int:
    try:
        return run_job(job).num_records
    except Exception as error:
        raise RuntimeError(f"{job.inputs[0]}: {error}") from error
