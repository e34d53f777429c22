"""A work from its first worker to the rows of the table."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.peers.measuring import (
    Figures,
    Measurements,
    disagreements,
    figures_named,
    take_turns,
)
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.works import Goal, Way, Work

Start = Callable[[Way], Worker]
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of a goal."""

    work: str
    title: str
    unit: str
    against: str
    goal: str
    at_least: float | None
    at_most: float | None
    ours: str = ""  # the name of our way
    peer: str = ""  # the name of the other one, where there is one
    our_figure: float | None = None
    peer_figure: float | None = None
    found: float | None = None  # the ratio; without a peer, our figure
    is_reached: bool = False
    has_moved: bool = False  # whether the machine was never the same for both
    others: float = 0.0  # the largest share of the machine that other processes had
    turns: int = 0
    turns_counted: int = 0
    problem: str = ""  # why there is nothing, or why it does not count
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def advantage(self) -> float:
        """How many times better than the other side, whether much or little is good."""
        return self.found if self.at_least is not None else 1 / self.found

    @property
    def wanted_advantage(self) -> float:
        return self.at_least if self.at_least is not None else 1 / self.at_most


class Run:
    """One run of a work.

    Args:
        work: what to do.
        start: starts the worker of a way.
        tell: is told what is going on.
    """

    def __init__(self, work: Work, start: Start, tell: Tell = lambda text: None):
        self._work = work
        self._start = start
        self._tell = tell
        self._measured: dict[str, Measurements] = {}
        self._failed: dict[str, str] = {}
        self._choice: dict[str, float] = {}
        self.versions: dict[str, str] = {}

    def rows(self) -> list[Row]:
        """Measures all that the goals need. What cannot be measured is told in its rows."""
        work = self._work
        with contextlib.ExitStack() as stack:
            try:
                if work.materials:
                    with self._opened(work.materials):
                        pass
                way, ours = self._choose(stack)
                self._measure(ours)
            except WorkerError as error:
                return [self._failed_row(goal, f"ours {error}") for goal in work.goals]
        return [self._row(goal, way) for goal in work.goals]

    @contextlib.contextmanager
    def _opened(self, way: Way) -> Iterator[Worker]:
        """A worker that is ready."""
        self._tell(f"{self._work.name}: preparing {way.name}")
        with self._start(way) as worker:
            self.versions |= worker.prepare()["versions"]
            yield worker

    def _choose(self, stack: contextlib.ExitStack) -> tuple[Way, Worker]:
        """The better one of our ways, which stays open; the others are closed again."""
        work = self._work
        if len(work.ours) == 1:
            return work.ours[0], stack.enter_context(self._opened(work.ours[0]))
        stacks = [stack.enter_context(contextlib.ExitStack()) for _ in work.ours]
        workers = [one.enter_context(self._opened(way)) for one, way in zip(stacks, work.ours, strict=True)]
        self._tell(f"{work.name}: choosing between {', '.join(way.name for way in work.ours)}")
        measured = take_turns(workers, dataclasses.replace(work.turns, wanted=1))
        values = [measured.best(side, work.lower_is_better)["value"] for side in range(len(workers))]
        self._choice = {way.name: value for way, value in zip(work.ours, values, strict=True)}
        chosen = values.index((min if work.lower_is_better else max)(values))
        for number, one in enumerate(stacks):
            if number != chosen:
                one.close()
        return work.ours[chosen], workers[chosen]

    def _measure(self, ours: Worker) -> None:
        """Our way beside each of the others, and alone where it has no other."""
        others = {way.name: way for goal in self._work.goals for way in goal.against}
        for name, way in others.items():
            try:
                with self._opened(way) as peer:
                    self._tell(f"{self._work.name}: in turns with {name}")
                    self._measured[name] = take_turns([ours, peer], self._work.turns)
            except WorkerError as error:
                self._failed[name] = f"{name} {error}"
        if not others:
            self._tell(f"{self._work.name}: measuring")
            self._measured[""] = take_turns([ours], self._work.turns)

    def _row(self, goal: Goal, ours: Way) -> Row:
        names = [way.name for way in goal.against]
        if failed := [self._failed[name] for name in names if name in self._failed]:
            return self._failed_row(goal, failed[0])
        if not names:
            return self._row_alone(goal, ours)
        rows = [self._row_beside(goal, ours, name) for name in names]
        return min(rows, key=lambda row: row.advantage)  # beside the strongest of them

    def _row_alone(self, goal: Goal, ours: Way) -> Row:
        if not self._measured:
            return self._failed_row(goal, "; ".join(self._failed.values()))
        measured = max(self._measured.values(), key=lambda measurements: len(measurements.counted))
        figures = measured.best(0, self._work.lower_is_better)
        found = figures[goal.figure]
        return self._new_row(goal, measured, found, ours=ours.name, our_figure=found, details={"ours": figures})

    def _row_beside(self, goal: Goal, ours: Way, peer: str) -> Row:
        measured = self._measured[peer]
        our_figures, peer_figures = (measured.best(side, self._work.lower_is_better) for side in (0, 1))
        our_figure, peer_figure = (goal.compare or figures_named(goal.figure))(our_figures, peer_figures)
        return self._new_row(
            goal,
            measured,
            our_figure / peer_figure,
            ours=ours.name,
            peer=peer,
            our_figure=our_figure,
            peer_figure=peer_figure,
            problem="; ".join(f"not the same work: {told}" for told in disagreements(our_figures, peer_figures)),
            details={"ours": our_figures, "peer": peer_figures},
        )

    def _new_row(self, goal: Goal, measured: Measurements, found: float, details: dict[str, Figures], **told) -> Row:
        problem = told.pop("problem", "")
        return Row(
            **self._names(goal),
            **told,
            found=found,
            problem=problem,
            is_reached=goal.is_reached(found) and not problem,
            has_moved=measured.has_moved,
            others=measured.others if measured.is_timed else 0.0,
            turns=len(measured.turns),
            turns_counted=len(measured.counted),
            details=details | {"choice": self._choice, "moves": [turn.move for turn in measured.turns]},
        )

    def _failed_row(self, goal: Goal, problem: str) -> Row:
        return Row(**self._names(goal), problem=problem)

    def _names(self, goal: Goal) -> dict[str, Any]:
        work = self._work
        return {
            "work": work.name,
            "title": work.title,
            "unit": goal.unit or work.unit,
            "against": goal.title,
            "goal": str(goal),
            "at_least": goal.at_least,
            "at_most": goal.at_most,
        }
