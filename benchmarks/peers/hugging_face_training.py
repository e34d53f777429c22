"""Transformers' side of training: its BertForPreTraining in a plain loop of torch, as well as it can be done.

The head for masked words runs on the masked positions alone, which its own forward pass does not do; AdamW is the fused
one. Runs in the environment of the peers.
"""

import time

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

from benchmarks.peers.shapes import pretraining_batch
from benchmarks.peers.worker import best_gflops

_BATCH_TYPES = {"masked_lm_weights": torch.float32}


def use_both_cores() -> None:
    torch.set_num_threads(2)


def network(config: dict, attention: str) -> transformers.BertForPreTraining:
    """With the tanh form of gelu, which is the original's."""
    changes = {"hidden_act": "gelu_pytorch_tanh", "attn_implementation": attention}
    return transformers.BertForPreTraining(transformers.BertConfig(**config | changes))


def to_tensors(batch) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(array).to(_BATCH_TYPES.get(name, torch.int64)) for name, array in batch.items()}


def losses(model, batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum of the losses of masked words, their count, and the mean loss of next sentences."""
    outputs = model.bert(
        input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"]
    )
    positions = batch["masked_lm_positions"][..., None].expand(-1, -1, outputs.last_hidden_state.shape[-1])
    masked = outputs.last_hidden_state.gather(1, positions)  # [B, P, H]
    logits, sentences = model.cls(masked, outputs.pooler_output)
    weights = batch["masked_lm_weights"].flatten()
    of_words = cross_entropy(logits.flatten(0, 1), batch["masked_lm_ids"].flatten(), reduction="none")
    return (of_words * weights).sum(), weights.sum(), cross_entropy(sentences, batch["next_sentence_labels"].flatten())


def make_optimizer(model, rate: float) -> torch.optim.AdamW:
    """Decay for all but biases and norms, as in the original."""
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["bias" not in name and "LayerNorm" not in name].append(parameter)
    decays = [{"params": groups[True], "weight_decay": 0.01}, {"params": groups[False], "weight_decay": 0.0}]
    return torch.optim.AdamW(decays, lr=rate, eps=1e-6, fused=True)


def train_step(model, optimizer, batch) -> torch.Tensor:
    words, count, sentences = losses(model, batch)
    loss = words / (count + 1e-5) + sentences
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def pretraining_step(config: dict, batch_size: int, seq_length: int, predictions: int, attention: str):
    """Sequences a second of training steps on one batch."""
    use_both_cores()
    model = network(config, attention).train()
    optimizer = make_optimizer(model, 1e-4)
    batch = to_tensors(pretraining_batch(config, batch_size, seq_length, predictions))
    matrix = torch.randn(2048, 2048)

    def run(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            loss = train_step(model, optimizer, batch)
        loss.item()
        return time.perf_counter() - begin

    run(3)

    def measure(count: int) -> dict:
        matmul = best_gflops(lambda: matrix @ matrix, rounds=5)
        return {"value": batch_size * count / run(count), "matmul_gflops": matmul}

    return measure


def pretraining_run(
    start: str,
    batches: str,
    heldout: str,
    batch_size: int,
    learning_rate: float,
    evaluate_every: int,
    attention: str,
):
    """Held-out loss of masked words against seconds of training, from the weights in `start` on.

    Args:
        batches, heldout: arrays by name (.npz), the rows in the order in which our side sees them.
    """
    use_both_cores()
    train_rows, heldout_rows = (dict(np.load(file)) for file in (batches, heldout))

    def rows(arrays, first: int) -> dict[str, torch.Tensor]:
        return to_tensors({name: array[first : first + batch_size] for name, array in arrays.items()})

    def evaluate(model) -> float:
        model.eval()
        with torch.inference_mode():
            told = [losses(model, rows(heldout_rows, i)) for i in range(0, len(heldout_rows["input_ids"]), batch_size)]
        model.train()
        return float(sum(words for words, _, _ in told) / sum(count for _, count, _ in told))

    def measure(count: int) -> dict:
        torch.manual_seed(1)
        config = transformers.BertConfig.from_pretrained(start)
        config.hidden_act = "gelu_pytorch_tanh"
        model = transformers.BertForPreTraining.from_pretrained(start, config=config, attn_implementation=attention)
        optimizer, warmup = make_optimizer(model, learning_rate), count // 10

        def factor(step: int) -> float:
            return step / warmup if step < warmup else (count - step) / (count - warmup)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        model.train()
        curve, seconds = [[0.0, evaluate(model)]], 0.0
        for first in range(0, count, evaluate_every):
            begin = time.perf_counter()
            for step in range(first, first + evaluate_every):
                loss = train_step(model, optimizer, rows(train_rows, step * batch_size))
                schedule.step()
            loss.item()
            seconds += time.perf_counter() - begin
            curve.append([seconds, evaluate(model)])
        return {
            "value": seconds,
            "curve": curve,
            "last_loss": curve[-1][1],
            "sequences_per_second": batch_size * count / seconds,
        }

    return measure
