"""The encoder with a head: one class a task family, a dict of int tensors in, logits out.

Axes in comments: B batch, T sequence length, C choices, P masked positions a sequence, V vocabulary size, L labels.
"""

import keras
import tensorflow as tf

from modeling.config import BertConfig
from modeling.encoder import BertEncoder, weight_initializer
from modeling.heads import BiLstm, LinearHead, MaskedLMHead

# Dropout before a classifier, fixed in the original's scripts whatever the config says.
CLASSIFIER_DROPOUT = 0.1


class TaskModel(keras.Model):
    """What all tasks share: an encoder, an initializer for the head, and how to save it.

    Args:
        config, recompute, seed, dtype: see `BertEncoder`.
    """

    def __init__(self, config: BertConfig, recompute: bool = False, seed=None, dtype=None, **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.config = config
        self.encoder = BertEncoder(config, recompute=recompute, seed=seed, dtype=self.dtype_policy)
        # Seeded one beside the encoder's, so that the head does not start as a copy of the embeddings.
        self.head_initializer = weight_initializer(
            config, keras.random.SeedGenerator(None if seed is None else seed + 1)
        )
        self.built = True

    def split_dropout_seed(self, training, dropout_seed):
        """Seeds for the encoder and for the head: (None, None) when there is nothing to drop."""
        if not training:
            return None, None
        dropout_seed = self.encoder.next_dropout_seed() if dropout_seed is None else dropout_seed
        return tuple(tf.unstack(tf.random.experimental.stateless_split(dropout_seed, 2), num=2))

    def freeze(self, num_layers: int) -> None:
        """Keeps the embeddings and the lowest blocks as they are in training."""
        if not 0 <= num_layers <= self.config.num_hidden_layers:
            raise ValueError(f"{num_layers} layers cannot be frozen: the encoder has {self.config.num_hidden_layers}.")
        if num_layers:
            self.encoder.embeddings.trainable = False
            for block in self.encoder.encoder.blocks[:num_layers]:
                block.trainable = False

    def get_config(self):
        config = {"config": self.config.to_dict(), "recompute": self.encoder.recompute, "seed": self.encoder.seed}
        return super().get_config() | config

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"config": BertConfig.from_dict(config["config"])})


@keras.saving.register_keras_serializable(package="bert")
class PretrainingModel(TaskModel):
    """Masked words and next sentences."""

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.masked_lm = MaskedLMHead(config, self.head_initializer, dtype=self.dtype_policy)
        self.next_sentence = LinearHead(
            config,
            self.head_initializer,
            units=2,
            scope=("cls", "seq_relationship"),
            dtype=self.dtype_policy,
            name="seq_relationship",
        )

    def call(self, inputs, training=None, dropout_seed=None):
        """The inputs of the encoder and `masked_lm_positions` [B, P] -> dict of logits [B, P, V] and [B, 2]."""
        outputs = self.encoder(inputs, training=training, dropout_seed=dropout_seed)
        table = tf.convert_to_tensor(self.encoder.embedding_table)
        positions = tf.cast(inputs["masked_lm_positions"], tf.int32)
        return {
            "masked_lm_logits": self.masked_lm(outputs["sequence_output"], positions, table),
            "next_sentence_logits": self.next_sentence(outputs["pooled_output"]),
        }


class _LabelModel(TaskModel):
    """A classifier with dropout on some output of the encoder."""

    def __init__(self, config: BertConfig, num_labels: int, **kwargs):
        super().__init__(config, **kwargs)
        self.num_labels = num_labels
        self.classifier = LinearHead(
            config,
            self.head_initializer,
            units=num_labels,
            dropout_rate=CLASSIFIER_DROPOUT,
            dtype=self.dtype_policy,
            name="classifier",
        )

    def classify(self, output_name, inputs, training, dropout_seed):
        encoder_seed, head_seed = self.split_dropout_seed(training, dropout_seed)
        outputs = self.encoder(inputs, training=training, dropout_seed=encoder_seed)
        return self.classifier(outputs[output_name], head_seed)

    def get_config(self):
        return super().get_config() | {"num_labels": self.num_labels}


