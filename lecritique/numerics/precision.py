"""Precision and selection: what every equation here does to its inputs before it computes.

Shape letters of this room: T trajectory length, N any shape of tokens, K group size, A atoms, L packed
length, B rows; `...` stands for leading batch dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def widen(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or in float64 when it is float64: 0.999888 is 1 in bfloat16 and in float16."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def select(mask: Tensor | None, tensor: Tensor, fill: float = 0.0) -> Tensor:
    """`tensor` where `mask` is True and `fill` elsewhere, in value and in gradient; all of it without a mask.

    Multiplying by the mask would keep NaN (0 * NaN) and its gradient.
    """
    if mask is None:
        return tensor
    require_mask(mask, tensor)
    return torch.where(mask, tensor, torch.full_like(tensor, fill))


def require_mask(mask: Tensor, tensor: Tensor) -> None:
    """Raise ValueError unless `mask` is boolean and has the shape of `tensor`."""
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask must be boolean (True = keep), got {mask.dtype}")
    require_shape("the mask", mask, tensor)


def require_shape(name: str, tensor: Tensor, like: Tensor) -> None:
    """Raise ValueError unless `tensor` has the shape of `like`."""
    if tensor.shape != like.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)}")
