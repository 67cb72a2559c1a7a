"""The gradients that a host finds in `.grad` where an optimizer of dsgd updates the values."""

from __future__ import annotations

import copy
import sys
from types import FrameType
from typing import Any, Iterator, Optional

import torch

from .._errors import StateError

# Within it, functions take a LocalGradient for an ordinary tensor.
_as_tensor = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction
_IN_PLACE = {f"__i{name}__" for name in "add sub mul div truediv floordiv mod pow and or xor lshift rshift".split()}
_HARMLESS = {"requires_grad_", "detach_"}  # called by zero_grad(); they change no number


class LocalGradient(torch.Tensor):
    """The gradient of this worker, in dsgd's memory. A host may read it at any time, and change it between steps.

    dsgd reads it from its mark to the end of the step, so changing it then is an error. Version counters alone do not
    show each change: `.grad.data.mul_(2)` and `.grad.numpy()[:] = 0` leave them. Views of this tensor are therefore of
    this class, too, and arrays are read-only in a step. The step of an optimizer of PyTorch is always an error, since it
    would move the values of this worker by the gradient of this worker.
    """

    @staticmethod
    def over(memory: torch.Tensor, entry: Any) -> "LocalGradient":
        """A tensor over `memory`, with its version counter. `entry`: a weak reference to the TrainedParameter, since a
        tensor's `.grad` is invisible to the garbage collector."""
        gradient = torch.Tensor._make_subclass(LocalGradient, memory)  # as nn.Parameter is made; no view, unlike as_subclass()
        gradient._entry = entry
        return gradient

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        seen = list(_gradients_in([*arguments, *named.values()]))
        if seen and _in_optimizer_step():
            raise StateError(
                f"an optimizer of PyTorch updates parameter {seen[0]._name()!r}, which the session's optimizer updates, too; "
                "remove the call of its step(), or call set_optimizer('none') before the session starts",
                parameter=seen[0]._name(),
            )
        for gradient in _gradients_in(_changed(function, arguments, named)):
            if gradient._is_sent():
                raise changed_error(gradient._name())
        with _as_tensor():
            result = function(*arguments, **named)
        for gradient in seen:
            result = gradient._guarded(result)
        return result

    def _name(self) -> str:
        entry = self._entry()
        return entry.name if entry is not None else ""

    def _is_sent(self) -> bool:
        entry = self._entry()
        return entry is not None and entry.marked_version is not None

    def _guarded(self, result: Any) -> Any:
        """`result` of a function, where it is another view of this memory as a LocalGradient or a read-only array."""
        if isinstance(result, torch.Tensor):
            if isinstance(result, LocalGradient) and hasattr(result, "_entry") or not self._shares_memory(result):
                return result
            return LocalGradient.over(result, self._entry)
        if isinstance(result, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in result):
            parts = [self._guarded(part) for part in result]
            return parts if isinstance(result, list) else tuple(parts)
        if self._is_sent() and type(result).__module__ == "numpy" and hasattr(result, "setflags"):
            result.setflags(write=False)
        return result

    def _shares_memory(self, other: torch.Tensor) -> bool:
        with _as_tensor():
            if other.layout != torch.strided or other.device != self.device or other.numel() == 0:
                return False
            entry = self._entry()
            memory = self if entry is None else entry.gradient
            return 0 <= other.data_ptr() - memory.data_ptr() < memory.numel() * memory.element_size()

    # A copy is an ordinary tensor.

    def __repr__(self, **options: Any) -> str:
        return plain_tensor(self).__repr__(**options)

    def __format__(self, specification: str) -> str:
        return format(plain_tensor(self), specification)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return copy.deepcopy(plain_tensor(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return plain_tensor(self).__reduce_ex__(protocol)


def plain_tensor(gradient: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that is no LocalGradient."""
    if not isinstance(gradient, LocalGradient):
        return gradient
    with _as_tensor():
        return gradient.detach()


def changed_error(name: str) -> StateError:
    return StateError(
        f"the gradient of parameter {name!r} was changed between backward and the end of the step, while dsgd sends it; "
        "call the attachment's step() after each backward and zero_grad() only after that, clip by the option clip_norm of "
        "the optimizer, and scale gradients with the optimizer 'none', where backward ends with the mean gradient",
        parameter=name,
    )


def _gradients_in(values: Any) -> Iterator[LocalGradient]:
    for value in values:
        if isinstance(value, LocalGradient):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _gradients_in(value)


def _changed(function: Any, arguments: Any, named: Any) -> Any:
    """The arguments that the function writes into."""
    name = getattr(function, "__name__", "")
    written = [named["out"]] if "out" in named else []
    in_place = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    data_set = name == "__set__" and getattr(function.__self__, "__name__", "") == "data"
    if in_place or data_set or name in _IN_PLACE or name == "__setitem__":
        written += [*arguments, *named.values()][:1]
    return written


def _in_optimizer_step() -> bool:
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
            return True
        frame = frame.f_back
    return False
