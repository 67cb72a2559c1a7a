"""A trained parameter of a module: its value and gradient in dsgd's memory, and the hook on its gradient."""

from __future__ import annotations

import re
import weakref
from typing import Any, Callable, Optional, Tuple

import torch

from .._errors import StateError
from .._replica import Replica
from .._session import Session
from ._gradient import LocalGradient, changed_error, plain_tensor


class TrainedParameter:
    """`tensor` is the module's parameter. `value` and `gradient` are tensors over dsgd's memory; `tensor.data` is
    `value`, and `tensor.grad` shares the memory of `gradient` once a backward pass has run."""

    def __init__(self, session: Session, replica: Replica, name: str, tensor: torch.nn.Parameter) -> None:
        self.name = name
        self.tensor = tensor
        self.parameter = session.add_parameter(registered_name(name), tuple(tensor.shape), tensor.dtype)
        self.value, self.gradient = (torch.from_dlpack(memory) for memory in replica.alloc_tensors(self.parameter))
        with torch.no_grad():
            self.value.copy_(tensor)
        tensor.data = self.value
        self._pointers = self._addresses()
        if tensor.grad is not None:
            self.take_gradient()
        self.used = False  # a backward pass has reached it since the last step
        self.marked_version: Optional[int] = None  # of the gradient when it was given to dsgd in this step

    def take_gradient(self, local: bool = False) -> None:
        """Puts the gradient into dsgd's memory. Autograd adds in place to a gradient that is there, but makes a new
        tensor after zero_grad(), which sets `.grad` to None. `local`: `.grad` stays the gradient of this worker."""
        self._check_memory()
        gradient = self.tensor.grad
        if self._shares_memory(gradient):
            if local and not isinstance(gradient, LocalGradient):
                self.tensor.grad = LocalGradient.over(self.gradient, weakref.ref(self))
            return
        with torch.no_grad():
            if gradient is None:
                self.gradient.zero_()
            else:
                gradient = plain_tensor(gradient)
                self.gradient.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        # Another tensor over the same memory, and with the same version counter: `.grad.data = ...`, as Module.to() does
        # it, changes that one and leaves `gradient` where it is.
        self.tensor.grad = LocalGradient.over(self.gradient, weakref.ref(self)) if local else self.gradient.detach()

    def release_gradient(self) -> None:
        """Leaves an ordinary tensor in `.grad`, which an optimizer of PyTorch may use."""
        if isinstance(self.tensor.grad, LocalGradient):
            self.tensor.grad = plain_tensor(self.tensor.grad)

    def _addresses(self) -> Tuple[int, int]:
        return self.value.data_ptr(), self.gradient.data_ptr()

    def _check_memory(self) -> None:
        if self._addresses() != self._pointers:
            raise StateError(
                f"value or gradient of parameter {self.name!r} was moved out of dsgd's memory, as Module.share_memory() "
                "does; call it before the module is attached",
                parameter=self.name,
            )

    def _shares_memory(self, gradient: Optional[torch.Tensor]) -> bool:
        ours = self.gradient
        if gradient is None:
            return False
        gradient = plain_tensor(gradient)
        return (
            not gradient.is_sparse
            and gradient.data_ptr() == ours.data_ptr()
            and (gradient.dtype, gradient.shape, gradient.stride()) == (ours.dtype, ours.shape, ours.stride())
        )

    def check_value(self) -> None:
        """Takes back a value that was moved to other memory, as `parameter.data = ...` does."""
        self._check_memory()
        tensor = self.tensor
        ours = self.value
        if tensor.data_ptr() == ours.data_ptr() and (tensor.dtype, tensor.shape, tensor.stride()) == (
            ours.dtype,
            ours.shape,
            ours.stride(),
        ):
            return
        if (tensor.dtype, tensor.device, tensor.shape) != (self.value.dtype, self.value.device, self.value.shape):
            raise StateError(
                f"parameter {self.name!r} was {_described(self.value)} when the module was attached and is "
                f"{_described(tensor)} now; convert the module first, then attach it to a new session",
                parameter=self.name,
            )
        with torch.no_grad():
            self.value.copy_(tensor)
        tensor.data = self.value

    def check_gradient(self) -> None:
        """The gradient is dsgd's from its mark to the end of the step."""
        if not self._shares_memory(self.tensor.grad) or self.gradient._version != self.marked_version:
            raise changed_error(self.name)

    def on_gradient(self, function: Callable[["TrainedParameter"], None]) -> Any:
        """Calls `function(self)` whenever autograd has accumulated the gradient. Returns the hook's handle."""
        register = getattr(self.tensor, "register_post_accumulate_grad_hook", None)
        if register is not None:
            return register(lambda _: function(self))
        # Before PyTorch 2.1: a hook on the graph's node that accumulates, which lives as long as it is referred to.
        with torch.enable_grad():
            self._accumulator = self.tensor.expand_as(self.tensor).grad_fn.next_functions[0][0]
        return self._accumulator.register_hook(lambda *_: function(self))


def registered_name(name: str) -> str:
    """Names of modules may have spaces and control characters, those of dsgd's parameters not: "a b" becomes "a%20b"."""
    return re.sub(r"[\x00-\x20\x7f]", lambda match: f"%{ord(match[0]):02X}", name)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).rpartition('.')[2]} {tuple(tensor.shape)} on {tensor.device}"
