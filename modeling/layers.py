"""The layers of the encoder. Their names nest as the variable scopes of the original did.

A layer named "self" inside one named "attention" inside "layer_0" holds the variable
`bert/encoder/layer_0/attention/self/query/kernel`, which is its name in Google's checkpoints. So that this holds in
whatever model a layer ends up, the outermost layer builds all of its variables when it is constructed.

Axes, in comments beside tensors:
    B  batch          T  length of the sequence (F where it is the side that attends, T the side attended to)
    H  hidden size    N  attention heads    D  size of a head    I  intermediate size
    R  rows, B * T: within the blocks all tokens of a batch are the rows of one matrix, as in the original. A product of
       two matrices takes its bias, and outside of training its gelu, along on the way; one of a batch does not.
"""

import keras
import tensorflow as tf

from modeling.config import BertConfig
from modeling.functions import (
    attention,
    dropout,
    erf_gelu,
    layer_norm,
    plain_erf_gelu,
    plain_tanh_gelu,
    residual_norm,
    tanh_gelu,
    widening_product,
)

# Added to the attention scores of padding before the softmax. The original chose -10000 and not -infinity, so a row
# without any real token attends evenly to everything instead of being NaN.
MASK_PENALTY = -10000.0


def activation(name: str, is_training: bool = True):
    """The function behind a `hidden_act` of `BertConfig`."""
    functions = {
        "gelu": tanh_gelu if is_training else plain_tanh_gelu,
        "gelu_erf": erf_gelu if is_training else plain_erf_gelu,
        "relu": tf.nn.relu,
        "tanh": tf.tanh,
        "silu": tf.nn.silu,
        "linear": tf.identity,
    }
    return functions[name]


class LayerNorm(keras.layers.Layer):
    """Shifts and scales each vector to mean 0 and variance 1, then by what was learned; always in float32."""

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(name="LayerNorm", **kwargs)
        self.epsilon = config.layer_norm_eps
        self.wide_dtype = keras.backend.result_type(self.compute_dtype, "float32")

    def build(self, input_shape):
        self.gamma = self.add_weight(name="gamma", shape=input_shape[-1:], initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=input_shape[-1:], initializer="zeros", autocast=False)

    def call(self, x):
        """[..., H] -> [..., H]."""
        normed = layer_norm(tf.cast(x, self.wide_dtype), *self._scale_and_shift(), self.epsilon)
        return tf.cast(normed, self.compute_dtype)

    def _scale_and_shift(self):
        return (tf.cast(weight, self.wide_dtype) for weight in (self.gamma, self.beta))  # [H] each


class ResidualNorm(LayerNorm):
    """The norm of a sum: what comes out of a projection, dropped out, and what went around it."""

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.dropout_rate = config.hidden_dropout_prob

    def call(self, x, residual, dropout_seed=None):
        """[..., H], [..., H] -> [..., H]."""
        if dropout_seed is None:  # outside of training, the product before it takes the sum along
            return super().call(x + residual)
        return residual_norm(x, residual, *self._scale_and_shift(), self.epsilon, self.dropout_rate, dropout_seed)


