"""What stands on top of the encoder. Variable names are those of the original's scripts.

Axes in comments: B batch, T sequence length, H hidden size, P masked positions a sequence, V vocabulary size.
"""

import contextlib

import keras
import tensorflow as tf

from modeling.config import BertConfig
from modeling.functions import dropout
from modeling.layers import LayerNorm, activation


class LinearHead(keras.layers.Layer):
    """A linear layer on the pooled output or on every token: all of the original's heads but the masked LM one.

    Args:
        units: scores for each vector.
        scope: the variable scopes around `output_weights` and `output_bias`: () for the classifier,
            ("cls", "squad") for spans, ("cls", "seq_relationship") for next sentences.
        dropout_rate: dropout on the input while training. The classifier of the original has it; spans and next
            sentences do not.
    """

    def __init__(
        self, config: BertConfig, initializer, units: int, scope: tuple[str, ...] = (), dropout_rate=0.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.dropout_rate = dropout_rate
        # Made here and not by `add_weight`, which would put the name of this layer into the path of the variables.
        with contextlib.ExitStack() as scopes:
            for part in scope:
                scopes.enter_context(keras.name_scope(part))
            self.output_weights = keras.Variable(
                initializer, (units, config.hidden_size), dtype=self.variable_dtype, name="output_weights"
            )
            self.output_bias = keras.Variable("zeros", (units,), dtype=self.variable_dtype, name="output_bias")
        self.built = True

    def call(self, x, dropout_seed=None):
        """[..., H] -> [..., units]."""
        x = dropout(x, self.dropout_rate, dropout_seed)
        weights = tf.convert_to_tensor(self.output_weights)  # [units, H]
        # Not by einsum with an ellipsis, which in float16 is wrong on CPUs that multiply in float16 (TensorFlow 2.21).
        return tf.tensordot(x, weights, [[-1], [1]]) + self.output_bias


class BiLstm(keras.layers.Layer):
    """Recurrent layers in both directions over all tokens, as the paper put them on encoders that are not fine-tuned.

    Args:
        num_layers: one on top of the other.
        input_size: of the vectors below; the hidden size of the encoder if not set.
        for_each_token: whether it gives a vector for each token, or one for the sequence, its two last states.
    """

    def __init__(
        self,
        config: BertConfig,
        initializer,
        num_layers: int = 1,
        input_size: int | None = None,
        for_each_token: bool = False,
        **kwargs,
    ):
        super().__init__(name="bilstm", **kwargs)
        if config.hidden_size % 2:
            raise ValueError(f"A BiLSTM needs an even hidden_size, not {config.hidden_size}.")
        self.sizes = [input_size or config.hidden_size] + [config.hidden_size] * (num_layers - 1)
        self.directions = [
            [
                keras.layers.LSTM(
                    config.hidden_size // 2,
                    kernel_initializer=initializer,
                    recurrent_initializer=initializer,
                    go_backwards=name == "backward",
                    return_sequences=for_each_token or layer < num_layers - 1,
                    dtype=self.dtype_policy,
                    name=f"layer_{layer}_{name}",
                )
                for name in ("forward", "backward")
            ]
            for layer in range(num_layers)
        ]
        self.build()

    def build(self, input_shape=None):
        for size, directions in zip(self.sizes, self.directions, strict=True):
            for direction in directions:
                direction.build((None, None, size))

    def call(self, x, input_mask):
        """[B, T, input size], int [B, T] -> [B, T, H], or [B, H] for the sequence."""
        mask = tf.cast(input_mask, tf.bool)
        for forward, backward in self.directions:
            left, right = forward(x, mask=mask), backward(x, mask=mask)
            if backward.return_sequences:
                right = tf.reverse(right, axis=[1])  # Keras gives it from the last token to the first
            x = tf.concat([left, right], axis=-1)
        return x


class Transform(keras.layers.Layer):
    """A dense layer and a norm before the vocabulary."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(
            config.hidden_size, kernel_initializer=initializer, dtype=self.dtype_policy, name="dense"
        )
        self.activation = activation(config.hidden_act)
        self.norm = LayerNorm(config, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build(input_shape)

    def call(self, x):
        """[..., H] -> [..., H]."""
        return self.norm(self.activation(self.dense(x)))


class MaskedLMHead(keras.layers.Layer):
    """Scores the whole vocabulary at chosen positions, with the word embeddings as output weights."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(name="predictions", **kwargs)
        self.config = config
        self.transform = Transform(config, initializer, dtype=self.dtype_policy, name="transform")
        with keras.name_scope("cls"):
            self.build()

    def build(self, input_shape=None):
        self.transform.build((None, None, self.config.hidden_size))
        self.output_bias = self.add_weight(name="output_bias", shape=(self.config.vocab_size,), initializer="zeros")

    def call(self, sequence_output, positions, embedding_table):
        """Predicts tokens.

        Args:
            sequence_output: [B, T, H].
            positions: int [B, P], where to predict. Only these reach the product with the vocabulary, which at
                every position would be the largest of the whole network.
            embedding_table: [V, H].

        Returns:
            Logits [B, P, V].
        """
        masked = tf.gather(sequence_output, positions, batch_dims=1)  # [B, P, H]
        # As rows of one matrix, so that the product takes its bias along.
        rows = self.transform(tf.reshape(masked, [-1, self.config.hidden_size]))  # [B * P, H]
        logits = tf.nn.bias_add(tf.matmul(rows, embedding_table, transpose_b=True), self.output_bias)
        return tf.reshape(logits, tf.concat([tf.shape(positions), [self.config.vocab_size]], axis=0))
