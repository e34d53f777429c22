"""Asks an exported model, with nothing but TensorFlow and tensorflow-text:

    python examples/ask_saved_model.py export/sst2 'What a charming film.' 'A waste of time.'

The first argument is the directory of a model; the newest of its versions is asked. A model with several inputs, such
as `text` and `text_pair`, takes them in turn.
"""

import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the ops of the tokenizer


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    versions = [path for path in Path(sys.argv[1]).iterdir() if path.name.isdigit()]
    model = tf.saved_model.load(max(versions, key=lambda path: int(path.name)))
    answer = model.signatures["serving_default"]
    names = [spec.name for spec in answer.structured_input_signature[1].values()]
    rows = {name: tf.constant(sys.argv[2 + number :: len(names)]) for number, name in enumerate(names)}
    for name, values in answer(**rows).items():
        print(name, values.numpy().tolist())


if __name__ == "__main__":
    main()