class Embeddings(keras.layers.Layer):
    """Sum of word, segment and position embeddings, normalised."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.initializer = initializer
        self.norm = LayerNorm(config, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        hidden = self.config.hidden_size
        self.word_embeddings = self.add_weight(
            name="word_embeddings", shape=(self.config.vocab_size, hidden), initializer=self.initializer
        )
        self.token_type_embeddings = self.add_weight(
            name="token_type_embeddings", shape=(self.config.type_vocab_size, hidden), initializer=self.initializer
        )
        self.position_embeddings = self.add_weight(
            name="position_embeddings",
            shape=(self.config.max_position_embeddings, hidden),
            initializer=self.initializer,
        )
        self.norm.build((None, None, hidden))

    def call(self, input_ids, segment_ids, dropout_seed=None):
        """int [B, T] twice -> float [B, T, H]."""
        words = tf.gather(tf.convert_to_tensor(self.word_embeddings), input_ids)  # [B, T, H]
        # Few segments and many tokens: a matmul with one-hot rows has a dense and cheap gradient, as in the original.
        one_hot = tf.one_hot(segment_ids, self.config.type_vocab_size, dtype=self.compute_dtype)  # [B, T, types]
        segments = tf.matmul(one_hot, tf.convert_to_tensor(self.token_type_embeddings))  # [B, T, H]
        positions = self.position_embeddings[: tf.shape(input_ids)[1]]  # [T, H]
        return dropout(self.norm(words + segments + positions), self.config.hidden_dropout_prob, dropout_seed)


class SelfAttention(keras.layers.Layer):
    """Each position takes a mean of the values of all positions, weighted by how well its query fits their keys."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        dense = {"units": config.hidden_size, "kernel_initializer": initializer, "dtype": self.dtype_policy}
        self.query = keras.layers.Dense(name="query", **dense)
        self.key = keras.layers.Dense(name="key", **dense)
        self.value = keras.layers.Dense(name="value", **dense)

    def build(self, input_shape):
        for dense in (self.query, self.key, self.value):
            dense.build(input_shape)

    def call(self, hidden, mask_penalty, dropout_seed=None):
        """Attends.

        Args:
            hidden: float [R, H].
            mask_penalty: float [B, 1, 1, T] (or [B, 1, F, T]), added to the scores.
            dropout_seed: seed of the dropout on the probabilities, or None.

        Returns:
            The weighted values, [R, H], and the probabilities before dropout, [B, N, F, T].
        """
        shape = tf.shape(mask_penalty)
        split = [shape[0], shape[3], self.config.num_attention_heads, self.config.head_size]  # B, T, N, D
        query, key, value = (
            tf.transpose(tf.reshape(dense(hidden), split), [0, 2, 1, 3])  # [B, N, T, D]
            for dense in (self.query, self.key, self.value)
        )
        context, probabilities = attention(
            query * self.config.head_size**-0.5,
            key,
            value,
            mask_penalty,
            self.config.attention_probs_dropout_prob,
            dropout_seed,
        )
        return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), tf.shape(hidden)), probabilities


class ResidualOutput(keras.layers.Layer):
    """A projection to the hidden size, dropped out, added to what went around the block, and normalised."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(
            config.hidden_size, kernel_initializer=initializer, dtype=self.dtype_policy, name="dense"
        )
        self.norm = ResidualNorm(config, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build((None, None, self.dense.units))

    def call(self, x, residual, dropout_seed=None):
        """[R, H or I], [R, H] -> [R, H]."""
        return self.norm(self.dense(x), residual, dropout_seed)


class Attention(keras.layers.Layer):
    """Self-attention and its residual output."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.attend = SelfAttention(config, initializer, dtype=self.dtype_policy, name="self")
        self.project = ResidualOutput(config, initializer, dtype=self.dtype_policy, name="output")

    def build(self, input_shape):
        self.attend.build(input_shape)
        self.project.build(input_shape)

    def call(self, hidden, mask_penalty, dropout_seeds=(None, None)):
        context, probabilities = self.attend(hidden, mask_penalty, dropout_seeds[0])
        return self.project(context, hidden, dropout_seeds[1]), probabilities


class WideningDense(keras.layers.Dense):
    """A dense layer with more units than inputs."""

    def call(self, x):
        """[R, H] -> [R, I]."""
        return tf.nn.bias_add(widening_product(x, tf.convert_to_tensor(self.kernel)), self.bias)


