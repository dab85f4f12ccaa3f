"""Read-only arrays of hand-off records: what crosses a boundary cannot be changed by either side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def readonly(values: ArrayLike, dtype: Any) -> NDArray[Any]:
    """A read-only one-dimensional copy of `values` (the same object when it is one already)."""
    if isinstance(values, np.ndarray) and values.dtype == dtype and not values.flags.writeable:
        return values
    array = np.array(values, dtype=dtype, copy=True)
    if array.ndim != 1:
        raise ValueError(f"expected a one-dimensional array, got shape {array.shape}")
    array.flags.writeable = False
    return array


def require_length(name: str, array: NDArray[Any], length: int) -> None:
    """Raise ValueError unless `array` has `length` entries."""
    if len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries, expected {length}: one per token")
