"""TFLite models that take text. Their tokenizer is tensorflow-text's, as custom ops.

Whoever runs them needs those ops: `tflite_registrar.SELECT_TFTEXT_OPS` in Python, tensorflow-text's library on a phone.
TFLite has no regular expressions, so `GraphTokenizer` goes in only as far as it uses tensorflow-text's ops: ids are
those of training for texts of plain characters, as `PLAIN_WORD_CHARS` and `PLAIN_WORD_ENDS` of data.graph_tokenization
have them (Latin, Cyrillic, Hangul, kana, ideographs ...). In others, such as Greek, a few characters are normalized in
another way, and tokens of `never_split` are taken for words.
"""

import numpy as np
import tensorflow as tf

from data.graph_tokenization import GraphTokenizer
from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from serving.tflite import LiteModel, Outputs, Run, check_finite, check_length, check_mode, to_flatbuffer


def convert_text(
    run: Run,
    config: BertConfig,
    tokenizer: FullTokenizer,
    max_seq_length: int,
    mode: str = "float32",
    has_pairs: bool = False,
) -> bytes:
    """Converts a trained network and its tokenizer; a text that is too long is cut at its end.

    Args:
        run, config: see serving.tflite.convert.
        tokenizer: of the model.
        max_seq_length: every text is padded or cut to this many pieces, [CLS] and [SEP] among them.
        mode: float32, float16 or dynamic_int8.
        has_pairs: whether there is a second text; "" for none.

    Returns:
        A model of `text`, and of `text_pair`, string [1] each.
    """
    check_mode(mode)
    check_length(config, max_seq_length)
    least = 5 if has_pairs else 3
    if max_seq_length < least:
        raise ValueError(f"max_seq_length={max_seq_length} leaves no room for text: it should be at least {least}.")
    if mode == "int8":
        raise ValueError(
            "The ranges of int8 cannot be measured in a model of text, since what measures them does not have the ops "
            "of tensorflow-text. Use dynamic_int8, which is as small, or a model of ids."
        )
    if tokenizer.do_lower_case != tokenizer.strip_accents:
        raise ValueError(
            "TFLite's normalizer lower-cases and strips accents or does neither, but this tokenizer does one of the "
            "two. Convert a model of ids."
        )
    graph_tokenizer = GraphTokenizer(tokenizer)
    cls_id, sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]

    def answer(text, text_pair=None):
        pieces = graph_tokenizer.tokenize_plain(text).values
        pair = pieces[:0] if text_pair is None else graph_tokenizer.tokenize_plain(text_pair).values
        return dict(run(_pack(pieces, pair, cls_id, sep_id, max_seq_length)))

    names = ("text", "text_pair") if has_pairs else ("text",)
    specs = {name: tf.TensorSpec([1], tf.string, name=name) for name in names}
    concrete = tf.function(answer, autograph=False).get_concrete_function(**specs)
    content = to_flatbuffer(concrete, mode, custom_ops=True)
    check_finite(LiteTextModel(content)("a text", *(["another"] if has_pairs else [])), mode)
    return content


def _pack(a, b, cls_id: int, sep_id: int, max_seq_length: int):
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP] where there is a b, cut and padded: int32 [1, max_seq_length] each."""
    has_b = tf.minimum(tf.size(b), 1)
    room = max_seq_length - 2 - has_b
    # Pieces go one by one from the longer, and from the second if both are as long.
    keep_a = tf.minimum(tf.size(a), tf.maximum(room - tf.size(b), (room + has_b) // (1 + has_b)))
    keep_b = tf.minimum(tf.size(b), tf.maximum(room - tf.size(a), room // 2))
    first = tf.concat([[cls_id], a[:keep_a], [sep_id]], axis=0)
    ids = tf.concat([first, b[:keep_b], tf.fill([has_b], sep_id)], axis=0)
    positions = tf.range(max_seq_length)
    is_token = tf.cast(positions < tf.size(ids), tf.int32)
    is_second = tf.cast(positions >= tf.size(first), tf.int32) * is_token
    padded = tf.pad(ids, [[0, max_seq_length - tf.size(ids)]])
    arrays = {"input_ids": padded, "input_mask": is_token, "segment_ids": is_second}
    return {name: tf.reshape(array, [1, max_seq_length]) for name, array in arrays.items()}


class LiteTextModel(LiteModel):
    """A converted model of text.

    Args:
        model, num_threads: see `LiteModel`.
    """

    def __init__(self, model, num_threads: int = 1):
        from tensorflow_text.core.pybinds import tflite_registrar

        super().__init__(model, num_threads, tflite_registrar.SELECT_TFTEXT_OPS)

    def __call__(self, text: str, text_pair: str | None = None) -> Outputs:
        """What the model says of a text, or of two: by name, [1, ...]."""
        texts = {"text": text} if text_pair is None else {"text": text, "text_pair": text_pair}
        return self.invoke({name: np.array([value.encode("utf-8")], object) for name, value in texts.items()})
