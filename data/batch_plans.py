"""Which records a step sees, when all records of a set and their lengths are known.

A plan follows from the lengths, the seed and the sizes alone: any step can be asked for, so a run that was stopped goes
on with the very batch it would have met. Records are numbers here; -1 is a row that only fills up its batch.
"""

import dataclasses
import functools

import numpy as np

FILLER = -1

# Sequences of so many batches are sorted by length together. Few enough that batches stay mixed, and many enough that
# the sequences of a batch are about as long as each other.
_BATCHES_PER_POOL = 64


@dataclasses.dataclass(frozen=True)
class BatchSize:
    """How many sequences a batch has.

    Args:
        rows: so many; with `tokens`, it has a say only in how many records are sorted together.
        tokens: as many as have so many pieces together, padding included: short sequences come in larger batches.
        multiple: the number of rows is a multiple of this, so that replicas get their even shares.
        length_step: lengths are rounded up to multiples of this, so that there are not too many shapes.
    """

    rows: int
    tokens: int | None = None
    multiple: int = 1
    length_step: int = 8

    def rows_of(self, length: int) -> int:
        """Rows of a batch whose longest sequence has `length` pieces."""
        if self.tokens is None:
            return self.rows
        padded = padded_length(length, self.length_step)
        return max(self.tokens // padded // self.multiple, 1) * self.multiple


def padded_length(length: int, step: int) -> int:
    return -(-length // step) * step


class TrainingPlan:
    """Batches of several epochs, as a sequence.

    Records come in a random order, another in each epoch, one epoch behind the other. As in the original, a batch may
    reach from one epoch into the next. Batches by length are put together within an epoch, some at a time, so that no
    record is twice in one.

    Args:
        lengths: [number of records], pieces of each.
        size: of the batches.
        num_steps: how many batches of `size.rows` there are; with `size.tokens`, as many as that many rows make.
        seed: of the order.
        by_length: whether batches are put together of sequences of about the same length.
    """

    def __init__(self, lengths: np.ndarray, size: BatchSize, num_steps: int, seed: int, by_length: bool):
        if size.tokens is not None and not by_length:
            raise ValueError("Batches of so many tokens have to be put together by length.")
        self._lengths = lengths
        self._size = size
        self._seed = seed
        self._by_length = by_length
        # Of each the one that ends and the one that begins, and some more for batches that are prepared in parallel.
        self._pool = functools.lru_cache(maxsize=4)(self._make_pool)
        self._order = functools.lru_cache(maxsize=4)(self._make_order)
        self._pools = _pools(len(lengths), size.rows, num_steps)
        if size.tokens is None:
            counts = [end - first for first, end in self._pools]
        else:
            counts = [len(_cut(np.sort(lengths[self._records(*pool)]), size)) for pool in self._pools]
        self._first_steps = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.mean_rows = num_steps * size.rows / max(len(self), 1)  # of a batch

    def __len__(self) -> int:
        return int(self._first_steps[-1])

    def __getitem__(self, step: int) -> np.ndarray:
        if not 0 <= step < len(self):
            raise IndexError(step)
        pool = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return self._pool(pool)[step - int(self._first_steps[pool])]

    def _make_pool(self, pool: int) -> list[np.ndarray]:
        records = self._records(*self._pools[pool])
        if not self._by_length:
            return np.split(records, len(records) // self._size.rows)
        records = records[np.argsort(self._lengths[records], kind="stable")]  # equal lengths stay in random order
        batches = _cut(self._lengths[records], self._size)
        order = np.random.default_rng([self._seed, 1, pool]).permutation(len(batches))
        return [_filled(records[batches[i]], self._size.multiple) for i in order]

    def _records(self, first: int, end: int) -> np.ndarray:
        """What batches of `rows` hold, from one to another: a part of the endless stream of records."""
        start, end, count = first * self._size.rows, end * self._size.rows, len(self._lengths)
        epochs = range(start // count, (end - 1) // count + 1)
        stream = np.concatenate([self._order(epoch) for epoch in epochs])
        return stream[start - epochs[0] * count : end - epochs[0] * count]

    def _make_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, 0, epoch]).permutation(len(self._lengths))


def _pools(num_records: int, rows: int, num_steps: int) -> list[tuple[int, int]]:
    """Which batches are put together: (first, end). None reaches over the end of an epoch, but a single one."""
    pools, first = [], 0
    while first < num_steps:
        epoch = first * rows // num_records
        whole = (epoch + 1) * num_records // rows  # batches up to here end with the epoch, or before
        end = min(max(whole, first + 1), first + _BATCHES_PER_POOL, num_steps)
        pools.append((first, end))
        first = end
    return pools


def evaluation_plan(lengths: np.ndarray, size: BatchSize, by_length: bool) -> list[np.ndarray]:
    """All records once; in their order, or those of about the same length together. The last batch is filled up."""
    records = np.argsort(lengths, kind="stable") if by_length else np.arange(len(lengths))
    batches = [records[part] for part in _cut(lengths[records], size)]
    return [_filled(batch, size.multiple if size.tokens else size.rows) for batch in batches]


def _cut(lengths: np.ndarray, size: BatchSize) -> list[slice]:
    """Cuts records, whose lengths ascend where batches go by tokens, into batches."""
    parts, start = [], 0
    while start < len(lengths):
        rows = size.rows_of(int(lengths[start]))
        # With longer sequences at its end, fewer of them may be in a batch.
        while size.tokens is not None and rows > size.multiple:
            fitting = size.rows_of(int(lengths[min(start + rows, len(lengths)) - 1]))
            if fitting >= rows:
                break
            rows = fitting
        parts.append(slice(start, start + rows))
        start += rows
    return parts


def _filled(batch: np.ndarray, multiple: int) -> np.ndarray:
    return np.concatenate([batch, np.full(-len(batch) % multiple, FILLER, batch.dtype)])
