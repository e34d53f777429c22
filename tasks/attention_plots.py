"""Pictures of attention: for each layer a grid of its heads, and in each of them which piece attends to which.

Axes in comments: N attention heads, F pieces that attend, T pieces attended to.
"""

import io
import logging
import math
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colors, font_manager
from matplotlib.figure import Figure  # not pyplot, which keeps global state and looks for a screen

from tasks.vectors import Progress, Text, TextEncoder
from training.state import write_bytes

# A picture of 12 heads is then some 4,000 dots wide, and a larger one is hard to find one's way in.
MOST_PIECES = 64

_INCHES_OF_PIECE = 0.15
_LABEL_POINTS = 7
_INCHES_OF_LETTER = 0.07
_DOTS_PER_INCH = 100

# Matplotlib brings the first one, which lacks Hangul, kana and Chinese characters. The others have them, and are taken
# where they are installed.
_FONTS = ("DejaVu Sans", "Noto Sans CJK KR", "Noto Sans KR", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")
_FONTS += ("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei")


def write_plots(
    directory: str | Path,
    encoder: TextEncoder,
    texts: Mapping[int, Text],
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Draws the attention of texts: `layer-00.png` and so on, in `line-07` for each text where there are several.

    Nothing is drawn if one of the texts has too many pieces. Each picture appears when it is whole.

    Args:
        directory: of the pictures; is made if it is not there.
        encoder: with trained weights.
        texts: by their numbers.
        layers: which ones, 0 is the first and -1 the last; all if not set.
        progress: is called with 1 after each picture.

    Returns:
        The pictures, in the order of the texts.
    """
    rows = list(encoder.rows(texts.values()))
    for number, row in zip(texts, rows, strict=True):
        if len(row.input_ids) > MOST_PIECES:
            raise ValueError(
                f"Line {number} has {len(row.input_ids)} pieces, [CLS] and [SEP] among them. A picture of more than "
                f"{MOST_PIECES} is not legible. Shorten the text, or have it cut by --max_seq_length={MOST_PIECES}."
            )
    paths, is_complete = [], True
    for number, attention in zip(texts, encoder.attention_of_rows(rows, layers, batch_size=1), strict=True):
        place = Path(directory) / f"line-{number:02}" if len(texts) > 1 else Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        for layer, probabilities in zip(attention.layers, attention.probabilities, strict=True):
            paths.append(place / f"layer-{layer:02}.png")
            picture, has_all_letters = _png(draw_layer(attention.tokens, probabilities, layer))
            is_complete &= has_all_letters
            write_bytes(paths[-1], picture)
            if progress is not None:
                progress(1)
    if not is_complete:
        logging.getLogger(__name__).warning(
            "No font of this machine has all letters of the text: some are drawn as boxes. Install one that has, for "
            "instance Noto Sans CJK."
        )
    return paths


def draw_layer(tokens: Sequence[str], probabilities: np.ndarray, layer: int) -> Figure:
    """One layer: a panel for each head, a row for each piece that attends, a column for each attended to.

    Args:
        tokens: of the text.
        probabilities: [N, F, T], see `TextEncoder.attention`.
        layer: its number, for the titles.
    """
    columns = math.ceil(math.sqrt(len(probabilities)))
    lines = math.ceil(len(probabilities) / columns)
    # Places by hand, in inches: with so many labels, matplotlib's own layout takes twice the time.
    panel = max(_INCHES_OF_PIECE * len(tokens), 1.2)
    label = _INCHES_OF_LETTER * max(map(_width, tokens)) + 0.1
    left, below, title, gap, bar = 0.25, 0.25, 0.3, 0.2, 0.75
    width, height = left + columns * (label + panel + gap) + bar, below + lines * (label + panel + title)
    figure = Figure(figsize=(width, height))
    # The same colours in all pictures, so that they can be compared. By the square root, since most of the weights of
    # a long text are small, and would all be white.
    look = {"cmap": "Blues", "norm": colors.PowerNorm(0.5, vmin=0, vmax=1)}
    font = {"fontsize": _LABEL_POINTS, "fontfamily": _installed_fonts(), "parse_math": False}  # "$" is a token, too
    for head, weights in enumerate(probabilities):
        line, column = divmod(head, columns)
        x = left + column * (label + panel + gap) + label
        y = height - (line + 1) * (panel + title) - line * label
        axes = figure.add_axes((x / width, y / height, panel / width, panel / height))
        image = axes.imshow(weights, **look)
        axes.set_title(f"layer {layer}, head {head}", fontsize=9)
        axes.set(xticks=[], yticks=[])
        # As texts and not as ticks, which take twice the time; a quarter of a piece off the edge.
        for place, token in enumerate(tokens):
            axes.text(-0.75, place, token, ha="right", va="center", **font)
        for place, token in enumerate(tokens):
            axes.text(place, len(tokens) - 0.25, token, ha="center", va="top", rotation=90, **font)
    figure.supylabel("piece that attends", x=0.08 / width, ha="left", fontsize=9)
    figure.supxlabel("piece attended to", y=0.08 / height, va="bottom", fontsize=9)
    place = ((width - bar + 0.1) / width, (below + label) / height, 0.15 / width, 1 - (below + label + title) / height)
    scale = figure.colorbar(image, cax=figure.add_axes(place), ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    scale.ax.tick_params(labelsize=_LABEL_POINTS)
    return figure


def _png(figure: Figure) -> tuple[bytes, bool]:
    """The picture, and whether fonts had all of its letters."""
    file = io.BytesIO()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)
    return file.getvalue(), not any("missing from font" in str(warning.message) for warning in told)


def _width(token: str) -> int:
    """In letters; those of Chinese, Japanese and Korean are as wide as two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in token)


def _installed_fonts() -> list[str]:
    names = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _FONTS if name in names]
