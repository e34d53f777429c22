"""How close the numbers are to those of the original, in eager mode, in graphs, under XLA, and in float64.

    python -m benchmarks.parity

Prints the tables of docs/parity.md from the golden files of the tests.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

import command_line
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.google import read_variables
from modeling.losses import masked_lm_loss, next_sentence_loss
from modeling.models import PretrainingModel
from training.optimizer import AdamWeightDecay, WarmupLinearDecay

GOLDEN = Path(__file__).parents[1] / "tests" / "testdata" / "golden" / "model"


def make_model(dtype: str) -> PretrainingModel:
    model = PretrainingModel(BertConfig.from_json_file(GOLDEN / "bert_config.json"), dtype=dtype)
    load_checkpoint(model, GOLDEN)
    return model


def in_mode(function, mode: str):
    return function if mode == "eager" else tf.function(function, jit_compile=mode == "XLA", autograph=False)


def forward(mode: str, dtype: str, golden) -> dict[str, float]:
    """Largest absolute difference of each array."""
    model = make_model(dtype)

    def run(batch):
        outputs, logits = model.encoder(batch), model(batch)
        return {
            "embedding_output": outputs["embedding_output"],
            "all_layers": tf.stack(outputs["all_layers"]),
            "pooled_output": outputs["pooled_output"],
            "nsp_log_probs": tf.nn.log_softmax(logits["next_sentence_logits"]),
            "mlm_log_probs": tf.nn.log_softmax(tf.reshape(logits["masked_lm_logits"], [-1, model.config.vocab_size])),
        }

    arrays = in_mode(run, mode)({name: tf.constant(golden[name]) for name in golden.files if golden[name].ndim == 2})
    return {name: float(np.abs(array - golden[name]).max()) for name, array in arrays.items()}


def training(mode: str, dtype: str, golden) -> dict[str, float]:
    """Largest relative difference of a loss and largest absolute difference of a weight after 20 steps."""
    expected = np.load(GOLDEN / "training.npz")
    names = ("learning_rate", "num_train_steps", "num_warmup_steps")
    model, optimizer = make_model(dtype), AdamWeightDecay(WarmupLinearDecay(*(expected[name].item() for name in names)))
    optimizer.build(model.trainable_variables)

    def step(batch):
        with tf.GradientTape() as tape:
            logits = model(batch, training=True)
            masked_lm = masked_lm_loss(logits["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
            next_sentence = next_sentence_loss(logits["next_sentence_logits"], batch["next_sentence_labels"])
            loss = masked_lm + next_sentence
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return tf.stack([loss, masked_lm, next_sentence])

    batch = {name: tf.constant(golden[name]) for name in golden.files if golden[name].ndim == 2}
    run = in_mode(step, mode)
    losses = np.stack([run(batch) for _ in range(20)])
    after = read_variables(GOLDEN / "after_training.ckpt")
    return {
        "losses (relative)": float(np.abs(losses / expected["losses"] - 1).max()),
        "weights": max(float(np.abs(v.numpy() - after[v.path]).max()) for v in model.weights),
    }


def main() -> None:
    golden = np.load(GOLDEN / "forward.npz")
    settings = {"eager": "float32", "tf.function": "float32", "XLA": "float32", "tf.function in float64": "float64"}
    for measure in (forward, training):
        columns = {name: measure(name.split(" ")[0], dtype, golden) for name, dtype in settings.items()}
        rows = next(iter(columns.values()))
        print("| |", " | ".join(columns), "|")
        for row in rows:
            print(f"| {row} |", " | ".join(f"{column[row]:.1e}" for column in columns.values()), "|")
        print()


if __name__ == "__main__":
    command_line.run(main)
