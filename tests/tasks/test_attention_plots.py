import struct

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from tasks import attention_plots
from tasks.attention_plots import MOST_PIECES, draw_layer, write_plots
from tasks.vectors import TextEncoder

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "wave", "##s", "$", "빛"]


@pytest.fixture(scope="module")
def encoder():
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=6,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=8,
        max_position_embeddings=100,
        initializer_range=0.5,
    )
    tokenizer = FullTokenizer(vocab={token: number for number, token in enumerate(VOCAB)}, do_lower_case=False)
    return TextEncoder(BertEncoder(config, seed=1), tokenizer)


def size_of(path) -> tuple[int, int]:
    """Width and height as the header of a PNG tells them."""
    start = path.read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", start[16:])


def names_in(directory) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_every_head_with_its_name_its_weights_and_its_tokens():
    tokens = ["[CLS]", "the", "wave", "##s", "$", "$", "[SEP]"]
    probabilities = np.random.default_rng(0).dirichlet(np.ones(7), size=(5, 7))  # [N, F, T]
    figure = draw_layer(tokens, probabilities, layer=11)
    *panels, scale = figure.axes
    assert [panel.get_title() for panel in panels] == [f"layer 11, head {head}" for head in range(5)]
    for panel, expected in zip(panels, probabilities, strict=True):
        [image] = panel.images
        np.testing.assert_array_equal(image.get_array(), expected)
        rows, columns = panel.texts[:7], panel.texts[7:]
        # Beside the rows and below the columns they name.
        assert [(text.get_text(), text.get_position()[1]) for text in rows] == list(zip(tokens, range(7), strict=True))
        assert [(text.get_text(), text.get_position()[0]) for text in columns] == list(
            zip(tokens, range(7), strict=True)
        )
        assert {text.get_position()[0] for text in rows} == {-0.75}
        assert {text.get_position()[1] for text in columns} == {6.75}
    assert not scale.images and figure.get_supylabel() == "piece that attends"


@pytest.mark.parametrize(("heads", "count"), [(1, 2), (5, 20), (12, 3)])
def test_nothing_lies_on_anything_else(heads, count):
    """All panels and their labels, the two labels of the whole, and the scale, in the dots of the picture."""
    tokens = ["[CLS]", "##quarrelsome", *["waves"] * (count - 2)]
    figure = draw_layer(tokens, np.full((heads, count, count), 1 / count), layer=0)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [axes.get_window_extent(renderer) for axes in figure.axes]
    boxes += [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.get_title()]
    boxes += [axes.texts[place].get_window_extent(renderer) for axes in figure.axes[:-1] for place in (1, count + 1)]
    boxes += [text.get_window_extent(renderer) for text in figure.texts]
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_a_text_has_a_picture_for_each_layer(encoder, tmp_path):
    done = []
    paths = write_plots(tmp_path / "new" / "pictures", encoder, {1: ("the ships", "$ waves $")}, progress=done.append)
    assert paths == [tmp_path / "new" / "pictures" / name for name in ("layer-00.png", "layer-01.png")]
    assert names_in(tmp_path) == ["new/pictures/layer-00.png", "new/pictures/layer-01.png"]  # and nothing aside
    assert done == [1, 1]
    for path in paths:
        width, height = size_of(path)
        assert 400 < width < 1200 and 400 < height < 1200
        assert path.stat().st_size > 10_000


def test_texts_have_directories_and_layers_are_chosen(encoder, tmp_path):
    paths = write_plots(tmp_path, encoder, {1: "the ship", 7: "waves"}, layers=[-1])
    assert names_in(tmp_path) == ["line-01/layer-01.png", "line-07/layer-01.png"]
    assert [str(path.relative_to(tmp_path)) for path in paths] == names_in(tmp_path)


def test_a_long_text_is_refused_before_anything_is_drawn(encoder, tmp_path):
    texts = {1: "the ship", 2: "the " * (MOST_PIECES - 2), 3: "the " * (MOST_PIECES - 1)}
    with pytest.raises(ValueError, match="Line 3 has 65 pieces.* more than 64 .* --max_seq_length=64"):
        write_plots(tmp_path, encoder, texts)
    assert names_in(tmp_path) == []


def test_a_picture_that_is_not_whole_is_not_there(encoder, tmp_path, monkeypatch):
    (tmp_path / "layer-00.png").write_text("before")

    def fail(figure):
        raise RuntimeError("the power is off")

    monkeypatch.setattr(attention_plots, "_png", fail)
    with pytest.raises(RuntimeError, match="power"):
        write_plots(tmp_path, encoder, {1: "the ship"})
    assert names_in(tmp_path) == ["layer-00.png"] and (tmp_path / "layer-00.png").read_text() == "before"


def test_letters_that_no_font_has_are_told_once(encoder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(attention_plots, "_FONTS", ("DejaVu Sans",))
    write_plots(tmp_path, encoder, {1: "the ship", 2: "빛"})
    assert caplog.text.count("some are drawn as boxes") == 1
    caplog.clear()
    write_plots(tmp_path, encoder, {1: "the ship"})
    assert "boxes" not in caplog.text
