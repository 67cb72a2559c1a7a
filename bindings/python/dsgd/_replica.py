"""Parameters, and their buffers in the replicas."""

from __future__ import annotations

import math
import warnings
from typing import Any, Iterable, Optional, Tuple, overload

from . import _raw
from ._buffers import Array, Buffer, Data, as_array, dlpack_device, numpy_or_none
from ._config import options_text
from ._errors import InvalidArgumentError
from ._handle import Handle, interruptible
from ._tables import DType


class Parameter:
    """A named tensor, trained or not. Made by Session.add_parameter."""

    def __init__(
        self, handle: Handle, pointer: Any, name: str, shape: Tuple[int, ...], dtype: DType, trained: bool
    ) -> None:
        self._handle = handle
        self._pointer = pointer
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.trained = trained

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def set(self, options: Optional[str] = None, **values: Any) -> None:
        """rate=F multiplies the learning rate, decay=F replaces the weight decay, frozen=True leaves the parameter out
        of steps. For an untrained parameter, sync="mean" sets all replicas to the mean of their values in every sync_period-th
        step, sync="first" to the values of the first replica. Equal on all workers; before start, or between steps by all of them."""
        _raw.dsgd_parameter_set(self._pointer, options_text(options, values))

    def __repr__(self) -> str:
        return f"<dsgd.Parameter {self.name!r} {self.dtype.name} {self.shape}{'' if self.trained else ' untrained'}>"


class UntrainedParameter(Parameter):
    """A parameter that was added with trained=False, and thus has no gradient."""


def _pointer_of(parameter: Any) -> Any:
    if not isinstance(parameter, Parameter):
        raise TypeError(f"the parameter is {parameter!r}; give the Parameter that Session.add_parameter returned")
    return parameter._pointer


