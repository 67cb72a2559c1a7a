"""Collectives on NumPy arrays, buffers and tensors, in place and without copies."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional, Sequence, Tuple, Union, overload

from . import _raw
from ._buffers import Array, Buffer, Data, DataT, numpy_or_none
from ._errors import InvalidArgumentError
from ._handle import Handle
from ._operation import Operation
from ._tables import DType, Reduction
from ._types import reduction_of


class Collectives:
    """Every worker makes the calls of a session, and those of each of its channels, in the same order and with matching
    arguments.

    The plain forms wait until the end; those named _async return an Operation, and the buffers are dsgd's until it has
    ended. `reduction` is one of sum, min, max, prod, mean.

    Buffers are in host memory, or tensors on a GPU that have __dlpack__; those of one call are on one GPU. A tensor is read and
    written after the work that its library has enqueued before the call, as far as its DLPack export orders that: PyTorch's and
    CuPy's do for the current stream. When the operation has ended, the result is in memory, for work in every stream.
    """

    _handle: Handle
    _options: Tuple[int, int, int] = (0, -1, 0)  # of the operations: user data, timeout in ms (-1: step_timeout), channel

    def allreduce_async(self, data: DataT, reduction: Union[str, Reduction] = "sum") -> Operation[DataT]:
        buffer = Buffer(data, "data", any_device=True).require_writable("data")
        return Operation(
            self._handle, (buffer,), lambda _: data,
            _raw.dsgd_allreduce, buffer.source, buffer.source, buffer.dtype, reduction_of(reduction), self._options_of(buffer),
        )

    def allreduce(self, data: DataT, reduction: Union[str, Reduction] = "sum") -> DataT:
        """In place: every worker ends with the reduction of all workers' data. Returns `data`."""
        return self.allreduce_async(data, reduction).wait()

    def broadcast_async(self, data: DataT, root: int = 0) -> Operation[DataT]:
        buffer = Buffer(data, "data", any_device=True).require_writable("data")
        return Operation(
            self._handle, (buffer,), lambda _: data,
            _raw.dsgd_broadcast, buffer.source, buffer.dtype, root, self._options_of(buffer),
        )

    def broadcast(self, data: DataT, root: int = 0) -> DataT:
        """In place: every worker ends with the data of rank `root`. Returns `data`."""
        return self.broadcast_async(data, root).wait()

    @overload
    def allgather_async(self, send: Data, receive: None = None, element_counts: Optional[Sequence[int]] = None) -> Operation[Array]: ...
    @overload
    def allgather_async(self, send: Data, receive: DataT, element_counts: Optional[Sequence[int]] = None) -> Operation[DataT]: ...
    def allgather_async(self, send: Data, receive: Any = None, element_counts: Optional[Sequence[int]] = None) -> Operation[Any]:
        source = Buffer(send, "send", any_device=True)
        with self._counted(element_counts) as (size, counts):
            if receive is None:
                shape = (size, *source.shape) if counts is None else (sum(counts),)
                receive = _new_array(shape, source)
            target = _same_dtype(source, Buffer(receive, "receive", any_device=True).require_writable("receive"))
            return Operation(
                self._handle, (source, target), lambda _: receive,
                _raw.dsgd_allgather, source.source, target.source, counts, source.dtype, self._options_of(source, target),
            )

    @overload
    def allgather(self, send: Data, receive: None = None, element_counts: Optional[Sequence[int]] = None) -> Array: ...
    @overload
    def allgather(self, send: Data, receive: DataT, element_counts: Optional[Sequence[int]] = None) -> DataT: ...
    def allgather(self, send: Data, receive: Any = None, element_counts: Optional[Sequence[int]] = None) -> Any:
        """Every worker's `send`, in rank order. Returns `receive`, or without one a new NumPy array: of shape
        (size, *send.shape), or flat with `element_counts`, the number of elements of each rank where they differ."""
        return self.allgather_async(send, receive, element_counts).wait()

    @overload
    def reduce_scatter_async(
        self, send: Data, receive: None = None, reduction: Union[str, Reduction] = "sum", element_counts: Optional[Sequence[int]] = None
    ) -> Operation[Array]: ...
    @overload
    def reduce_scatter_async(
        self, send: Data, receive: DataT, reduction: Union[str, Reduction] = "sum", element_counts: Optional[Sequence[int]] = None
    ) -> Operation[DataT]: ...
    def reduce_scatter_async(
        self, send: Data, receive: Any = None, reduction: Union[str, Reduction] = "sum", element_counts: Optional[Sequence[int]] = None
    ) -> Operation[Any]:
        source = Buffer(send, "send", any_device=True)
        with self._counted(element_counts) as (size, counts):
            if receive is None:
                rank = _raw.dsgd_rank(self._handle.pointer)  # perhaps of a later view than `size`
                receive = _new_array((source.count // size if counts is None else sum(list(counts)[rank : rank + 1]),), source)
            target = _same_dtype(source, Buffer(receive, "receive", any_device=True).require_writable("receive"))
            return Operation(
                self._handle, (source, target), lambda _: receive,
                _raw.dsgd_reduce_scatter, source.source, target.source, counts, source.dtype, reduction_of(reduction),
                self._options_of(source, target),
            )

    @overload
    def reduce_scatter(
        self, send: Data, receive: None = None, reduction: Union[str, Reduction] = "sum", element_counts: Optional[Sequence[int]] = None
    ) -> Array: ...
    @overload
    def reduce_scatter(
        self, send: Data, receive: DataT, reduction: Union[str, Reduction] = "sum", element_counts: Optional[Sequence[int]] = None
    ) -> DataT: ...
    def reduce_scatter(
        self, send: Data, receive: Any = None, reduction: Union[str, Reduction] = "sum", element_counts: Optional[Sequence[int]] = None
    ) -> Any:
        """The reduction of this rank's part of all workers' `send`, which is split in rank order into parts of
        `element_counts` elements (None: equal parts). Returns `receive`, or without one a new flat NumPy array."""
        return self.reduce_scatter_async(send, receive, reduction, element_counts).wait()

    def barrier_async(self) -> Operation[None]:
        return Operation(self._handle, (), lambda _: None, _raw.dsgd_barrier, self._options_of())

    def barrier(self) -> None:
        """Ends when all workers have called it."""
        self.barrier_async().wait()

    def _options_of(self, *buffers: Buffer) -> Tuple[int, int, int, int]:
        return (*self._options, max((buffer.stream for buffer in buffers), default=0))

    @contextlib.contextmanager
    def _counted(self, element_counts: Optional[Sequence[int]]) -> Iterator[Tuple[int, Optional[Sequence[int]]]]:
        """Gives the number of workers, and the counts for the C call, which the block makes.

        The host may have made `element_counts` for an earlier view. Then the C call must fail with VIEW_CHANGED, as on the
        other workers. So a wrong number of counts is replaced by an empty list, which C refuses, but only if the host knows
        the view.
        """
        size = int(_raw.dsgd_size(self._handle.pointer))
        if element_counts is None or len(element_counts) == size:
            yield size, element_counts
            return
        try:
            yield size, ()
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"element_counts has {len(element_counts)} numbers; give one for each of the {size} workers"
            ) from None


class Channel(Collectives):
    """A sequence of collectives of its own, made by Session.channel. Its calls need no common order with the steps, or with
    the calls of other channels."""

    def __init__(self, handle: Handle, number: int, timeout_ms: int) -> None:
        self._handle = handle
        self._options = (0, timeout_ms, number)


def _new_array(shape: Any, like: Buffer) -> Any:
    numpy = numpy_or_none()
    if numpy is None:
        raise InvalidArgumentError("receive is missing; without NumPy installed give a buffer for the result")
    if like.dtype is DType.bfloat16:
        raise InvalidArgumentError("receive is missing; NumPy has no bfloat16, so give a tensor for the result")
    return numpy.empty(shape, like.dtype.name)


def _same_dtype(source: Buffer, target: Buffer) -> Buffer:
    if source.dtype != target.dtype:
        raise InvalidArgumentError(f"send is {source.dtype.name} and receive is {target.dtype.name}; give equal dtypes")
    return target
