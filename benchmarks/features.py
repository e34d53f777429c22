"""What batches by length save where vectors are computed: lines per second, beside the original's way.

    python -m benchmarks.features --input_file=books/train-000.txt --init_checkpoint=uncased_L-12_H-768_A-12

All ways have the same model and the same process. They take turns, some lines at a time, so that whatever else the
machine does slows all of them down. From text to arrays in memory; no file is written.
"""

import itertools
import time

from absl import flags

import command_line
from data.text_files import read_lines
from data.tokenization import to_unicode

_INPUT_FILE = flags.DEFINE_string("input_file", None, "Texts, one a line; blank lines are passed over.", required=True)
_INIT_CHECKPOINT = flags.DEFINE_string("init_checkpoint", None, "The model, as for extract_features.py.", required=True)
_NUM_LINES = flags.DEFINE_integer("num_lines", 10_000, "How many lines to encode, the first ones.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "What the original pads to, and all ways cut to.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Lines that run together.", lower_bound=1)
_LAYERS = flags.DEFINE_list("layers", ["-1", "-2", "-3", "-4"], "Layers of token vectors.")
_LINES_PER_TURN = flags.DEFINE_integer("lines_per_turn", 2048, "Lines until the next way has its turn.", lower_bound=1)


def padded(encoder, lines: list[str], layers: tuple[int, ...]) -> int:
    """The original's way: batches in the order of the file, padded to the full length. Gives the number of tokens."""
    from tasks.asking import to_batch

    rows, count = encoder.rows(lines), 0
    while batch := list(itertools.islice(rows, _BATCH_SIZE.value)):
        values = encoder.run(to_batch(batch, _MAX_SEQ_LENGTH.value), layers, "none").numpy()  # [B, L, T, H]
        count += sum(of_row[:, : len(ids)].shape[1] for of_row, (ids, _) in zip(values, batch, strict=True))
    return count


def main() -> None:
    from tasks.vectors import TextEncoder
    from training.memory import keep_freed_memory

    keep_freed_memory()
    encoder = TextEncoder.load(_INIT_CHECKPOINT.value, max_seq_length=_MAX_SEQ_LENGTH.value)
    layers = tuple(map(int, _LAYERS.value))
    texts = filter(None, (to_unicode(line).strip() for line in read_lines(_INPUT_FILE.value)))
    lines = list(itertools.islice(texts, _NUM_LINES.value))
    if not lines:
        raise ValueError(f"There is no text in {_INPUT_FILE.value}.")

    def by_length(lines: list[str]) -> int:
        return sum(len(line.tokens) for line in encoder.token_vectors(lines, layers, _BATCH_SIZE.value))

    ways = {
        "padded, token vectors": lambda lines: padded(encoder, lines, layers),
        "by length, token vectors": by_length,
        "by length, mean": lambda lines: sum(1 for _ in encoder.vectors(lines, batch_size=_BATCH_SIZE.value)),
    }
    for way in ways.values():
        way(lines[: 2 * _BATCH_SIZE.value])  # traces, and allocates
    seconds, tokens = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for start in range(0, len(lines), _LINES_PER_TURN.value):
        turn = lines[start : start + _LINES_PER_TURN.value]
        for name, way in ways.items():
            begin = time.perf_counter()
            tokens[name] += way(turn)
            seconds[name] += time.perf_counter() - begin
    first, second, _ = ways
    assert tokens[first] == tokens[second]
    print(f"{len(lines)} lines, {tokens[first] / len(lines):.1f} tokens each with [CLS] and [SEP]")
    for name in ways:
        print(f"{name:25} {len(lines) / seconds[name]:8.1f} lines/s  {seconds[first] / seconds[name]:5.2f}x")


if __name__ == "__main__":
    command_line.run(main)
