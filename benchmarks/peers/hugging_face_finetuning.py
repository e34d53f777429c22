"""Transformers' side of fine-tuning, from files to scores: MRPC in a plain loop, each batch padded to its longest.

    python -m benchmarks.peers.hugging_face_finetuning glue/MRPC all-MiniLM-L6-v2 output_dir 3

Runs in the environment of the peers.
"""

import csv
import random
import sys
from pathlib import Path

import torch
import transformers

from benchmarks.peers.hugging_face_training import make_optimizer, use_both_cores

_BATCH_SIZE, _EVAL_BATCH_SIZE = 32, 64
_LEARNING_RATE, _MAX_SEQ_LENGTH = 5e-5, 128


def read_rows(file: Path) -> list[tuple[str, str, int]]:
    with open(file, encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["#1 String"], row["#2 String"], int(row["Quality"])) for row in rows]


def encode(tokenizer, rows) -> list[dict]:
    first, second, labels = zip(*rows, strict=True)
    told = tokenizer(list(first), list(second), truncation=True, max_length=_MAX_SEQ_LENGTH)
    return [{name: told[name][i] for name in told} | {"labels": label} for i, label in enumerate(labels)]


def scores(predicted: list[int], labels: list[int]) -> dict[str, float]:
    pairs = list(zip(predicted, labels, strict=True))
    hits, claimed, true = (pairs.count((1, 1)), sum(predicted), sum(labels))
    right = sum(guess == label for guess, label in pairs)
    return {"eval_accuracy": right / len(pairs), "eval_f1": 2 * hits / max(claimed + true, 1)}


def fine_tune(data_dir: str, model_dir: str, output_dir: str, epochs: int) -> None:
    use_both_cores()
    torch.manual_seed(1)
    rng = random.Random(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.BertForSequenceClassification.from_pretrained(model_dir, num_labels=2)
    train = encode(tokenizer, read_rows(Path(data_dir) / "train.tsv"))
    dev = encode(tokenizer, read_rows(Path(data_dir) / "dev.tsv"))
    collate = transformers.DataCollatorWithPadding(tokenizer)
    num_steps = epochs * len(train) // _BATCH_SIZE
    optimizer = make_optimizer(model, _LEARNING_RATE)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, num_steps // 10, num_steps)
    model.train()
    for _ in range(epochs):
        rng.shuffle(train)
        for first in range(0, len(train), _BATCH_SIZE):
            loss = model(**collate(train[first : first + _BATCH_SIZE])).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    predicted = []
    with torch.inference_mode():
        for first in range(0, len(dev), _EVAL_BATCH_SIZE):
            predicted += model(**collate(dev[first : first + _EVAL_BATCH_SIZE])).logits.argmax(dim=-1).tolist()
    told = scores(predicted, [row["labels"] for row in dev])
    lines = [f"{name} = {score}\n" for name, score in told.items()]
    (Path(output_dir) / "eval_results.txt").write_text("".join(lines))


if __name__ == "__main__":
    fine_tune(*sys.argv[1:4], int(sys.argv[4]))
