"""Buffers of the host's program, taken without a copy: the buffer protocol first, else DLPack."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Tuple, TypeVar, Union, cast

from . import _raw
from ._errors import InvalidArgumentError
from ._tables import DType


class SupportsDLPack(Protocol):
    """A tensor, as of PyTorch or JAX."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


# For annotations. NumPy is optional, and typing_extensions is known to type checkers even where it is not installed.
if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Buffer as SupportsBuffer

    Array = NDArray[Any]
    Indices = NDArray[numpy.int64]
    Data = Union[SupportsBuffer, SupportsDLPack]
else:
    Array = Indices = Data = Any
DataT = TypeVar("DataT", bound=Data)

# By the struct module's letter and size. bfloat16 has no letter of its own, and is taken over DLPack alone.
_FORMATS: Dict[Tuple[str, int], DType] = {(dtype.format, dtype.itemsize): dtype for dtype in DType if dtype is not DType.bfloat16}
# C's long, which has the size of one of the others.
_FORMATS.update({("l", dtype.itemsize): dtype for dtype in DType if dtype.format in "iq"})
_FORMATS.update({("L", dtype.itemsize): dtype for dtype in DType if dtype.format in "IQ"})
_DLPACK_TYPES = {dtype.dlpack: dtype for dtype in DType}
_DEVICE_CPU, _DEVICE_CUDA, _DEVICE_CUDA_HOST, _DEVICE_CUDA_MANAGED = 1, 2, 3, 13
_DEFAULT_STREAM = 1  # work that a producer has enqueued before it exports a tensor for this stream comes before the work of dsgd


def dlpack_device(device: str) -> Tuple[int, int]:
    """DLPack's name of one of dsgd's devices."""
    return (_DEVICE_CPU, 0) if device == "cpu" else (_DEVICE_CUDA, int(device.partition(":")[2]))


class Buffer:
    """A contiguous buffer that stays exported, and its memory thus in place, while this object lives."""

    __slots__ = ("owner", "source", "dtype", "shape", "readonly", "stream")

    def __init__(self, owner: Any, what: str, device: str = "cpu", any_device: bool = False) -> None:
        self.owner = owner  # as the host gave it
        self.stream = 0  # in which its content is complete; of a GPU's
        if any_device and _is_on_gpu(owner):
            self.stream = _DEFAULT_STREAM
            self._take_capsule(owner, what, {"stream": _DEFAULT_STREAM})
            return
        if device != "cpu":
            self._take_device_tensor(owner, what, device)
            return
        try:
            view: Optional[memoryview] = memoryview(owner)
        except TypeError:
            view = None
        except ValueError as error:  # NumPy has dtypes that the buffer protocol has not, such as dates
            raise InvalidArgumentError(f"{what}: {error}; {_known_types()}") from None
        if view is not None:
            self._take_view(view, what)
        elif hasattr(owner, "__dlpack__"):
            self._take_tensor(owner, what)
        else:
            raise TypeError(
                f"{what} is {type(owner).__name__}, which has neither the buffer protocol nor __dlpack__; "
                "give a NumPy array, a CPU tensor, an array.array or a bytearray"
                + ("; text.encode() makes bytes of text" if isinstance(owner, str) else "")
            )

    def _take_view(self, view: memoryview, what: str) -> None:
        letter = view.format.lstrip("@=<")
        dtype = _FORMATS.get((letter, view.itemsize))
        if dtype is None:
            hint = "; give array.view(numpy.uint8) for bool" if letter == "?" else ""
            raise InvalidArgumentError(f"{what} has elements of format {view.format!r}; {_known_types()}{hint}")
        if not view.c_contiguous:
            raise InvalidArgumentError(
                f"{what} of shape {view.shape} is not contiguous in row-major order; "
                "pass numpy.ascontiguousarray(...) and read dsgd's results from that copy"
            )
        self.source: Any = view
        self.dtype = dtype
        self.shape: Tuple[int, ...] = tuple(view.shape or ())
        self.readonly = view.readonly

    def _take_tensor(self, owner: Any, what: str) -> None:
        device = owner.__dlpack_device__()
        if device[0] not in (_DEVICE_CPU, _DEVICE_CUDA_HOST):
            raise InvalidArgumentError(
                f"{what} is on {_device_text(device)}, but host memory is needed; copy it to the CPU. To bind it, add the replica "
                "on that device"
            )
        self._take_capsule(owner, what, {})

    def _take_device_tensor(self, owner: Any, what: str, device: str) -> None:
        if not hasattr(owner, "__dlpack__"):
            raise InvalidArgumentError(
                f"{what} is {type(owner).__name__}, in host memory, and its replica is on {device}; give a tensor on that device"
            )
        where = owner.__dlpack_device__()
        if where[0] != _DEVICE_CUDA_MANAGED and (int(where[0]), int(where[1])) != dlpack_device(device):
            raise InvalidArgumentError(
                f"{what} is on {_device_text(where)}, but its replica is on {device}; give a tensor on that device"
            )
        self._take_capsule(owner, what, {"stream": _DEFAULT_STREAM})

    def _take_capsule(self, owner: Any, what: str, options: Dict[str, Any]) -> None:
        try:
            capsule = owner.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # a producer from before DLPack 1.0
            capsule = owner.__dlpack__(**options)
        self.source = _raw.dsgd_py_tensor_import(capsule)
        _, code, bits, lanes, self.shape, self.readonly, contiguous, _ = _raw.dsgd_py_tensor_info(self.source)
        dtype = _DLPACK_TYPES.get((code, bits)) if lanes == 1 else None
        if dtype is None:
            raise InvalidArgumentError(f"{what} has elements of DLPack type {code} with {bits} bits; {_known_types()}")
        if not contiguous:
            raise InvalidArgumentError(
                f"{what} of shape {self.shape} is not contiguous in row-major order; make it contiguous first"
            )
        self.dtype = dtype

    @property
    def is_tensor(self) -> bool:
        return not isinstance(self.source, memoryview)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def require_writable(self, what: str) -> "Buffer":
        if self.readonly:
            raise InvalidArgumentError(
                f"{what} is read-only, and dsgd writes into it; give a writable NumPy array and copy the result back "
                "(arrays of JAX are never writable)"
            )
        return self


def _is_on_gpu(owner: Any) -> bool:
    return hasattr(owner, "__dlpack_device__") and owner.__dlpack_device__()[0] == _DEVICE_CUDA


def _device_text(device: Any) -> str:
    kind, index = int(device[0]), int(device[1])
    names = {_DEVICE_CPU: "the cpu", _DEVICE_CUDA: f"cuda:{index}"}
    return names.get(kind, f"DLPack device ({kind}, {index})")


def _known_types() -> str:
    return f"dsgd takes {', '.join(known.name for known in DType)} in the machine's byte order"


def numpy_or_none() -> Any:
    """NumPy, if the host has it: dsgd works without."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def as_array(region: Any) -> Array:
    """A NumPy array over a region of dsgd's memory, or a memoryview where there is no NumPy."""
    numpy = numpy_or_none()
    return cast(Array, memoryview(region) if numpy is None else numpy.asarray(region))
