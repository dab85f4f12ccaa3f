"""A device that is not there: tensors compute on the CPU and say that they are elsewhere.

What a GPU would refuse is refused: tensors of both sides in one operation, and reading memory that is not the host's.
So code that forgets to move a tensor, or calls `.numpy()` on one, fails on a machine without a GPU.

A tensor is of the pretended device, of the CPU, or of unknown side (made by autograd, where nobody looks): unknown ones
go with everything. A single number of the CPU does too, as on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

PRETENDED = torch.device("cuda", 0)
_HOST = torch.device("cpu")
_MOVES = ("to", "cpu", "copy_", "type_as", "_has_compatible_shallow_copy_type")
_READS = ("numpy", "__array__", "data_ptr", "numpy_force")
# Indices may be of the CPU where the indexed tensor is not; values of a slice are copied over.
_INDEXES = ("__getitem__", "__setitem__", "index_put_", "index")


class PretendedDevice(TorchFunctionMode):
    """While it is entered, `PRETENDED` can be asked for as a device."""

    def __enter__(self) -> PretendedDevice:
        """Also what nobody can overrule: arrays taken from numpy, and parameters made of a tensor."""
        self._from_numpy, self._parameter = torch.from_numpy, torch.nn.Parameter.__new__
        torch.from_numpy = self._of_numpy
        torch.nn.Parameter.__new__ = self._new_parameter  # type: ignore[method-assign, assignment]
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        """As it was."""
        torch.from_numpy = self._from_numpy
        torch.nn.Parameter.__new__ = self._parameter  # type: ignore[method-assign]
        super().__exit__(*error)

    def _of_numpy(self, array: Any) -> torch.Tensor:
        tensor = self._from_numpy(array)
        _mark(tensor, _HOST)
        return tensor

    def _new_parameter(self, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        parameter = self._parameter(cls, data, requires_grad)
        _mark(parameter, None if data is None else side_of(data))
        return parameter

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run on the CPU, and say where the result would be."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return _attribute(func, args)
        if name == "__set__":
            return _set_attribute(func, args)
        if func is torch.device or name == "_parse_to":  # the second: arguments of `Module.to`
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        _require_one_side(func, name, args, tensors)
        asked = next((_as_device(each) for each in _flat((args, kwargs)) if _is_device(each)), None)
        result = func(*_on_host(args), **_on_host(kwargs))
        side = _side_of_result(name, asked, args, tensors)
        if isinstance(result, torch.Tensor) and side != side_of(result) and any(result is each for each in tensors):
            # Moved to where it is: on a device it would be another tensor.
            with torch._C.DisableTorchFunction():
                result = result.view_as(result)
        _mark(result, side)
        return result


def pretend(module: torch.nn.Module) -> torch.nn.Module:
    """Its parameters and buffers are elsewhere from now on."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor._side = PRETENDED  # type: ignore[attr-defined]
    return module


def side_of(tensor: torch.Tensor) -> torch.device | None:
    """Where it says that it is; None where nobody knows."""
    return getattr(tensor, "_side", None)


def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
    """`device` of a pretended tensor, and what belongs to it: its gradient, its data."""
    with torch._C.DisableTorchFunction():
        result = func(*args)
    side = side_of(args[0])
    if isinstance(result, torch.device):
        return side or result
    if func.__self__.__name__ == "is_cuda":
        return side == PRETENDED
    if isinstance(result, torch.Tensor) and side is not None:
        result._side = side  # type: ignore[attr-defined]
    return result


def _set_attribute(func: Any, args: tuple[Any, ...]) -> Any:
    """New `data` bring their side along."""
    with torch._C.DisableTorchFunction():
        result = func(*args)
    if len(args) > 1 and isinstance(args[1], torch.Tensor) and side_of(args[1]) is not None:
        args[0]._side = side_of(args[1])
    return result


def _require_one_side(func: Any, name: str, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> None:
    elsewhere = [tensor for tensor in tensors if side_of(tensor) == PRETENDED]
    here = [tensor for tensor in tensors if side_of(tensor) == _HOST and tensor.dim()]
    if name in _READS and elsewhere:
        raise AssertionError(f"{name} of a tensor that is not on the CPU")
    if name in _MOVES or not elsewhere or not here:
        return
    if name in _INDEXES and side_of(args[0]) == PRETENDED:
        return
    raise AssertionError(f"{resolve_name(func) or func} of tensors on {PRETENDED} and on the CPU")


def _side_of_result(
    name: str, asked: torch.device | None, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]
) -> torch.device | None:
    if name == "cpu":
        return _HOST
    if asked is not None:
        return PRETENDED if asked.type == PRETENDED.type else _HOST
    if name in ("to", "type_as") and len(tensors) > 1:
        return side_of(tensors[1])
    if name == "copy_":
        return side_of(args[0])
    sides = {side_of(tensor) for tensor in tensors}
    if PRETENDED in sides:
        return PRETENDED
    # Nothing but numbers and lists went in: it was made here.
    return _HOST if not tensors or sides == {_HOST} else None


def _mark(result: Any, side: torch.device | None) -> None:
    for tensor in _tensors(result):
        if side is not None and not (isinstance(tensor, torch.nn.Parameter) and side_of(tensor) is not None):
            tensor._side = side  # type: ignore[attr-defined]


def _is_device(value: Any) -> bool:
    kind = value.type if isinstance(value, torch.device) else value.split(":")[0] if isinstance(value, str) else None
    return kind in (_HOST.type, PRETENDED.type)


def _as_device(value: Any) -> torch.device:
    return torch.device(value)


def _on_host(values: Any) -> Any:
    """The same with the CPU in place of the pretended device."""
    if _is_device(values):
        return _HOST
    if isinstance(values, tuple) and type(values) is tuple:
        return tuple(_on_host(each) for each in values)
    if isinstance(values, list):
        return [_on_host(each) for each in values]
    if isinstance(values, dict):
        return {key: _on_host(each) for key, each in values.items()}
    return values


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, tuple | list):
        for each in values:
            yield from _flat(each)
    elif isinstance(values, Mapping):
        yield from _flat(list(values.values()))
    else:
        yield values


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (each for each in _flat(values) if isinstance(each, torch.Tensor))
