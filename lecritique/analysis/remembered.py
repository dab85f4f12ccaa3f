"""Results that a page asks for several times, kept as long as the comparison that they are of.

What a comparison holds never changes: a page that is drawn again reads it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from lecritique.analysis.read import Comparison

Found = TypeVar("Found")


def remembered(function: Callable[..., Found]) -> Callable[..., Found]:
    """`function` of a comparison and names, which is called once for each."""
    known: WeakKeyDictionary[Comparison, dict[tuple[str, ...], Found]] = WeakKeyDictionary()

    @wraps(function)
    def once(comparison: Comparison, *names: str) -> Found:
        found = known.setdefault(comparison, {})
        if names not in found:
            found[names] = function(comparison, *names)
        return found[names]

    return once
