"""Hugging Face's side of text. Runs in the environment of the peers."""

import time

import tokenizers

from benchmarks.peers.shapes import ids_fingerprint, read_lines


def pieces(text: str, vocab_file: str):
    """MB of text a second; on one thread, if the environment says so (RAYON_NUM_THREADS)."""
    lines = read_lines(text)
    megabytes = sum(len(line.encode()) for line in lines) / 1e6

    def measure(count: int) -> dict:
        tokenizer = tokenizers.BertWordPieceTokenizer(vocab_file, lowercase=True)
        begin = time.perf_counter()
        ids = [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
        seconds = time.perf_counter() - begin
        return {"value": megabytes / seconds, "fingerprint": ids_fingerprint(ids)}

    return measure
