"""The rooms of the house know only those below them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "modeling": set(),
    "data": set(),
    "training": {"modeling", "data"},
    "tasks": {"modeling", "data", "training"},
    "serving": {"modeling", "data", "training", "tasks"},
}
FILES = [path for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down_only(path):
    room = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        rooms = {name.split(".")[0] for name in names} & MAY_IMPORT.keys()
        assert rooms <= MAY_IMPORT[room] | {room}, f"{path.name} may not import {rooms}"
