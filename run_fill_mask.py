"""What stands at [MASK]? And how likely is a text? Examples:

    python run_fill_mask.py --text='She opened the [MASK] and looked out.'
    python run_fill_mask.py --init_checkpoint=uncased_L-12_H-768_A-12 --score --text='It was late. ||| We went home.'

Texts come from --text, from --input_file or from standard input, one a line; `A ||| B` is a pair of sentences.
"""

import sys
from pathlib import Path

from absl import flags

import command_line
from data.text_files import read_lines
from flag_help import heading

command_line.offer_dry_run()

heading("Data")
_TEXT = flags.DEFINE_multi_string(
    "text", [], "Fill in this text, which has one or more [MASK]. It may be given several times."
)
_INPUT_FILE = flags.DEFINE_string("input_file", None, "Read texts from this file, one a line, instead of --text.")

heading("Model")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Ask this pre-trained model, which needs its masked LM head, in any format that run_pretraining.py takes. By "
    "default it is pretrained/bert-mini-books, the small one that comes with this project.",
)
_BERT_CONFIG_FILE = flags.DEFINE_string(
    "bert_config_file", None, "Read the config here, if it does not lie beside the weights."
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", None, "Read the vocabulary here, if it does not lie beside the weights."
)
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", None, "Whether to lower-case the text. By default the model tells.")

heading("Output")
_SCORE = flags.DEFINE_bool(
    "score",
    False,
    "Whether to tell, instead of filling in, the pseudo-perplexity of each text (each piece hidden in turn), and of a "
    "pair the probability that the second follows the first.",
)
_TOP_K = flags.DEFINE_integer("top_k", 5, "Print this many words for each [MASK].", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Run this many texts together.", lower_bound=1)


_BOOKS = Path(__file__).parent / "pretrained" / "bert-mini-books"


def texts() -> list[str]:
    if _TEXT.value and _INPUT_FILE.value:
        raise ValueError("Give texts by --text or by --input_file, not by both.")
    if _TEXT.value:
        return _TEXT.value
    lines = read_lines(_INPUT_FILE.value) if _INPUT_FILE.value else sys.stdin
    return [line for line in map(_decoded, lines) if line]


def _decoded(line: str | bytes) -> str:
    return (line.decode("utf-8", "ignore") if isinstance(line, bytes) else line).strip()


def main() -> None:
    command_line.load_tensorflow()  # late, so that --help does not wait for it
    from tasks.fill_mask import FillMask
    from training.memory_estimate import num_parameters

    lines = texts()
    pairs = [tuple(map(str.strip, line.split("|||", 1))) if "|||" in line else line for line in lines]
    checkpoint = _INIT_CHECKPOINT.value or str(_BOOKS)
    fill_mask = FillMask.load(checkpoint, _VOCAB_FILE.value, _BERT_CONFIG_FILE.value, _DO_LOWER_CASE.value)
    if command_line.is_dry_run():
        fill_mask.check(pairs, for_score=_SCORE.value)
        facts = {"model": checkpoint, "texts": f"{len(lines):,}"}
        command_line.end_dry_run(facts | command_line.weights_memory(4 * num_parameters(fill_mask.config)))
    if _SCORE.value:
        for line, score in zip(lines, fill_mask.score(pairs, _BATCH_SIZE.value), strict=True):
            follows = "" if score.follows is None else f"  follows {score.follows:.3f}"
            print(f"pseudo-perplexity {score.pseudo_perplexity:.2f}  pieces {score.num_pieces}{follows}  {line}")
        return
    for line, masks in zip(lines, fill_mask(pairs, _TOP_K.value, _BATCH_SIZE.value), strict=True):
        print(line)
        for candidates in masks:
            print("   " + "  ".join(f"{token} {probability:.3f}" for token, probability in candidates))


if __name__ == "__main__":
    command_line.run(main)
