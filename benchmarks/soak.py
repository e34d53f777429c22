"""Whether anything grows: pre-training, evaluation and the Python classes over and over again in one process.

    python -m benchmarks.soak --minutes=30
    python -m benchmarks.soak --minutes=30 --new_models

One run of the training loop goes on and on. A round is twelve steps, three states, an evaluation, and questions to a
classifier and to a fill-mask model. With --new_models a round is a run of its own: a new model in a new directory,
twelve steps, two evaluations, one more from its checkpoint, and the questions.
After each round the process is measured: resident memory, file descriptors, threads. Each column of the end compares
the median of the second fifth of all rounds, when everything has been loaded and traced once, with that of the last.
"""

import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from absl import flags

import command_line

_MINUTES = flags.DEFINE_float("minutes", 30.0, "How long to go on.", lower_bound=0.01)
_NEW_MODELS = flags.DEFINE_bool("new_models", False, "Whether each round trains a model of its own.")
_WORDS = [
    a + b for a in ("ba", "de", "fi", "go", "lu", "na", "pe", "ro", "su", "ti") for b in ("n", "r", "s", "t", "k")
]
_LENGTH, _PREDICTIONS, _STEPS = 32, 4, 12


class Usage(NamedTuple):
    """What a process holds."""

    megabytes: float
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> "Usage":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
        )


