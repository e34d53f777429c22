"""Splits a file of SQuAD by article: those that another file also has to evaluate on, the rest to train on.

    python -m examples.split_squad --input_file=dev-v2.0.json --eval_articles_of=devsplit-eval-v1.1.json \\
      --output_dir=out/squad-v2.0

Two sets that share articles can so be split alike, and no article is on both sides.
"""

import json
from pathlib import Path

from absl import flags

import command_line
from training.state import write_text

_INPUT_FILE = flags.DEFINE_string("input_file", None, "File of SQuAD to split.")
_EVAL_ARTICLES_OF = flags.DEFINE_string("eval_articles_of", None, "File of SQuAD whose articles are to evaluate on.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Gets train.json and eval.json.")


def read(path: str) -> dict:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def main() -> None:
    for flag in (_INPUT_FILE, _EVAL_ARTICLES_OF, _OUTPUT_DIR):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    whole = read(_INPUT_FILE.value)
    titles = {article["title"] for article in read(_EVAL_ARTICLES_OF.value)["data"]}
    parts = {
        "train": [article for article in whole["data"] if article["title"] not in titles],
        "eval": [article for article in whole["data"] if article["title"] in titles],
    }
    for name, articles in parts.items():
        if not articles:
            raise ValueError(f"No article of {_INPUT_FILE.value} is left for {name}.json: are the two files related?")
        path = Path(_OUTPUT_DIR.value) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(whole | {"data": articles}, ensure_ascii=False))
        questions = sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
        print(f"{path}: {len(articles)} articles, {questions} questions.")


if __name__ == "__main__":
    command_line.run(main)
