"""Multiple choice as a service: contexts with their endings in, the probability of each ending out.

Axes in comments: B contexts, C endings of each, T sequence length.
"""

from pathlib import Path

import tensorflow as tf

from data.example_records import SEQUENCES
from data.graph_packing import SentencePacker
from data.graph_tokenization import GraphTokenizer
from data.tokenization import FullTokenizer
from modeling.models import ChoiceModel
from serving.service import TEXTS, Service, parse_examples
from tasks.asking import load_trained
from tasks.choices import ChoiceSettings


class ChoiceService(Service):
    """Chooses endings: what `ChoicePredictor` does in Python.

    Args:
        model, tokenizer, settings: see `Service`.
    """

    outputs = {"logits": tf.TensorSpec([None], tf.float32)}

    def __init__(self, model: ChoiceModel, tokenizer: FullTokenizer, settings: ChoiceSettings):
        super().__init__(model, tokenizer, settings)
        self._graph_tokenizer = GraphTokenizer(tokenizer)
        self._pack = SentencePacker(tokenizer.vocab, settings.max_seq_length, pad_to_longest=True)

    @classmethod
    def load(cls, output_dir: str | Path, dtype: str = "float32") -> "ChoiceService":
        """Loads the --output_dir of run_multiple_choice.py."""
        settings = ChoiceSettings.load(output_dir)
        model, tokenizer = load_trained(
            output_dir, settings.do_lower_case, lambda config: ChoiceModel(config, dtype=dtype)
        )
        return cls(model, tokenizer, settings)

    def inputs(self):
        return {"context": TEXTS, "endings": tf.TensorSpec([None, self.settings.num_choices], tf.string)}

    def samples(self):
        endings = [f"This is ending number {number}." for number in range(self.settings.num_choices)]
        return [{"context": "Somebody begins.", "endings": endings}]

    def answer(self, context, endings):
        tf.debugging.assert_equal(tf.size(context), tf.shape(endings)[0], "context and endings need as many rows.")
        contexts = self._graph_tokenizer.tokenize(tf.repeat(context, self.settings.num_choices))  # [B * C, (pieces)]
        rows = self._pack(contexts, self._graph_tokenizer.tokenize(tf.reshape(endings, [-1])))
        return self._choose(self.run_in_parts(rows.batch)["logits"])

    def token_inputs(self):
        return dict.fromkeys(SEQUENCES, tf.TensorSpec([None, self.settings.num_choices, None], tf.int32))

    def answer_tokens(self, **batch):
        batch = self.without_padding_of_server(batch)
        flat = {name: tf.reshape(ids, [-1, tf.shape(ids)[-1]]) for name, ids in batch.items()}  # [B * C, T]
        return self._choose(self.run_in_parts(flat)["logits"])

    def answer_examples(self, examples):
        # The sequences of an example stand one behind the other.
        flat = parse_examples(examples)  # [B, C * T]
        count, total = tf.unstack(tf.shape(flat["input_ids"]))
        choices = self.settings.num_choices
        length = -(-total // choices)
        paddings = [[0, 0], [0, length * choices - total]]
        return self.answer_tokens(
            **{name: tf.reshape(tf.pad(ids, paddings), [count, choices, length]) for name, ids in flat.items()}
        )

    def run(self, batch):
        one_choice_each = {name: ids[:, tf.newaxis] for name, ids in batch.items()}  # [B * C, 1, T]
        return {"logits": tf.cast(self._network(one_choice_each), tf.float32)[:, 0]}

    def _choose(self, logits):
        logits = tf.reshape(logits, [-1, self.settings.num_choices])  # [B, C]
        probabilities = tf.nn.softmax(logits)
        return {
            "label": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
            "logits": logits,
            "probabilities": probabilities,
        }
