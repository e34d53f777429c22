"""What every task serves: strings, tokens or tf.Examples in, answers out, as TensorFlow graphs.

Axes in comments: B batch, T sequence length.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from data.example_records import SEQUENCES
from data.tokenization import FullTokenizer
from modeling.models import TaskModel
from tasks.settings import TaskSettings

TEXTS = tf.TensorSpec([None], tf.string)

# Sequences of a request run together up to so many tokens, padding counted. On a CPU, half of it is a seventh slower,
# and twice as many gain nothing; and attention of 512 sequences of 512 tokens would take gigabytes.
_TOKENS_AT_ONCE = 1024


class Service(tf.Module):
    """A trained model, ready to be saved. Each task has a class that says what it takes and how it answers.

    Attributes:
        outputs: what `run` gives, with the shape of all rows; a None behind the first is the length of the sequence.

    Args:
        model: with trained weights.
        tokenizer: of the model.
        settings: of the task.
    """

    outputs: ClassVar[Mapping[str, tf.TensorSpec]]

    def __init__(self, model: TaskModel, tokenizer: FullTokenizer, settings: TaskSettings):
        super().__init__()
        self.config, self.tokenizer, self.settings = model.config, tokenizer, settings
        self.precision = model.dtype_policy.compute_dtype
        # Variables of Keras are not TensorFlow's: a module that holds the model itself is saved so that TF Serving does
        # not find them.
        self._network = lambda batch: model(batch, training=False)
        self._weights = [variable.value for variable in model.variables]
        self._lengths = tf.constant(rounded_lengths(self.config.max_position_embeddings))

    def keep_weights(self, used: Iterable[tf.Variable]) -> None:
        """Lets go of weights that no graph uses, such as the pooler where every token has a label."""
        used = {variable.ref() for variable in used}
        self._weights = [weight for weight in self._weights if weight.ref() in used]

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """What `answer` takes, by name; strings."""
        raise NotImplementedError

    def samples(self) -> Sequence[dict[str, Any]]:
        """Some rows as `answer` takes them, to warm up with."""
        raise NotImplementedError

    def answer(self, **texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Strings -> answers, each [B, ...]. Any number of rows, of any length."""
        raise NotImplementedError

    def token_inputs(self) -> dict[str, tf.TensorSpec]:
        """What `answer_tokens` takes, by name."""
        return dict.fromkeys(SEQUENCES, tf.TensorSpec([None, None], tf.int32))

    def answer_tokens(self, **batch: tf.Tensor) -> dict[str, tf.Tensor]:
        """`input_ids`, `input_mask` and `segment_ids` -> what the network says of them."""
        return self.run_in_parts(self.without_padding_of_server(batch))

    def without_padding_of_server(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Masks what TF Serving fills up with where it joins requests: the first value of each row, [CLS] and its 1.

        And mends what would be an error for all who were joined: a row that is too long is cut, and an id that there is
        not is that of an unknown piece.
        """
        most = self.config.max_position_embeddings
        ids, mask, segments = (batch[name][..., :most] for name in SEQUENCES)
        is_padding = (ids == self.tokenizer.vocab["[CLS]"]) & (tf.range(tf.shape(ids)[-1]) > 0)
        is_id = (ids >= 0) & (ids < self.config.vocab_size)
        return {
            "input_ids": tf.where(is_id, ids, self.tokenizer.vocab["[UNK]"]),
            "input_mask": tf.where(is_padding, 0, mask),
            "segment_ids": tf.clip_by_value(segments, 0, self.config.type_vocab_size - 1),
        }

    def answer_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """tf.Examples as the scripts write them, string [B] -> what the network says of them."""
        return self.answer_tokens(**parse_examples(examples))

    def run(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the network says of `input_ids`, `input_mask` and `segment_ids`, int32 [B, T] each."""
        raise NotImplementedError

    def run_in_parts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`run`, with rows of about the same length together and no more padding than they need.

        No row has a say in the answers of another, in whatever company it runs.
        """
        num_rows = tf.shape(batch["input_ids"])[0]
        # With no row to run, nothing would tell how wide answers are: so there is always one, and it goes again.
        missing = tf.cast(num_rows == 0, tf.int32)
        batch = {name: tf.pad(batch[name], [[0, missing], [0, 0]]) for name in SEQUENCES}
        count, length = tf.unstack(tf.shape(batch["input_ids"]))
        # Of the last token that counts, since nothing says that a mask begins with its ones.
        ends = tf.reduce_max(tf.where(batch["input_mask"] > 0, tf.range(length) + 1, 1), axis=1)  # [B]
        ends = tf.gather(self._lengths, tf.searchsorted(self._lengths, ends))
        order = tf.argsort(ends)
        ends = tf.gather(ends, order)  # from the shortest row to the longest
        width = tf.maximum(length, ends[-1])
        batch = {name: tf.pad(ids, [[0, 0], [0, width - length]]) for name, ids in batch.items()}

        def run_part(number, first, results):
            num_tokens = tf.range(1, count - first + 1) * ends[first:]  # of the next row, of the next two, …
            fitting = tf.maximum(tf.searchsorted(num_tokens, [_TOKENS_AT_ONCE], side="right")[0], 1)
            last = first + tf.where(fitting > 8, fitting - fitting % 8, fitting) - 1  # few shapes, see rounded_lengths
            rows, longest = order[first : last + 1], ends[last]
            told = self.run({name: tf.gather(ids, rows)[:, :longest] for name, ids in batch.items()})
            told = [self._fill_up(name, told[name], width) for name in self.outputs]
            results = [result.write(number, value) for result, value in zip(results, told, strict=True)]
            return number + 1, last + 1, results

        empty = [
            tf.TensorArray(spec.dtype, 0, dynamic_size=True, element_shape=spec.shape, infer_shape=False)
            for spec in self.outputs.values()
        ]
        *_, results = tf.while_loop(
            lambda number, first, results: first < count, run_part, (0, 0, empty), parallel_iterations=1
        )
        places = tf.math.invert_permutation(order)[:num_rows]
        answers = {name: tf.gather(result.concat(), places) for name, result in zip(self.outputs, results, strict=True)}
        return {
            name: tf.ensure_shape(answer[:, :length] if self._is_of_tokens(name) else answer, self.outputs[name].shape)
            for name, answer in answers.items()
        }

    def _is_of_tokens(self, name: str) -> bool:
        """Whether an output has something to say of each token."""
        shape = self.outputs[name].shape
        return shape.rank >= 2 and shape[1] is None

    def _fill_up(self, name: str, told: tf.Tensor, length) -> tf.Tensor:
        """Zeros behind what was not run, so that all parts are as long as the batch."""
        if not self._is_of_tokens(name):
            return told
        paddings = [[0, 0], [0, length - tf.shape(told)[1]]] + [[0, 0]] * (told.shape.rank - 2)
        return tf.pad(told, paddings)


def rounded_lengths(most: int) -> list[int]:
    """Lengths to which sequences are filled up: every fourth up to 64, then eight to each doubling, and the most.

    What computes on CPUs (oneDNN) prepares itself for each new shape, which takes time, and keeps that, which takes
    memory. With any length a server would meet thousands of shapes; so, some hundreds. For the same reason more than
    eight rows run as a multiple of eight, and the others after them.

    Example:
        >>> rounded_lengths(80)
        [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 72, 80]
    """
    lengths = []
    length = 4
    while length < most:
        lengths.append(length)
        length += max(4, 2 ** (length.bit_length() - 1) // 8)
    return [*lengths, most]


def parse_examples(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """tf.Examples, string [B] -> int32 [B, T] each, T being the length of the longest."""
    parsed = tf.io.parse_example(serialized, {name: tf.io.RaggedFeature(tf.int64) for name in SEQUENCES})
    lengths = [ragged.bounding_shape(axis=1) for ragged in parsed.values()]
    longest = tf.reduce_max(tf.stack([*lengths, 1]))
    batch = {}
    for (name, ragged), length in zip(parsed.items(), lengths, strict=True):
        dense = tf.cast(ragged.to_tensor(), tf.int32)
        batch[name] = tf.pad(dense, [[0, 0], [0, longest - length]])
    return batch