class Intermediate(keras.layers.Layer):
    """The wide layer between two attentions."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.dense = WideningDense(
            config.intermediate_size, kernel_initializer=initializer, dtype=self.dtype_policy, name="dense"
        )
        self.hidden_act = config.hidden_act

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, hidden, training=False):
        """[R, H] -> [R, I]."""
        return activation(self.hidden_act, training)(self.dense(hidden))


class TransformerLayer(keras.layers.Layer):
    """One block of the encoder: attention, then two dense layers, each normalised after its residual sum."""

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.attention = Attention(config, initializer, dtype=self.dtype_policy, name="attention")
        self.intermediate = Intermediate(config, initializer, dtype=self.dtype_policy, name="intermediate")
        self.project = ResidualOutput(config, initializer, dtype=self.dtype_policy, name="output")

    def build(self, input_shape):
        self.attention.build(input_shape)
        self.intermediate.build(input_shape)
        self.project.build((*input_shape[:-1], self.config.intermediate_size))

    def call(self, hidden, mask_penalty, dropout_seeds=(None, None, None)):
        """[R, H] -> [R, H] and the attention probabilities [B, N, F, T]."""
        attended, probabilities = self.attention(hidden, mask_penalty, dropout_seeds[:2])  # [R, H]
        wide = self.intermediate(attended, training=dropout_seeds[0] is not None)  # [R, I]
        return self.project(wide, attended, dropout_seeds[2]), probabilities


class TransformerStack(keras.layers.Layer):
    """The blocks one after another, with their activations kept or, to save memory, computed again when needed."""

    def __init__(self, config: BertConfig, initializer, recompute: bool, **kwargs):
        super().__init__(**kwargs)
        self.recompute = recompute
        self.blocks = [
            TransformerLayer(config, initializer, dtype=self.dtype_policy, name=f"layer_{i}")
            for i in range(config.num_hidden_layers)
        ]

    def build(self, input_shape):
        for block in self.blocks:
            block.build(input_shape)

    def call(self, hidden, mask_penalty, dropout_seeds=None, return_attention=False):
        """Runs the blocks.

        Args:
            hidden: float [B, T, H].
            mask_penalty: float [B, 1, 1, T].
            dropout_seeds: int [layers, 3, 2], three seeds a block, or None for no dropout.
            return_attention: keep the probabilities too; the blocks are then not recomputed.

        Returns:
            The outputs of the blocks, a list of [B, T, H], and their probabilities, a list of [B, N, F, T] or empty.
        """
        shape, outputs, attention = tf.shape(hidden), [], []
        hidden = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [R, H]
        for i, block in enumerate(self.blocks):
            seeds = (None, None, None) if dropout_seeds is None else tuple(tf.unstack(dropout_seeds[i], num=3))
            if self.recompute and not return_attention:
                hidden = _recomputed(block)(hidden, mask_penalty, seeds)
            else:
                hidden, probabilities = block(hidden, mask_penalty, seeds)
                if return_attention:
                    attention.append(probabilities)
            outputs.append(tf.reshape(hidden, shape))
        return outputs, attention


class Pooler(keras.layers.Layer):
    """One vector for the sequence: a tanh layer on its first token, [CLS].

    Where attention is causal, [CLS] has seen nothing but itself. The last token that is no padding has seen everything,
    so it stands for the sequence there.
    """

    def __init__(self, config: BertConfig, initializer, **kwargs):
        super().__init__(**kwargs)
        self.is_causal = config.attention == "causal"
        self.dense = keras.layers.Dense(
            config.hidden_size,
            activation="tanh",
            kernel_initializer=initializer,
            dtype=self.dtype_policy,
            name="dense",
        )

    def build(self, input_shape):
        self.dense.build((None, input_shape[-1]))

    def call(self, sequence_output, input_mask):
        """[B, T, H], int [B, T] -> [B, H]."""
        if self.is_causal:
            last = tf.maximum(tf.reduce_sum(input_mask, axis=-1) - 1, 0)  # [B]
            return self.dense(tf.gather(sequence_output, last, batch_dims=1))
        return self.dense(sequence_output[:, 0])


def _recomputed(block: TransformerLayer):
    """`block` as a function that keeps only its input and runs a second time in the backward pass."""

    def run(hidden, mask_penalty, seeds):
        def outputs(hidden, mask_penalty):
            # Masks of dropout follow from their seeds alone, so TensorFlow would see that the second run needs those of
            # the first, and keep them: with this, it cannot know that the seeds are the same.
            with tf.control_dependencies([hidden]):
                own_seeds = [seed if seed is None else tf.identity(seed) for seed in seeds]
            return block(hidden, mask_penalty, own_seeds)[0]

        # The seeds come in by closure and not as arguments: a gradient tape refuses to watch integers.
        return tf.recompute_grad(outputs)(hidden, mask_penalty)

    return run