class Replica:
    """One copy of the model on one device. Made by Session.add_replica."""

    def __init__(self, handle: Handle, pointer: Any, index: int) -> None:
        self._handle = handle
        self._pointer = pointer
        self.index = index
        self.device: str = _raw.dsgd_replica_device(pointer)  # "cpu", "cuda:0"

    def bind(self, parameter: Parameter, value: Data, gradient: Optional[Data] = None) -> None:
        """Gives dsgd the host's own buffers of one parameter: anything with the buffer protocol or __dlpack__, without
        a copy; for a replica on a GPU, a tensor there with __dlpack__, as of PyTorch or CuPy, for the gradient of JAX,
        too. They are of the parameter's dtype, and of its shape or flat; `gradient` is None for an untrained one.
        dsgd holds them until others are bound or the session is closed, on a GPU until it has used them for the last time;
        may be called again between steps."""
        pointer = _pointer_of(parameter)
        held_value = self._checked(parameter, value, "value").require_writable(f"value of parameter {parameter.name!r}")
        if gradient is None and parameter.trained and parameter.count > 0:
            raise InvalidArgumentError(
                f"parameter {parameter.name!r} is trained and needs a gradient buffer; give one, or add the parameter "
                "with trained=False",
                parameter=parameter.name,
            )
        held_gradient = None if gradient is None else self._checked(parameter, gradient, "gradient")
        held = [held_value] if held_gradient is None else [held_value, held_gradient]
        if all(buffer.is_tensor for buffer in held):
            # dsgd refers to `held` until it no longer uses these buffers.
            tensors = [(buffer.source, parameter.shape, held) for buffer in held]
            _raw.dsgd_bind_dlpack(self._pointer, pointer, tensors[0], tensors[1] if held_gradient else None)
        else:
            _raw.dsgd_bind(self._pointer, pointer, held_value.source, None if held_gradient is None else held_gradient.source)
        self._handle.bound[self.index, parameter.name] = held
        _raw.dsgd_py_tensors_release()

    @overload
    def alloc(self, parameter: UntrainedParameter) -> Tuple[Array, None]: ...  # type: ignore[overload-overlap]
    @overload
    def alloc(self, parameter: Parameter) -> Tuple[Array, Array]: ...
    def alloc(self, parameter: Parameter) -> Any:
        """Buffers of dsgd's own, zeroed: the fastest. Returns (value, gradient) as NumPy arrays (memoryviews, with a
        RuntimeWarning, where there is no NumPy; for a replica on a GPU as of alloc_tensors), gradient None for an
        untrained parameter. They stay good after close, as long as they are referred to. Calling again
        returns arrays over the same memory. The annotations say arrays; for a GPU alloc_tensors has the exact ones."""
        if self.device != "cpu":
            return self.alloc_tensors(parameter)
        self._alloc(parameter)
        if numpy_or_none() is None:
            warnings.warn(
                "NumPy is not installed, so dsgd's arrays are memoryviews, to which no list or tuple can be assigned; "
                "install numpy",
                RuntimeWarning,
                stacklevel=2,
            )
        value = as_array(self._region(parameter, False))
        return value, as_array(self._region(parameter, True)) if parameter.trained else None

    @overload
    def alloc_tensors(self, parameter: UntrainedParameter) -> Tuple["Tensor", None]: ...  # type: ignore[overload-overlap]
    @overload
    def alloc_tensors(self, parameter: Parameter) -> Tuple["Tensor", "Tensor"]: ...
    def alloc_tensors(self, parameter: Parameter) -> Any:
        """As alloc, with objects for torch.from_dlpack, jax.numpy.from_dlpack and their like."""
        self._alloc(parameter)
        return Tensor(self, parameter, 0), Tensor(self, parameter, 1) if parameter.trained else None

    def _alloc(self, parameter: Parameter) -> None:
        pointer = _pointer_of(parameter)
        if self.device == "cpu":
            _raw.dsgd_alloc(self._pointer, pointer)
        else:
            interruptible(lambda: _raw.dsgd_alloc(self._pointer, pointer))
        self._handle.bound.pop((self.index, parameter.name), None)

    def set_weight(self, weight: Optional[float]) -> None:
        """Contribution weight of this replica from the next step on. None restores the default, an equal part of the step's weight."""
        if weight is not None and weight < 0:
            raise InvalidArgumentError(f"weight {weight} is negative; give 0 or more, or None for an equal part")
        _raw.dsgd_replica_weight(self._pointer, -1.0 if weight is None else float(weight))

    def gradient_ready(self, parameter: Parameter, stream: Optional[int] = None) -> None:
        """Marks a gradient as complete: it will not change until the step ends. On a GPU it is complete once the work that `stream`
        holds now is done (as a number, torch.cuda.Stream.cuda_stream; None: the default stream). Gradients travel in buckets. The
        step may therefore also wait for work that is enqueued in the stream before the last gradient of the same bucket is marked.
        Keep the stream until the step has ended: new values are ordered on it, too. Any thread, any order; never blocks."""
        _raw.dsgd_gradient_ready(self._pointer, _pointer_of(parameter), stream)

    def gradients_ready(self, parameters: Iterable[Parameter], stream: Optional[int] = None) -> None:
        """As gradient_ready for several parameters, in one call. If one gradient cannot be marked, none is."""
        _raw.dsgd_gradients_ready(self._pointer, [_pointer_of(parameter) for parameter in parameters], stream)

    def stream_wait(self, stream: Optional[int]) -> None:
        """On a GPU: work enqueued in `stream` after this call sees the new values of all steps that have ended, as in the default
        stream. Call it for streams on which no gradient was marked; torch.from_dlpack and its like call it for theirs."""
        _raw.dsgd_stream_wait(self._pointer, stream)

    def gradient_absent(self, parameter: Parameter) -> None:
        """There is no gradient of this parameter in the step begun, or else in the next one."""
        _raw.dsgd_gradient_absent(self._pointer, _pointer_of(parameter))

    def _region(self, parameter: Parameter, gradient: bool) -> Any:
        memory = _raw.dsgd_memory_get(self._pointer, _pointer_of(parameter))
        return _raw.dsgd_py_memory_region(memory, gradient, parameter.dtype.format, parameter.shape)

    def _checked(self, parameter: Parameter, owner: Any, what: str) -> Buffer:
        what = f"{what} of parameter {parameter.name!r}"
        buffer = Buffer(owner, what, self.device)
        if buffer.dtype != parameter.dtype:
            raise InvalidArgumentError(
                f"{what} is {buffer.dtype.name}, the parameter {parameter.dtype.name}", parameter=parameter.name
            )
        if buffer.shape != parameter.shape and buffer.shape != (parameter.count,):
            raise InvalidArgumentError(
                f"{what} has shape {buffer.shape}, the parameter {parameter.shape}; give that shape or a flat buffer "
                f"of {parameter.count} elements",
                parameter=parameter.name,
            )
        return buffer

    def __repr__(self) -> str:
        return f"<dsgd.Replica {self.index} on {self.device}>"


class Tensor:
    """A value or gradient in memory of dsgd's, for consumers of DLPack."""

    def __init__(self, replica: Replica, parameter: Parameter, which: int) -> None:
        self._replica = replica
        self._parameter = parameter
        self._which = which

    def __dlpack_device__(self) -> Tuple[int, int]:
        return dlpack_device(self._replica.device)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        on_host = self._replica.device == "cpu"
        if stream is not None and on_host:
            raise BufferError(f"stream {stream!r} was given for a tensor in host memory; give None")
        if stream == 0:  # as DLPack has it
            raise BufferError("stream 0 is ambiguous; give 1 for the legacy default stream or 2 for the per-thread default stream")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"a tensor on {self._replica.device} cannot be exported to DLPack device {dl_device}")
        if copy:
            raise BufferError("dsgd exports its own memory, not copies; copy it where it is received")
        pair = _raw.dsgd_export_dlpack(self._replica._pointer, self._parameter._pointer)
        if not on_host and stream not in (None, -1):  # -1: the consumer sees to it by itself
            self._replica.stream_wait(stream)
        if max_version is None or max_version[0] < 1:
            return _raw.dsgd_py_tensor_legacy(pair[self._which])
        return pair[self._which]
