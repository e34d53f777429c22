"""A corpus that every machine has: the documentation inside the installed Python packages.

    python -m examples.python_docs --output_dir=quickstart/corpus

Writes a text for each package, one sentence a line and an empty line between modules: real English prose, some
megabytes of it, with no download. And, to try a classifier on, train.tsv and dev.tsv in --table_dir: sentences, and the
package that each comes from.
"""

import ast
import inspect
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from absl import flags
from tqdm import tqdm

import command_line

_OUTPUT_DIR = flags.DEFINE_string("output_dir", "quickstart/corpus", "Where to write the texts.")
_TABLE_DIR = flags.DEFINE_string("table_dir", None, "Where to write sentences with their packages, if anywhere.")
_PACKAGES = flags.DEFINE_list(
    "packages",
    ["python", "numpy", "scipy", "sklearn", "keras", "apache_beam"],
    "Packages to read; python: its library.",
)

# What ends a sentence, what follows it, and what no prose contains.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_NOT_PROSE = re.compile(r">>>|^\s*[-=~^*|+#]{3}|^\s*\.\. |\s{3,}\S|[{}<>=\\|]{2}", re.MULTILINE)
_MARKUP = re.compile(r":[a-z:]+:`~?([^`<]*?)(?: <[^>]*>)?`|``?([^`]*)``?_*|\*\*?([^*\s][^*]*)\*\*?")


def sentences(docstring: str) -> Iterator[str]:
    """The sentences of the paragraphs that are prose, without markup."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        if _NOT_PROSE.search(paragraph):
            continue
        text = _MARKUP.sub(lambda match: next((group for group in match.groups() if group), ""), paragraph)
        for sentence in _SENTENCE_END.split(" ".join(text.split())):
            words = sentence.split()
            if len(words) >= 4 and sum(word.strip(".,;:()'\"").isalpha() for word in words) >= 0.7 * len(words):
                yield sentence


def documentation(file: Path) -> list[str]:
    """All sentences of the docstrings of a module. The file is read, never run."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    found = (sentence for docstring in docstrings if docstring for sentence in sentences(docstring))
    return list(dict.fromkeys(found))  # overloads repeat themselves


def modules(package: str) -> list[Path]:
    """The files of a package, its tests left out."""
    paths = sysconfig.get_paths()
    directory = Path(paths["stdlib"] if package == "python" else paths["purelib"]) / (
        "" if package == "python" else package
    )
    files = sorted(directory.rglob("*.py"))
    skipped = {"tests", "test", "testing", "site-packages", "__pycache__", "idlelib", "lib2to3"}
    return [file for file in files if skipped.isdisjoint(file.relative_to(directory).parts[:-1])]


def write_tables(directory: Path, by_package: dict[str, list[str]], train: int = 400, dev: int = 80) -> None:
    """Writes this many sentences of each package, at random, to train.tsv and dev.tsv; no sentence is in both."""
    rows: dict[str, list[str]] = {"train": [], "dev": []}
    rng = random.Random(1)
    for package, found in by_package.items():
        chosen = rng.sample(sorted({sentence.replace("\t", " ") for sentence in found}), train + dev)
        rows["train"] += [f"{sentence}\t{package}\n" for sentence in chosen[:train]]
        rows["dev"] += [f"{sentence}\t{package}\n" for sentence in chosen[train:]]
    directory.mkdir(parents=True, exist_ok=True)
    for name, lines in rows.items():
        (directory / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
        print(f"{directory / name}.tsv: {len(lines)} sentences of {len(by_package)} packages")


def main() -> None:
    output = Path(_OUTPUT_DIR.value)
    output.mkdir(parents=True, exist_ok=True)
    by_package: dict[str, list[str]] = {}
    for package in _PACKAGES.value:
        files = tqdm(modules(package), desc=f"Reading the documentation of {package}", unit=" modules")
        documents = [document for file in files if len(document := documentation(file)) >= 3]
        if package == "python":
            import pydoc_data.topics

            topics = (list(sentences(topic)) for topic in pydoc_data.topics.topics.values())
            documents += [document for document in topics if len(document) >= 3]
        by_package[package] = [sentence for document in documents for sentence in document]
        text = "\n\n".join("\n".join(document) for document in documents)
        (output / f"{package}.txt").write_text(text + "\n", encoding="utf-8")
        print(f"{package}: {len(documents)} documents, {sum(map(len, documents))} sentences, {len(text) / 1e6:.1f} MB")
    if _TABLE_DIR.value:
        write_tables(Path(_TABLE_DIR.value), by_package)


if __name__ == "__main__":
    command_line.run(main)
