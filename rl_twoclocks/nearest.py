"""What to answer a wrong name with: the known ones that are most like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.5) -> list[str]:
    """Known names like `word`, nearest first; upper and lower case count as the same.

    Args:
        word: what was typed.
        known: what could have been meant.
        most: how many at most.
        cutoff: least likeness, 0 to 1 (that of `difflib`); with 0 there is an answer to every word.
    """
    spelt = {name.lower(): name for name in known}
    return [spelt[low] for low in difflib.get_close_matches(word.lower(), spelt, most, cutoff)]


def did_you_mean(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.5) -> str:
    """`did you mean a or b?`, or nothing where no known name is like `word`; see `nearest`."""
    found = nearest(word, known, most, cutoff)
    return f"did you mean {' or '.join(found)}?" if found else ""


def there_are(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`did you mean a? there are a, b, c`: the nearest name, where there is one, and all of them."""
    known = list(known)
    return f"{did_you_mean(word, known, 1, cutoff)} there are {', '.join(known) or 'none'}".lstrip()
