"""The life of a run: restore or start, train, report, evaluate, save, and stop when told to."""

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from modeling.checkpoint import save_checkpoint
from modeling.google import CHECKPOINT_NAME
from training.bad_steps import BadSteps, save_batch
from training.best import BestWeights, Evaluations
from training.loss_scale import DynamicLossScale
from training.reports import Reports
from training.state import HeldDirectory, RunRecord, TrainState, check_no_model, locked, variables_of, write_text
from training.step import Task, TrainStep, distributed
from training.stopping import RunAgain, StopSignals
from training.strategy import is_chief
from training.workers import is_multi_worker, lost_worker_means_run_again, sum_over_replicas

_SECONDS_BETWEEN_LOOKS = 1.0


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How a run goes on. Of these, `seed` and (by way of dropout) `parts` decide its numbers.

    `batch_size` and `seq_length` only count for speeds; they are means where batches differ.
    """

    output_dir: str
    num_train_steps: int
    batch_size: float
    seq_length: float
    seed: int
    parts: int = 1
    jit_compile: bool = False
    steps_per_call: int = 1  # steps on the device before Python hears of them
    save_every_steps: int = 1000
    keep_states: int = 5
    log_every_steps: int = 100
    eval_every_steps: int = 0  # 0: never
    keep_best_metric: str | None = None  # end with the weights that were best by this figure, not with the last ones
    patience: int = 0  # evaluations without a new best before the run ends; 0: it goes on
    max_bad_steps: int = 0  # steps with a loss or gradients that are not finite to leave out before the run ends
    default_flags: frozenset[str] = frozenset()  # those of the flags of the run that have their default


class Trained(NamedTuple):
    """How a run ended: the step whose weights the model has now, and what was measured there, if anything was."""

    step: int
    figures: dict[str, float] | None


def check_batch_size(strategy: tf.distribute.Strategy, batch_size: int, parts: int, flag: str) -> None:
    """Raises where a batch cannot be shared evenly."""
    shares = strategy.num_replicas_in_sync * parts
    if batch_size % shares:
        raise ValueError(
            f"--{flag}={batch_size} cannot be shared by {strategy.num_replicas_in_sync} replicas in {parts} parts "
            f"each: use a multiple of {shares}."
        )


def train(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    task: Task,
    optimizer,
    batches_from: Callable[[int, int, int], tf.data.Dataset],
    options: LoopOptions,
    flags: Mapping[str, Any],
    settings: Mapping[str, str],
    initialize: Callable[[], None] | None = None,
    loss_scale: DynamicLossScale | None = None,
    evaluate: Callable[[], dict[str, float]] | None = None,
) -> Trained:
    """Trains up to the last step, from wherever an earlier run in the same directory got to.

    Args:
        strategy: under whose scope all the rest was made.
        model, task, optimizer, loss_scale: see `TrainStep`.
        batches_from: `(first_step, worker, num_workers)` -> that worker's share of all batches from that step on.
        options: see there.
        flags: what decides the numbers of the run. Another run in the same directory has to agree.
        settings: name -> text of files that go with the weights, like `bert_config.json`.
        initialize: sets the first weights of a run that starts.
        evaluate: gives figures for TensorBoard and metrics.jsonl, every `eval_every_steps`.

    Raises:
        RunAgain: a signal came, and everything is saved.
    """
    chief = is_chief(strategy)
    if chief:
        check_no_model(options.output_dir)
    lock = locked(options.output_dir) if chief else contextlib.nullcontext()
    with lock as held, StopSignals() as signals, lost_worker_means_run_again(strategy):
        with strategy.scope():
            bad_steps = BadSteps(options.max_bad_steps)
        state_variables = variables_of(model, optimizer) | (loss_scale.named_state() if loss_scale else {})
        if options.max_bad_steps:
            state_variables |= bad_steps.named_state()
        state = TrainState(
            options.output_dir, state_variables, options.keep_states, may_lack=bad_steps.named_state().keys()
        )
        _agree_on_flags(strategy, state, options, flags)
        if chief:
            state.clear_leftovers()
            for name, text in settings.items():
                write_text(Path(options.output_dir) / name, text)
        found = _restore(strategy, state, options)
        step = found or 0
        if step == 0 and initialize:
            initialize()
        evaluations = Evaluations(options.output_dir, step)
        best = None
        if options.keep_best_metric:
            best = BestWeights(options.output_dir, model, evaluations, options.keep_best_metric, options.patience)
        is_done = step >= options.num_train_steps or bool(best and best.is_exhausted)
        _tell_where(options, found, is_done)
        figures = None
        if not is_done:
            train_step = TrainStep(
                strategy,
                model,
                task,
                optimizer,
                options.seed,
                options.parts,
                loss_scale,
                options.jit_compile,
                bad_steps,
            )
            loop = _Loop(
                strategy,
                task,
                optimizer,
                train_step,
                batches_from,
                state,
                options,
                evaluate,
                signals,
                evaluations,
                best,
                bad_steps,
                held,
            )
            step, figures = loop.run(step)
        if best and best.step not in (None, step):
            best.restore()
            step, figures = best.step, None
            logging.getLogger(__name__).info("The best weights are those of step %d.", step)
        if chief:
            held.check()
            RunRecord(options.output_dir).finish(step)
            save_checkpoint(model, Path(options.output_dir) / CHECKPOINT_NAME)
        return Trained(step, figures)


def _agree_on_flags(strategy, state: TrainState, options: LoopOptions, flags: Mapping[str, Any]) -> None:
    """Sees that the flags are those of the run that is there, or writes down those of a new one."""
    record = RunRecord(options.output_dir)
    flags = dict(flags) | {"replicas": strategy.num_replicas_in_sync}
    if is_chief(strategy) and not state.steps():  # nothing there that could be continued
        record.save(flags)
    sum_over_replicas(strategy, 0.0)  # the others read what the first has written
    record.check(flags, options.default_flags)


def _restore(strategy, state: TrainState, options: LoopOptions) -> int | None:
    """Sets everything to where an earlier run got to; its step, or None where there was none."""
    found = state.restore()
    step = found or 0
    if sum_over_replicas(strategy, float(step)) != float(step) * strategy.num_replicas_in_sync:
        raise ValueError(
            f"This worker found a state of step {step} in {options.output_dir}, and others found other ones. The "
            "directory has to be the same for all workers, on a file system that they share."
        )
    return found


def _tell_where(options: LoopOptions, step: int | None, is_done: bool) -> None:
    log = logging.getLogger(__name__)
    if step is None:
        log.info("A new run in %s.", options.output_dir)
    elif not is_done:
        log.info("Continuing the run in %s from step %d.", options.output_dir, step)
    elif step >= options.num_train_steps:
        log.info("The run in %s is done: it has all of its %d steps.", options.output_dir, step)
    else:
        log.info("The run in %s is done: it ended early, after step %d.", options.output_dir, step)


class _Loop:
    """From one step to the last, with all that happens on the way."""

    def __init__(
        self,
        strategy,
        task,
        optimizer,
        train_step,
        batches_from,
        state,
        options,
        evaluate,
        signals,
        evaluations,
        best,
        bad_steps,
        held,
    ):
        self._strategy = strategy
        self._task = task
        self._optimizer = optimizer
        self._train_step = train_step
        self._batches_from = batches_from
        self._num_workers = 1
        self._state = state
        self._options = options
        self._evaluate = evaluate
        self._signals = signals
        self._evaluations = evaluations
        self._best = best
        self._bad_steps = bad_steps
        self._num_bad_steps = bad_steps.found()[0]
        self._held: HeldDirectory | None = held  # by the first of several workers

    def run(self, step: int) -> Trained:
        """Trains from `step` on; gives the last step, and what was measured after it, if anything was."""
        options = self._options
        reports = Reports(
            options.output_dir,
            step,
            options.num_train_steps,
            options.batch_size,
            options.batch_size * options.seq_length,
            write=is_chief(self._strategy),
        )
        iterator = distributed(self._strategy, functools.partial(self._batches_of_worker, step))
        totals, last_look, is_first_call = {}, time.monotonic(), True
        with reports:
            # A signal may have come between a step and its evaluation.
            if step > 0 and self._is_evaluation_due(step) and step not in self._evaluations.by_step:
                self._save(step, is_best=self._evaluate_now(step, reports), is_saved=False)
            while step < options.num_train_steps and not (self._best and self._best.is_exhausted):
                until = min(_next_multiple(step, every) for every in self._intervals())
                num_steps = min(options.steps_per_call, until - step)
                measured = self._train_step.run(iterator, tf.constant(num_steps))
                step += num_steps
                totals = {name: totals.get(name, 0.0) + value for name, value in measured.items()}
                if is_first_call:  # most of it was tracing and compiling: speeds are those after it
                    float(measured["loss"])  # waits for the device
                    reports.restart_clock(step)
                    is_first_call = False
                stop = sum_over_replicas(self._strategy, float(self._signals.received)) > 0  # all after the same step
                is_saved = stop or self._is_due(step, options.save_every_steps)
                is_last = step == options.num_train_steps
                is_evaluated = self._is_evaluation_due(step) and (is_last or not stop)
                is_logged = is_saved or is_evaluated or self._is_due(step, options.log_every_steps)
                if is_logged or time.monotonic() - last_look > _SECONDS_BETWEEN_LOOKS:
                    if is_logged or not is_multi_worker(self._strategy):  # all workers have to end after the same step
                        self._look_at_bad_steps(totals, reports)
                    figures = self._figures(totals, step) | reports.speeds(step)
                    reports.show(step, figures)
                    last_look = time.monotonic()
                if is_logged:
                    self._check_directory()
                    reports.store(step, figures)
                    totals = {}
                is_best = is_evaluated and self._evaluate_now(step, reports)
                is_over = bool(self._best and self._best.is_exhausted)
                self._save(step, is_best, is_saved or is_over)
                if is_over:
                    reports.say(f"Stopped after step {step}: {options.patience} evaluations brought nothing better.")
                if is_logged:
                    reports.restart_clock(step)
                if stop and not is_last:
                    raise RunAgain(
                        f"Stopped after step {step} of {options.num_train_steps}, and saved it. Run the same command "
                        "again to continue."
                    )
        return Trained(step, self._evaluations.by_step.get(step))

    def _batches_of_worker(self, step: int, worker: int, num_workers: int) -> tf.data.Dataset:
        self._num_workers = num_workers
        return self._batches_from(step, worker, num_workers)

    def _look_at_bad_steps(self, totals, reports: Reports) -> None:
        """Tells of steps that were left out, and ends the run after one too many."""
        count, step = self._bad_steps.found()
        if count > self._bad_steps.limit:
            self._give_up(step, totals, reports)
        if count > self._num_bad_steps:
            reports.say(
                f"Left out step {step}, which was not finite: {count} of --max_bad_steps={self._bad_steps.limit}."
            )
            self._num_bad_steps = count

    def _give_up(self, step: int, totals, reports: Reports) -> None:
        """Ends the run at a bad step, with everything as it was before it."""
        self._bad_steps.forget_last()
        self._optimizer.iterations.assign(step - 1)
        path = Path(self._options.output_dir) / f"bad_step-{step}.npz"
        if is_chief(self._strategy):
            self._check_directory()
            if float(totals["steps"]) > 0.0:
                reports.store(step - 1, self._figures(totals, step - 1))
            if step > 1 and step - 1 not in self._state.steps():
                self._state.save(step - 1)
            path = save_batch(self._options.output_dir, step, self._batches_from, self._num_workers)
        left_out = self._bad_steps.limit
        raise ValueError(
            f"The loss or a gradient became NaN or infinite at step {step}"
            + (f", after {left_out} such steps were left out (--max_bad_steps={left_out})" if left_out else "")
            + f". The step was not taken. What was before it is saved, its batch is in {path}, and the same command "
            "comes to it again at once; docs/reliability.md tells how to look into it. To leave such steps out and go "
            f"on, add --max_bad_steps={left_out + 10}. If they are many, lower --learning_rate, raise "
            "--num_warmup_steps or use --dtype=float32, in another --output_dir."
        )

    def _evaluate_now(self, step: int, reports: Reports) -> bool:
        """Evaluates and tells; says whether it is the best so far."""
        figures = self._evaluate()
        self._check_directory()
        reports.store(step, figures, kind="eval")
        reports.say(f"Step {step}, evaluation: " + ", ".join(f"{name} {v:.4g}" for name, v in figures.items()))
        self._evaluations.add(step, figures, write=is_chief(self._strategy))
        return bool(self._best) and self._best.step == step

    def _save(self, step: int, is_best: bool, is_saved: bool) -> None:
        """Weights that are the best before the state, and what they replace after it: one of both is always there."""
        if not is_chief(self._strategy):
            return
        if is_best:
            self._best.save()
        if is_best or is_saved:
            self._state.save(step)
        if is_best:
            self._best.forget_others()

    def _check_directory(self) -> None:
        """Before anything is written: see `HeldDirectory`."""
        if self._held:
            self._held.check()

    def _intervals(self) -> list[int]:
        """Every how many steps something happens; a call to the device does not go beyond."""
        options = self._options
        every = [options.save_every_steps, options.log_every_steps, options.eval_every_steps, options.num_train_steps]
        return [steps for steps in every if steps > 0]

    def _is_due(self, step: int, every: int) -> bool:
        return every > 0 and (step % every == 0 or step == self._options.num_train_steps)

    def _is_evaluation_due(self, step: int) -> bool:
        return self._evaluate is not None and self._is_due(step, self._options.eval_every_steps)

    def _figures(self, totals, step: int) -> dict[str, float]:
        """Means since the last report; fetching them waits for the device."""
        totals = {name: float(value) for name, value in totals.items()}
        figures = {}
        if totals["steps"]:  # else all of them were left out
            loss = totals["loss"] / totals["steps"]
            if not math.isfinite(loss):  # with an optimizer that leaves no step out
                raise ValueError(f"The loss became {loss} before step {step}; nothing of that was saved.")
            figures = {"loss": loss} | self._task.figures(totals)
        if self._bad_steps.limit:
            figures["bad_steps"] = self._bad_steps.found()[0]
        return figures | {"learning_rate": _learning_rate(self._optimizer, step - 1)}


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every


def _learning_rate(optimizer, step: int) -> float:
    """The rate that a step was made with, counted from 0."""
    rate = optimizer._learning_rate  # Keras tells only the rate of the step to come
    return float(rate(step)) if callable(rate) else float(optimizer.learning_rate)
