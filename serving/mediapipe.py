"""What MediaPipe's text classifier and text embedder want to find in a TFLite model: metadata, vocabulary, labels.

The metadata is a flatbuffer of its own (MediaPipe's metadata_schema.fbs) in a buffer of the model; the two files are in
a zip archive that is appended to it. All of it is written here, since the mediapipe package has no writer for
embedders, and one for classifiers that its wheels cannot load.

MediaPipe cuts texts with a tokenizer of its own. It lower-cases ASCII letters whatever the model was trained on, leaves
accents where they are, and takes one text, not two. So an uncased model gives the same answers as here for texts in
plain English, and a cased model does only where texts have no capitals.
"""

import io
import logging
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

from data.example_records import SEQUENCES
from data.tokenization import FullTokenizer, pieces_by_id

# As MediaPipe calls them.
_INPUT_NAMES = dict(zip(SEQUENCES, ("ids", "mask", "segment_ids"), strict=True))
_METADATA_NAME = "TFLITE_METADATA"
_VOCAB_FILE, _LABEL_FILE = "vocab.txt", "labels.txt"
# Numbers of the schema.
_AXIS_LABELS, _VOCABULARY, _BERT_TOKENIZER = 2, 5, 4


def classifier(content: bytes, tokenizer: FullTokenizer, labels: Sequence[str]) -> bytes:
    """A model that MediaPipe's TextClassifier can load.

    Args:
        content: a TFLite model of ids with one output, the probabilities of the labels, [1, labels]. MediaPipe shows
            its numbers as they are: logits would be shown as logits.
        tokenizer: of the model.
        labels: in the order of the output.
    """
    if not labels:
        raise ValueError("A classifier needs labels: a model of numbers (regression) has none for MediaPipe to show.")
    if bad := [label for label in labels if "\n" in label or not label.strip()]:
        raise ValueError(f"MediaPipe reads labels line by line, so these cannot be any: {bad}.")
    return _with_metadata(content, "TextClassifier", "probability", tokenizer, labels)


def embedder(content: bytes, tokenizer: FullTokenizer) -> bytes:
    """A model that MediaPipe's TextEmbedder can load.

    Args:
        content: a TFLite model of ids with one output, a vector for the text, [1, D].
        tokenizer: of the model.
    """
    return _with_metadata(content, "TextEmbedder", "vector", tokenizer, ())


def _with_metadata(content: bytes, name: str, output: str, tokenizer: FullTokenizer, labels: Sequence[str]) -> bytes:
    if tokenizer.do_lower_case is False:
        logging.getLogger(__name__).warning(
            "The model is cased, but MediaPipe lower-cases what it reads: words with capitals will get other answers."
        )
    model = schema.ModelT.InitFromPackedBuf(content)
    graph = model.subgraphs[0]
    if len(graph.outputs) != 1:
        raise ValueError(f"MediaPipe wants one output, but the model has {len(graph.outputs)}: convert it with one.")
    width = int(graph.tensors[graph.outputs[0]].shape[-1])
    if labels and width != len(labels):
        raise ValueError(f"There are {len(labels)} labels, but the model has {width} probabilities.")
    tensor_names = [graph.tensors[index].name.decode() for index in graph.inputs]
    input_names = [_input_name(tensor_name) for tensor_name in tensor_names]
    if sorted(input_names) != sorted(_INPUT_NAMES.values()):
        raise ValueError(f"MediaPipe wants a model that takes {', '.join(SEQUENCES)}, not {', '.join(tensor_names)}.")
    metadata = _Metadata().model(name, input_names, output, has_labels=bool(labels))
    model.buffers.append(schema.BufferT(data=list(metadata)))
    entry = schema.MetadataT(name=_METADATA_NAME, buffer=len(model.buffers) - 1)
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    files = {_VOCAB_FILE: pieces_by_id(tokenizer.vocab)} | ({_LABEL_FILE: labels} if labels else {})
    return _with_files(bytes(builder.Output()), {name: "\n".join(lines) + "\n" for name, lines in files.items()})


def _input_name(tensor_name: str) -> str:
    """`serving_default_input_ids:0` -> `ids`."""
    return next((_INPUT_NAMES[name] for name in SEQUENCES if tensor_name.split(":")[0].endswith(name)), tensor_name)


def _with_files(content: bytes, files: Mapping[str, str]) -> bytes:
    joined = io.BytesIO(content)
    with zipfile.ZipFile(joined, "a", zipfile.ZIP_STORED) as archive:  # MediaPipe maps them into memory as they are
        for name, text in files.items():
            # A fixed date, so that the same model gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name), text)
    return joined.getvalue()


def read_files(model: bytes | str | Path) -> dict[str, bytes]:
    """The files that were appended to a model, by name."""
    content = model if isinstance(model, bytes) else Path(model).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class _Metadata:
    """Writes tables of metadata_schema.fbs; the numbers are those of their fields."""

    def __init__(self):
        self._builder = flatbuffers.Builder(1024)

    def model(self, name: str, input_names: Sequence[str], output: str, has_labels: bool) -> bytes:
        options = self._table({0: self._vector([self._file(_VOCAB_FILE, _VOCABULARY)])})
        unit = self._table({1: options}, {0: _BERT_TOKENIZER})
        inputs = [self._table({0: self._string(input_name)}) for input_name in input_names]
        labels = {6: self._vector([self._file(_LABEL_FILE, _AXIS_LABELS)])} if has_labels else {}
        outputs = [self._table({0: self._string(output)} | labels)]
        graph = self._table({2: self._vector(inputs), 3: self._vector(outputs), 5: self._vector([unit])})
        root = self._table({0: self._string(name), 3: self._vector([graph]), 7: self._string("1.1.0")})
        self._builder.Finish(root, b"M001")
        return bytes(self._builder.Output())

    def _file(self, name: str, kind: int) -> int:
        return self._table({0: self._string(name)}, {2: kind})

    def _string(self, text: str) -> int:
        return self._builder.CreateString(text)

    def _vector(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return self._builder.EndVector()

    def _table(self, offsets: Mapping[int, int], enums: Mapping[int, int] | None = None) -> int:
        """A table of fields that lie elsewhere, and of small numbers that lie in it."""
        self._builder.StartObject(8)
        for field, offset in offsets.items():
            self._builder.PrependUOffsetTRelativeSlot(field, offset, 0)
        for field, number in (enums or {}).items():
            self._builder.PrependInt8Slot(field, number, 0)
        return self._builder.EndObject()
