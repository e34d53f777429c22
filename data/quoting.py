"""How an error shows a value of a file: enough to find it, and no more of somebody's text than that."""

from typing import Any

_LONGEST = 60


def shown(value: Any) -> str:
    """The value as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:  # what json.loads has just borne may be too deep a few calls further in
        return f"a {type(value).__name__} of hundreds of levels"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def checked_text(value: Any) -> str:
    """The value as a text that a file can hold.

    Raises:
        ValueError: it has half of a surrogate pair, which JSON can spell ("\\ud800"); or is nested beyond measure.
    """
    try:
        text = str(value)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(value)} has half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise ValueError(f"{shown(value)} is no text") from None
    return text
