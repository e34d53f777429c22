"""How an error shows a value of a file: enough to find it, and no more of somebody's text than that."""

from typing import Any

_LONGEST = 60


def shown(value: Any) -> str:
    """The value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
