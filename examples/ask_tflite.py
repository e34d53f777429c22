"""Asks a classifier that was exported for phones, as an app would:

    python -m examples.ask_tflite phone/sst2/model_dynamic_int8.tflite 'What a charming film.' 'A waste of time.'

Beside the model lie vocab.txt and bert_task.json, which export_model.py writes: the pieces behind the ids, and the
labels behind the probabilities. An app does in its own language what the few lines here do.
"""

import json
import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from data.tokenization import FullTokenizer


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    model = Path(sys.argv[1])
    settings = json.loads((model.parent / "bert_task.json").read_text(encoding="utf-8"))
    tokenizer = FullTokenizer(model.parent / "vocab.txt", settings["do_lower_case"])
    ask = Interpreter(str(model)).get_signature_runner()
    length = ask.get_input_details()["input_ids"]["shape"][1]
    for text in sys.argv[2:]:
        pieces = ["[CLS]", *tokenizer.tokenize(text)[: length - 2], "[SEP]"]
        ids = np.zeros([1, length], np.int32)
        ids[0, : len(pieces)] = tokenizer.convert_tokens_to_ids(pieces)
        mask = np.int32(np.arange(length) < len(pieces))[np.newaxis]
        probabilities = ask(input_ids=ids, input_mask=mask, segment_ids=np.zeros_like(ids))["probabilities"][0]
        best = int(probabilities.argmax())
        print(f"{settings['labels'][best]} {probabilities[best]:.3f}  {text}")


if __name__ == "__main__":
    main()
