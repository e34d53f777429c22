"""The BERT encoder: token ids in, a vector for each token and one for the sequence out."""

import keras
import tensorflow as tf

from modeling.config import BertConfig
from modeling.layers import MASK_PENALTY, Embeddings, Pooler, TransformerStack


@keras.saving.register_keras_serializable(package="bert")
class BertEncoder(keras.Model):
    """Embeddings, a stack of transformer blocks, and a pooler, as in the original release.

    Its variables have the names of Google's checkpoints (`variable.path`) from the moment it is constructed.

    Example:
        >>> encoder = BertEncoder(BertConfig.preset("tiny"))
        >>> outputs = encoder({"input_ids": tf.constant([[101, 7592, 102]])})
        >>> outputs["sequence_output"].shape
        TensorShape([1, 3, 128])

    Args:
        config: the shape of the network.
        recompute: keep only the input of each block for the backward pass and compute the rest again: a third more
            arithmetic for a fraction of the memory. The gradients are the same.
        seed: seed of the initial weights and of dropout; None draws one.
        dtype: a Keras dtype policy, e.g. "mixed_bfloat16"; None takes Keras' global one.
    """

    def __init__(self, config: BertConfig, recompute: bool = False, seed=None, dtype=None, name="bert", **kwargs):
        super().__init__(dtype=dtype, name=name, **kwargs)
        self.config = config
        self.recompute = recompute
        self.seed = seed
        # One generator for all weights: an initializer of its own for each would repeat itself under a fixed seed.
        initializer = weight_initializer(config, keras.random.SeedGenerator(seed))
        self.embeddings = Embeddings(config, initializer, dtype=self.dtype_policy, name="embeddings")
        self.encoder = TransformerStack(config, initializer, recompute, dtype=self.dtype_policy, name="encoder")
        self.pooler = Pooler(config, initializer, dtype=self.dtype_policy, name="pooler")
        self.dropout_seeds = keras.random.SeedGenerator(seed)
        self.build()

    def build(self, input_shape=None):
        hidden = (None, None, self.config.hidden_size)
        self.embeddings.build(None)
        self.encoder.build(hidden)
        self.pooler.build(hidden)

    @property
    def embedding_table(self) -> keras.Variable:
        """The word embeddings, [vocab, H], which the masked LM head shares."""
        return self.embeddings.word_embeddings

    def next_dropout_seed(self):
        """A fresh seed, int32 [2], for one training step; another one in each replica."""
        seed = tf.cast(self.dropout_seeds.next(), tf.int32)
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return seed
        return tf.random.experimental.stateless_fold_in(seed, replica.replica_id_in_sync_group)

    def call(self, inputs, training=None, dropout_seed=None, return_attention=False):
        """Encodes a batch.

        Args:
            inputs: dict of int tensors [B, T]: `input_ids`, and optionally `input_mask` (1 for tokens, 0 for padding;
                all 1 when missing) and `segment_ids` (all 0 when missing).
            training: whether to drop out.
            dropout_seed: int32 [2], the seed of this call's dropout; drawn from the encoder's generator when missing.
            return_attention: also return the attention probabilities of every block.

        Returns:
            A dict:
                sequence_output: [B, T, H], the output of the last block.
                pooled_output: [B, H].
                all_layers: list of [B, T, H], the output of every block.
                embedding_output: [B, T, H], what goes into the first block.
                attention_probs: list of [B, N, F, T], only with `return_attention`; no gradient goes through them.
        """
        # Cast, because Keras at times builds a model with floats.
        input_ids = self._checked(tf.cast(inputs["input_ids"], tf.int32))
        input_mask = tf.cast(inputs.get("input_mask", tf.ones_like(input_ids)), tf.int32)
        segment_ids = tf.cast(inputs.get("segment_ids", tf.zeros_like(input_ids)), tf.int32)

        embedding_seed = block_seeds = None
        if training:
            dropout_seed = self.next_dropout_seed() if dropout_seed is None else dropout_seed
            seeds = tf.random.experimental.stateless_split(dropout_seed, 1 + 3 * self.config.num_hidden_layers)
            embedding_seed, block_seeds = seeds[0], tf.reshape(seeds[1:], [self.config.num_hidden_layers, 3, 2])

        mask_penalty = self._mask_penalty(input_mask)
        embedding_output = self.embeddings(input_ids, segment_ids, embedding_seed)  # [B, T, H]
        all_layers, attention = self.encoder(
            embedding_output, mask_penalty, block_seeds, return_attention=return_attention
        )
        outputs = {
            "sequence_output": all_layers[-1],
            "pooled_output": self.pooler(all_layers[-1], input_mask),
            "all_layers": all_layers,
            "embedding_output": embedding_output,
        }
        return outputs | {"attention_probs": attention} if return_attention else outputs

    def _mask_penalty(self, input_mask):
        """[B, T] -> [B, 1, 1, T], for every head and position that attends; [B, 1, F, T] when attention is causal."""
        is_seen = tf.cast(input_mask, self.compute_dtype)[:, tf.newaxis, tf.newaxis, :]
        if self.config.attention == "causal":
            length = tf.shape(input_mask)[1]
            is_seen *= tf.linalg.band_part(tf.ones([length, length], self.compute_dtype), -1, 0)
        return (1.0 - is_seen) * MASK_PENALTY

    def _checked(self, input_ids):
        """Refuses sequences beyond the learned positions: at once where the length is known, else when it runs."""
        limit = self.config.max_position_embeddings
        message = "The sequences have {} tokens, but this model has learned positions for {} (max_position_embeddings)."
        length = input_ids.shape[1]
        if length is None:
            message = message.format("more", limit)
            check = tf.debugging.assert_less_equal(tf.shape(input_ids)[1], limit, message)
            # Nothing may run before it is known: whatever fails first is told.
            with tf.control_dependencies([check]):
                return tf.identity(input_ids)
        if length > limit:
            raise ValueError(message.format(length, limit) + " Shorten them, or build a longer model.")
        return input_ids

    def get_config(self):
        config = {"config": self.config.to_dict(), "recompute": self.recompute, "seed": self.seed}
        return super().get_config() | config

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"config": BertConfig.from_dict(config["config"])})


def weight_initializer(config: BertConfig, seeds: keras.random.SeedGenerator):
    """Normal, cut off at two deviations, as all weights but biases and norms of the original start."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range, seed=seeds)
