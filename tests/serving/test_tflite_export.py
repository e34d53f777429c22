import pytest

from benchmarks.load import make_model
from serving.services import load_service
from serving.tflite import convert
from serving.tflite_export import export


def test_what_was_there_stays_until_all_is_made(tmp_path, monkeypatch):
    service, directory = load_service(make_model(tmp_path / "model")), tmp_path / "lite"
    directory.mkdir()
    old = {"report.json": b"old", "report.md": b"old", "model_float32.tflite": b"old"}
    for name, content in old.items():
        (directory / name).write_bytes(content)

    def failing(run, config, max_seq_length, mode, *others):
        if mode == "float16":
            raise ValueError("no such numbers")
        return convert(run, config, max_seq_length, mode, *others)

    monkeypatch.setattr("serving.tflite_export.convert", failing)
    with pytest.raises(ValueError, match="no such numbers"):
        export(service, directory, ["float32", "float16"], max_seq_length=16)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == old
    export(service, directory, ["float32"], max_seq_length=16)
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["bert_task.json", "model_float32.tflite", "vocab.txt"]  # the report was of other models
