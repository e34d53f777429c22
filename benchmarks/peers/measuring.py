"""Pairs measured in turns, and what counts of them.

A turn measures one side and then the other. It counts only if the machine was the same for both: the reference product
of matrices, timed before and after each, must not have moved by more than a tenth. Turns that moved are taken again, a
few times; where none counts in the end, the pair is marked as moved, and its figures are worth little.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

LARGEST_MOVE = 0.10
LARGEST_SHARE_OF_OTHERS = 0.10
_LARGEST_DIFFERENCE = 1e-3  # of vectors that two libraries compute from the same weights

Figures = Mapping[str, Any]  # `value`, `reference` and whatever else was measured


class Measured(Protocol):
    """What there is to know of a worker here."""

    def measure(self, count: int) -> Figures: ...


@dataclasses.dataclass(frozen=True)
class Turns:
    """How often to measure."""

    count: int  # the size of the work, as its function understands it
    wanted: int = 3  # turns that count
    spare: int = 3  # further ones, if some do not
    is_timed: bool = True  # whether the speed of the machine has a say in it


@dataclasses.dataclass(frozen=True)
class Turn:
    """One measurement of each side, in the order they were made."""

    sides: tuple[Figures, ...]

    @property
    def move(self) -> float:
        """By how much the fastest reference of the turn is above the slowest."""
        seen = [gflops for side in self.sides for gflops in side["reference"]]
        return max(seen) / min(seen) - 1


@dataclasses.dataclass(frozen=True)
class Measurements:
    """All turns of some sides."""

    turns: tuple[Turn, ...]
    is_timed: bool = True

    @property
    def counted(self) -> list[Turn]:
        return [turn for turn in self.turns if not self.is_timed or turn.move <= LARGEST_MOVE]

    @property
    def has_moved(self) -> bool:
        """Whether there was no turn in which the machine stood still."""
        return not self.counted

    @property
    def others(self) -> float:
        """The largest share of the machine that other processes had in a turn that counts."""
        return max(side.get("others", 0.0) for turn in self.counted or self.turns for side in turn.sides)

    def best(self, side: int, lower_is_better: bool) -> Figures:
        """Of one side, among the turns that count; among all where none does."""
        choose = min if lower_is_better else max
        return choose((turn.sides[side] for turn in self.counted or self.turns), key=lambda figures: figures["value"])


def take_turns(sides: Sequence[Measured], turns: Turns) -> Measurements:
    """Measures all sides in turns until enough of these count."""
    taken: list[Turn] = []
    for _ in range(turns.wanted + turns.spare):
        taken.append(Turn(tuple(side.measure(turns.count) for side in sides)))
        if len(Measurements(tuple(taken), turns.is_timed).counted) == turns.wanted:
            break
    return Measurements(tuple(taken), turns.is_timed)


def figures_named(name: str) -> "Compare":
    return lambda ours, peer: (ours[name], peer[name])


def times_to_the_same_loss(ours: Figures, peer: Figures) -> tuple[float, float]:
    """How long each takes to the same loss: the lowest one that both reach, so that neither is asked for noise."""
    target = max(min(loss for _, loss in side["curve"]) for side in (ours, peer))
    return time_to_loss(ours["curve"], target), time_to_loss(peer["curve"], target)


def time_to_loss(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Seconds until a curve of (seconds, loss) first comes to `target`, in a line between points; infinite if never."""
    before = None
    for seconds, loss in curve:
        if loss <= target:
            if before is None or before[1] == loss:
                return seconds
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (seconds - before[0])
        before = (seconds, loss)
    return math.inf


def disagreements(ours: Figures, peer: Figures) -> Iterator[str]:
    """In what two sides did not do the same work, as far as they tell."""
    if "fingerprint" in ours and "fingerprint" in peer and ours["fingerprint"] != peer["fingerprint"]:
        yield f"{ours['fingerprint']} and {peer['fingerprint']}"
    if "sample" in ours and "sample" in peer:
        differences = [abs(a - b) for a, b in zip(ours["sample"], peer["sample"], strict=True)]
        if not all(difference <= _LARGEST_DIFFERENCE for difference in differences):  # nor where there is a NaN
            yield f"numbers differ by {max(differences):.2g}"


Compare = Callable[[Figures, Figures], tuple[float, float]]  # what is divided by what
