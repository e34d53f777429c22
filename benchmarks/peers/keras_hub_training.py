"""KerasHub's side of training: its encoder and its head for masked words, trained by Keras' own fit."""

import time

import keras
import keras_hub
import tensorflow as tf

from benchmarks.peers.shapes import pretraining_batch


def network(config: dict, seq_length: int, predictions: int) -> keras.Model:
    """Masked words and next sentences, as in the original's pre-training."""
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        dropout=0.1,
        max_sequence_length=config["max_position_embeddings"],
        num_segments=config["type_vocab_size"],
    )
    positions = keras.Input([predictions], dtype="int32", name="mask_positions")
    outputs = backbone.output
    masked_lm = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding, intermediate_activation="gelu", name="masked_lm"
    )(outputs["sequence_output"], positions)
    next_sentence = keras.layers.Dense(2, name="next_sentence")(outputs["pooled_output"])
    return keras.Model(
        backbone.input | {"mask_positions": positions}, {"masked_lm": masked_lm, "next_sentence": next_sentence}
    )


def pretraining_step(config: dict, batch_size: int, seq_length: int, predictions: int, jit_compile: bool):
    """Sequences a second of training steps on one batch."""
    model = network(config, seq_length, predictions)
    # Keras divides by the number of predictions, which is the sum of the weights here.
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0),
        loss=dict.fromkeys(model.output_names, keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        jit_compile=jit_compile,
    )
    batch = pretraining_batch(config, batch_size, seq_length, predictions)
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }
    wanted = {"masked_lm": batch["masked_lm_ids"], "next_sentence": batch["next_sentence_labels"]}
    batches = tf.data.Dataset.from_tensors((inputs, wanted)).repeat()
    model.fit(batches, steps_per_epoch=3, verbose=0)

    def measure(count: int) -> dict:
        begin = time.perf_counter()
        model.fit(batches, steps_per_epoch=count, verbose=0)
        return {"value": batch_size * count / (time.perf_counter() - begin)}

    return measure