@keras.saving.register_keras_serializable(package="bert")
class SentenceModel(_LabelModel):
    """One label for a sentence or a pair of them; with a single label, one number (regression).

    Args:
        bilstm: whether a BiLSTM over all tokens takes the place of the pooler.
    """

    def __init__(self, config: BertConfig, num_labels: int, bilstm: bool = False, **kwargs):
        super().__init__(config, num_labels, **kwargs)
        self.bilstm = BiLstm(config, self.head_initializer, dtype=self.dtype_policy) if bilstm else None

    def call(self, inputs, training=None, dropout_seed=None):
        """The inputs of the encoder -> logits [B, L]."""
        if self.bilstm is None:
            return self.classify("pooled_output", inputs, training, dropout_seed)
        encoder_seed, head_seed = self.split_dropout_seed(training, dropout_seed)
        outputs = self.encoder(inputs, training=training, dropout_seed=encoder_seed)
        return self.classifier(self.bilstm(outputs["sequence_output"], inputs["input_mask"]), head_seed)

    def get_config(self):
        return super().get_config() | {"bilstm": self.bilstm is not None}


@keras.saving.register_keras_serializable(package="bert")
class TokenModel(_LabelModel):
    """One label for each token."""

    def call(self, inputs, training=None, dropout_seed=None):
        """The inputs of the encoder -> logits [B, T, L]."""
        return self.classify("sequence_output", inputs, training, dropout_seed)


@keras.saving.register_keras_serializable(package="bert")
class TokenFeatureModel(_LabelModel):
    """One label for each token, from an encoder that stays as it is: the feature-based way of the paper.

    Args:
        layers: whose outputs are joined for each token; -1 is the last, as in extract_features.py.
    """

    def __init__(self, config: BertConfig, num_labels: int, layers=(-4, -3, -2, -1), **kwargs):
        super().__init__(config, num_labels, **kwargs)
        self.layers_to_join = tuple(layers)
        if not all(-config.num_hidden_layers <= layer < 0 for layer in layers):
            raise ValueError(f"Layers {tuple(layers)} should be from -1, the last, to -{config.num_hidden_layers}.")
        self.encoder.trainable = False
        self.bilstm = BiLstm(
            config,
            self.head_initializer,
            num_layers=2,
            input_size=config.hidden_size * len(self.layers_to_join),
            for_each_token=True,
            dtype=self.dtype_policy,
        )

    def call(self, inputs, training=None, dropout_seed=None):
        """The inputs of the encoder -> logits [B, T, L]."""
        _, head_seed = self.split_dropout_seed(training, dropout_seed)
        layers = self.encoder(inputs, training=False)["all_layers"]
        joined = tf.concat([layers[layer] for layer in self.layers_to_join], axis=-1)  # [B, T, H * layers]
        return self.classifier(self.bilstm(joined, inputs["input_mask"]), head_seed)

    def get_config(self):
        return super().get_config() | {"layers": self.layers_to_join}


@keras.saving.register_keras_serializable(package="bert")
class ChoiceModel(_LabelModel):
    """One score for each of several continuations."""

    def __init__(self, config: BertConfig, num_labels: int = 1, **kwargs):
        super().__init__(config, num_labels=num_labels, **kwargs)

    def call(self, inputs, training=None, dropout_seed=None):
        """The inputs of the encoder, each [B, C, T] -> logits [B, C]."""
        batch, choices, length = tf.unstack(tf.shape(inputs["input_ids"]), num=3)
        flat = {
            name: tf.reshape(inputs[name], [batch * choices, length])
            for name in ("input_ids", "input_mask", "segment_ids")
            if name in inputs
        }
        return tf.reshape(self.classify("pooled_output", flat, training, dropout_seed), [batch, choices])


@keras.saving.register_keras_serializable(package="bert")
class SpanModel(TaskModel):
    """Where an answer starts and where it ends."""

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.span = LinearHead(
            config, self.head_initializer, units=2, scope=("cls", "squad"), dtype=self.dtype_policy, name="squad"
        )

    def call(self, inputs, training=None, dropout_seed=None):
        """The inputs of the encoder -> dict of logits [B, T] for the start and for the end."""
        outputs = self.encoder(inputs, training=training, dropout_seed=dropout_seed)
        start_logits, end_logits = tf.unstack(self.span(outputs["sequence_output"]), num=2, axis=-1)
        return {"start_logits": start_logits, "end_logits": end_logits}
