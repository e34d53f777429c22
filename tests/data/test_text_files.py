import gzip

import pytest

from data.text_files import read_lines


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_that_no_memory_could_hold_is_named(tmp_path, monkeypatch, name):
    path = tmp_path / name
    content = b"short\n" + b"x" * 100 + b"\n" + b"y" * 101
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(read_lines(str(path))) == content.splitlines(keepends=True)
    monkeypatch.setattr("data.text_files._LONGEST_LINE", 101)
    assert len(list(read_lines(str(path)))) == 3
    monkeypatch.setattr("data.text_files._LONGEST_LINE", 100)
    with pytest.raises(
        ValueError, match=f"{path}, line 2 has more than .* MB: put its sentences on lines of their own"
    ):
        list(read_lines(str(path)))