class Soak:
    """All that lives longer than a round."""

    def __init__(self, directory: Path):
        from data.pretraining_input import PretrainingInput
        from data.sentence_features import SentenceEncoder
        from data.tokenization import FullTokenizer
        from modeling.config import BertConfig
        from modeling.models import PretrainingModel, SentenceModel
        from tasks.fill_mask import FillMask
        from tasks.sentence_classifier import SentenceClassifier
        from tasks.sentences import SentenceSettings

        self._directory = directory
        self._rng = random.Random(1)
        vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS])}
        self._config = BertConfig(
            vocab_size=len(vocab),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=_LENGTH,
            type_vocab_size=2,
        )
        self._input = PretrainingInput.open([_write_records(directory, self._rng)], _LENGTH, _PREDICTIONS)
        tokenizer = FullTokenizer(vocab=vocab, never_split=("[MASK]",))
        settings = SentenceSettings("single_label", ("no", "yes"), do_lower_case=True, max_seq_length=_LENGTH)
        self._classifier = SentenceClassifier(
            SentenceModel(self._config, 2), SentenceEncoder(tokenizer, _LENGTH), settings
        )
        self._fill_mask = FillMask(PretrainingModel(self._config), tokenizer)
        self._num_rounds = 0

    def go_on(self, is_over: Callable[[], bool]) -> list[Usage]:
        """One run, until it is over."""
        found: list[Usage] = []

        def after_evaluation() -> None:
            self._ask()
            found.append(Usage.now())
            if len(found) % 100 == 0:
                print(f"{len(found)} rounds: {found[-1]}", flush=True)
            if is_over():
                raise _Over

        with contextlib.suppress(_Over):
            self._train(str(self._directory / "run"), 10**9, _STEPS, after_evaluation)
        return found

    def round(self) -> Usage:
        """A run of its own."""
        output_dir = str(self._directory / f"round_{self._num_rounds}")
        self._num_rounds += 1
        self._train(output_dir, _STEPS, _STEPS // 2)
        self._ask()
        return Usage.now()

    def _ask(self) -> None:
        for _ in range(20):
            texts = [self._text() for _ in range(self._rng.randint(1, 40))]
            assert len(self._classifier.predict(texts)) == len(texts)
            assert len(self._fill_mask([f"[MASK] {text}" for text in texts])) == len(texts)

    def _text(self) -> str:
        return " ".join(self._rng.choices(_WORDS, k=self._rng.randint(1, _LENGTH - 3)))

    def _train(self, output_dir: str, num_steps: int, eval_every_steps: int, after_evaluation=lambda: None) -> None:
        import functools

        import tensorflow as tf

        from modeling.models import PretrainingModel
        from tasks.pretraining import PretrainingTask
        from training.evaluation import Evaluator, load_latest, write_results
        from training.loop import LoopOptions, train
        from training.optimizer import AdamWeightDecay

        strategy, task = tf.distribute.get_strategy(), PretrainingTask()
        model, optimizer = PretrainingModel(self._config, seed=1), AdamWeightDecay(1e-3)
        optimizer.build(model.trainable_variables)
        batches = functools.partial(self._input.evaluation_batches, 8)
        evaluator = Evaluator(strategy, model, task, batches, num_steps=4)

        def evaluate() -> dict[str, float]:
            figures = evaluator()
            after_evaluation()
            return figures

        options = LoopOptions(
            output_dir,
            num_steps,
            8,
            _LENGTH,
            seed=1,
            save_every_steps=4,
            log_every_steps=4,
            eval_every_steps=eval_every_steps,
        )
        batches = functools.partial(self._input.training_batches, 8, 1)
        train(strategy, model, task, optimizer, batches, options, {}, {}, evaluate=evaluate)
        write_results(output_dir, load_latest(model, output_dir), evaluator())


class _Over(Exception):
    """Ends a run that would not end by itself."""


def _write_records(directory: Path, rng: random.Random) -> str:
    from data.tfrecord import AtomicRecordWriter, ExampleEncoder

    path = directory / "soak.tfrecord"
    encoder = ExampleEncoder(5 + len(_WORDS))
    with AtomicRecordWriter(path) as writer:
        for _ in range(300):
            ids = [2, *(rng.randrange(5, 5 + len(_WORDS)) for _ in range(_LENGTH - 2)), 3]
            positions = sorted(rng.sample(range(1, _LENGTH - 1), _PREDICTIONS))
            writer.write(
                encoder.example(
                    encoder.numbers("input_ids", [4 if at in positions else id for at, id in enumerate(ids)]),
                    encoder.repeated("input_mask", (1, _LENGTH)),
                    encoder.repeated("segment_ids", (0, _LENGTH)),
                    encoder.repeated("next_sentence_labels", (rng.randrange(2), 1)),
                    encoder.numbers("masked_lm_positions", positions),
                    encoder.numbers("masked_lm_ids", [ids[at] for at in positions]),
                    encoder.ones("masked_lm_weights", _PREDICTIONS, 0),
                )
            )
    return str(path)


def soak(minutes: float) -> list[Usage]:
    """What the process held after each round."""
    from training.memory import keep_freed_memory

    keep_freed_memory()  # as the scripts do
    deadline = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as directory:
        loop = Soak(Path(directory))
        if not _NEW_MODELS.value:
            return loop.go_on(lambda: time.monotonic() > deadline)
        found: list[Usage] = []
        while time.monotonic() < deadline or len(found) < 10:
            found.append(loop.round())
            if len(found) % 10 == 0:
                print(f"{len(found)} rounds: {found[-1]}", flush=True)
    return found


def early_and_late(found: list[Usage]) -> tuple[Usage, Usage]:
    """Medians of the second and of the last fifth."""
    fifth = len(found) // 5
    parts = found[fifth : 2 * fifth], found[-fifth:]
    return tuple(Usage(*(statistics.median(column) for column in zip(*part, strict=True))) for part in parts)


def main() -> None:
    found = soak(_MINUTES.value)
    early, late = early_and_late(found)
    rounds = len(found) * 3 / 5  # between the middles of the two fifths
    a_round = f"{_STEPS} steps, {3 if _NEW_MODELS.value else 1} evaluation(s) and 40 questions"
    print(f"{len(found)} rounds of {a_round} in {_MINUTES.value:g} minutes")
    print("| | second fifth | last fifth | a round |\n|---|---|---|---|")
    for name, before, after in zip(Usage._fields, early, late, strict=True):
        print(f"| {name} | {before:.0f} | {after:.0f} | {(after - before) / rounds:+.3f} |")


if __name__ == "__main__":
    command_line.run(main)
