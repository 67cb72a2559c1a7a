"""One worker's membership in a job."""

from __future__ import annotations

import asyncio
import concurrent.futures
import atexit
import operator
import os
import warnings
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, List, Literal, Optional, Tuple, Type, Union, overload

from . import _logs, _raw
from ._buffers import Buffer, Data, as_array
from ._collectives import Channel, Collectives
from ._config import Config, config_from, options_text
from ._errors import Error, InvalidArgumentError, MismatchError, StateError
from ._handle import Handle, close_all, interruptible, milliseconds, wait_in_slices
from ._head import close_heads
from ._nccl import wheel_nccl
from ._operation import Operation, StepOperation
from ._replica import Parameter, Replica, UntrainedParameter
from ._shard import Shard
from ._tables import DType, SessionState, Status
from ._types import LogRecord, SessionInfo, StepResult, dtype_of, state_of


def _reason(exception: BaseException) -> str:
    """As the last line of a traceback, in UTF-8 without U+0000."""
    try:
        text = str(exception).replace("\0", "").encode(errors="replace").decode()
    except Exception:
        text = ""  # of a class whose __str__ fails
    return f"{type(exception).__name__}: {text}" if text else type(exception).__name__


def _path(folder: Union[str, "os.PathLike[str]", None]) -> Optional[str]:
    return None if folder is None else os.fspath(folder)


class Session(Collectives):
    """One worker's membership in a job, made by dsgd.init; a context manager.

    Leaving the block closes the session in good order. An exception that leaves it fails this worker, as fail() does.
    """

    def __init__(
        self,
        handle: Handle,
        optimizer_is_none: bool = False,
        early_update: bool = False,
        views_change: bool = False,
        absent_is_zero: bool = False,
        devices: str = "cpu",
        devices_per_worker: int = 0,
    ) -> None:
        self._handle = handle
        self._parameters: List[Parameter] = []
        self._replicas: List[Replica] = []
        self._optimizer_is_none = optimizer_is_none
        self._optimizer_chosen = False
        # The configuration's.
        self._early_update = early_update  # no gradient may be absent
        self._views_change = views_change  # workers may be lost, or join
        self._absent_is_zero = absent_is_zero  # an absent gradient counts as zero if another worker has one
        self._devices = devices
        self._devices_per_worker = devices_per_worker  # 0: all are this worker's
        self._attached = False  # to a module, by dsgd.torch
        self._rates_set = 0  # calls of set_learning_rate

    # ---- Membership ----

    @property
    def rank(self) -> int:
        """0 .. size-1."""
        return int(_raw.dsgd_rank(self._handle.pointer))

    @property
    def size(self) -> int:
        """Number of workers."""
        return int(_raw.dsgd_size(self._handle.pointer))

    @property
    def local_rank(self) -> int:
        """Rank among the workers on this node."""
        return int(_raw.dsgd_local_rank(self._handle.pointer))

    @property
    def local_size(self) -> int:
        """Number of workers on this node."""
        return int(_raw.dsgd_local_size(self._handle.pointer))

    @property
    def view(self) -> int:
        """Number of the view; only grows."""
        return int(_raw.dsgd_view(self._handle.pointer))

    @property
    def info(self) -> SessionInfo:
        """Rank, size, state and progress at one moment. Works after closing, too."""
        number, view, steps, state, *members = _raw.dsgd_session_info_read(self._handle.pointer)
        return SessionInfo(number, view, steps, state_of(state), *members)

    def metrics(self) -> Dict[str, float]:
        """Counters since init, by OpenMetrics name with labels: `metrics()['dsgd_calls_total{call="allreduce"}']`. Reading them
        is cheap and never blocks. `dsgd.h` says what they count."""
        lines = (line for line in self.metrics_text().split("\n") if line and line[0] != "#")
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def metrics_text(self) -> str:
        """The counters as OpenMetrics text, to be served to Prometheus as application/openmetrics-text."""
        return str(_raw.dsgd_metrics(self._handle.pointer))

    def trace(self) -> str:
        """The latest spans of the session, as JSON that Perfetto (ui.perfetto.dev) shows as a timeline: steps, their phases,
        buckets, calls and waits. `dsgd.h` says what is in it."""
        return str(_raw.dsgd_trace(self._handle.pointer))

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self, timeout: Optional[float] = None) -> None:
        """Ends the membership in good order: waits for operations in flight, at most `timeout` seconds (None:
        up to their own deadlines), then ends them. In a job that outlives losses, it also waits until the last step is
        final, which `timeout` limits, too (dsgd_close in dsgd.h). The buffers are the host's again. Closing twice is
        fine. Ctrl-C ends the wait and the operations.

        Raises Error with EVICTED if the others went on without this worker before it knew that its last step is final,
        and with DIVERGED if its values differ from theirs. The session is closed all the same."""
        self._handle.close(milliseconds(timeout))

    def channel(self, number: int, timeout: Optional[float] = None) -> Channel:
        """Collectives in a sequence of their own, for another thread than the one that makes the steps.

        number: 0 to 3; the session itself uses channel 0. timeout: deadline of each operation in seconds; None:
        `step_timeout`.
        """
        index = operator.index(number)
        if not 0 <= index < _raw.DSGD_CHANNELS:
            raise InvalidArgumentError(f"channel {index} does not exist; channels are 0 to {_raw.DSGD_CHANNELS - 1}")
        return Channel(self._handle, index, milliseconds(timeout))

    def abort(self, reason: Optional[str] = None) -> None:
        """Ends all operations, here and on every other worker, with an Error of Status.ABORTED that names this worker and `reason`. The
        session can then only be closed. Any thread; never blocks."""
        _raw.dsgd_abort(self._handle.pointer, reason)

    def fail(self, reason: Optional[str] = None) -> None:
        """Says that this worker has failed. In a job that goes on after losses, the others go on without it: the session
        fails with Status.WORKER_LOST. In any other job this is abort(). Any thread; never blocks."""
        _raw.dsgd_fail(self._handle.pointer, reason)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        exception: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if exception is None or (isinstance(exception, SystemExit) and not exception.code):
            self.close()
            return
        try:
            if not self.closed:
                self.fail(_reason(exception))
            self.close(0)
        except Error:
            pass  # the exception on its way says more

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        exception: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # In threads of its own, since the host may keep those of the default executor busy: closing waits for operations in
        # flight and for other workers.
        loop, threads = asyncio.get_running_loop(), concurrent.futures.ThreadPoolExecutor(2, "dsgd-close")
        try:
            await loop.run_in_executor(threads, self.__exit__, kind, exception, traceback)
        except asyncio.CancelledError:
            await loop.run_in_executor(threads, self._handle.close, 0)  # ends the wait of the other thread's call, too
            raise
        finally:
            threads.shutdown(wait=False)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not handle.closed:
            warnings.warn("unclosed dsgd.Session; use `with dsgd.init(...)`, or close it", ResourceWarning, source=self)

    def __repr__(self) -> str:
        try:
            return f"<dsgd.Session rank {self.rank} of {self.size}>"
        except Error as error:
            return f"<dsgd.Session {error.status.name}>"

    # ---- The model ----

    @overload
    def add_parameter(
        self, name: str, shape: Union[int, Iterable[int]], dtype: Any = DType.float32, *, trained: Literal[False]
    ) -> UntrainedParameter: ...
    @overload
    def add_parameter(
        self, name: str, shape: Union[int, Iterable[int]], dtype: Any = DType.float32, *, trained: bool = True
    ) -> Parameter: ...
    def add_parameter(
        self, name: str, shape: Union[int, Iterable[int]], dtype: Any = DType.float32, *, trained: bool = True
    ) -> Parameter:
        """Registers a tensor, before start; all workers the same ones in the same order. trained=False: state without
        gradient, such as a running mean: all workers start with rank 0's values; Parameter.set(sync=...) keeps them equal."""
        try:
            sizes = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        except TypeError:
            raise TypeError(
                f"shape of parameter {name!r} is {shape!r}; give an integer or a sequence of integers"
            ) from None
        kind = dtype_of(dtype)
        pointer = _raw.dsgd_parameter_add(self._handle.pointer, name, kind, sizes, 0 if trained else _raw.DSGD_UNTRAINED)
        parameter = (Parameter if trained else UntrainedParameter)(self._handle, pointer, name, sizes, kind, trained)
        self._parameters.append(parameter)
        return parameter

    def add_replica(self, device: Optional[str] = None) -> Replica:
        """Adds a copy of the model on a device, before start. None: the next entry of the configuration's `devices`;
        info.replicas counts them."""
        replica = Replica(self._handle, _raw.dsgd_replica_add(self._handle.pointer, device), len(self._replicas))
        self._replicas.append(replica)
        return replica

    @property
    def parameters(self) -> Tuple[Parameter, ...]:
        return tuple(self._parameters)

    @property
    def replicas(self) -> Tuple[Replica, ...]:
        return tuple(self._replicas)

    def set_optimizer(self, name: str, options: Optional[str] = None, **values: Any) -> None:
        """`set_optimizer("sgd", lr=0.1, momentum=0.9)`, before start. Names: sgd, adam, adamw, none (the mean gradient
        is written to the gradient buffers). Definitions and defaults are PyTorch's, but for the lr of sgd, which is 0.01.
        Options: lr, weight_decay and clip_norm (the largest L2 norm of the mean gradient); of sgd momentum, dampening and
        nesterov; of adam and adamw beta1, beta2, eps and amsgrad. Without this call it is sgd with lr=0.01; a session to
        which dsgd.torch has attached a module needs the call."""
        if not isinstance(name, str):
            raise TypeError(
                f"the optimizer's name is {name!r}; give 'sgd', 'adam' or 'adamw', or 'none' where an optimizer of PyTorch updates"
            )
        _raw.dsgd_optimizer_set(self._handle.pointer, name, options_text(options, values))
        self._optimizer_is_none = name == "none"
        self._optimizer_chosen = True

    def set_learning_rate(self, rate: float) -> None:
        """From the next step on, equal on all workers."""
        _raw.dsgd_learning_rate_set(self._handle.pointer, rate)
        self._rates_set += 1

    @property
    def loss_scale(self) -> float:
        """Factor to multiply the loss by before the next backward pass; 1 unless `loss_scale` is configured.
        A step whose mean gradient is not finite then changes nothing on any worker: its result is `skipped`."""
        return float(_raw.dsgd_loss_scale(self._handle.pointer))

    def set_strategy(self, name: str, options: Optional[str] = None, **values: Any) -> None:
        """How gradients become new values: simple, ps or allreduce. Options: algorithm of allreduce, copies of ps. Before
        start; or, called by all workers between steps, from the next step on."""
        self._run(_raw.dsgd_strategy_set, name, options_text(options, values), None)

    def start(self) -> None:
        """Checks that all workers agree, then gives every replica of every worker the values of rank 0's first; on a GPU,
        after the work enqueued in the default stream."""
        if self._attached and not self._optimizer_chosen:
            raise StateError(
                "a module is attached to this session, but no optimizer was chosen; call set_optimizer before start: "
                "set_optimizer('sgd', lr=0.1), or set_optimizer('none') where an optimizer of PyTorch updates the module"
            )
        self._check_gradients()
        try:
            self._run(_raw.dsgd_start, None)
        except MismatchError as error:
            if self._attached and " untrained " in error.message:
                error.message += "; an untrained parameter is a buffer or is frozen (requires_grad=False): freeze the same ones on all workers"
            raise
        except StateError as error:
            if not self._replicas:
                error.message += (
                    "; dsgd.torch.attach adds one for a PyTorch module, and DistributedDataParallel attaches its module "
                    "and starts the session"
                )
            elif self._attached and self.info.state == SessionState.STARTED:
                error.message += "; DistributedDataParallel starts its session by itself"
            raise

    def _run(self, function: Callable[..., Any], *args: Any, buffers: Tuple[Any, ...] = ()) -> None:
        Operation(self._handle, buffers, lambda _: None, function, *args).wait()

    def _check_gradients(self) -> None:
        if not self._optimizer_is_none:
            return
        for (replica, name), held in list(self._handle.bound.items()):
            if len(held) == 2 and held[1].readonly:
                raise InvalidArgumentError(
                    f"gradient of parameter {name!r} in replica {replica} is read-only, and with the optimizer 'none' "
                    "dsgd writes the mean into it; bind a writable buffer",
                    parameter=name,
                )

    # ---- The step ----

    def step(self, weight: float = 1.0) -> StepResult:
        """One synchronous step: the mean of all replicas' gradients over all workers, weighted by `weight` (usually this
        worker's number of samples), updates every replica. 0: this worker has no data left; keep calling until all_done.
        On a GPU new values may still be on their way when it returns: see Replica.stream_wait."""
        operation = self.step_begin(weight)
        operation._flush()
        return operation.wait()

    def step_begin(self, weight: float = 1.0) -> StepOperation:
        """Begins a step that overlaps the backward pass: mark gradients with Replica.gradient_ready as they come, then
        wait for, or await, what this returns. The step ends when every gradient is marked, ready or absent; step_flush
        marks the rest."""
        if self._attached:
            raise StateError(
                "a module is attached to this session, and its backward pass begins the steps; call "
                "Attachment.step(), or Attachment.join() on a worker that has no data left; with the optimizer "
                "'none' call step() of the PyTorch optimizer"
            )
        return self._step_begin(weight)

    def _step_begin(self, weight: float) -> StepOperation:
        if isinstance(weight, (str, bytes)) or not (hasattr(weight, "__float__") or hasattr(weight, "__index__")):
            raise TypeError(f"weight is {weight!r}; give a number, usually this worker's number of samples")
        if self._optimizer_is_none:
            self._check_gradients()  # others may have been bound since start
        return StepOperation(self._handle, weight)

    def step_flush(self) -> None:
        """All gradients not yet marked are ready. Waiting marks none."""
        _raw.dsgd_step_flush(self._handle.pointer)

    def request_stop(self) -> None:
        """Every worker sees `stop` in the result of the same step, the next one that this worker begins."""
        _raw.dsgd_stop_request(self._handle.pointer)

    def digest(self) -> int:
        """64-bit digest of the values of all parameters: equal bits, equal digest."""
        return int(interruptible(lambda: _raw.dsgd_digest(self._handle.pointer)))

    # ---- Checkpoints ----

    def save_checkpoint(self, folder: Union[str, "os.PathLike[str]", None] = None) -> None:
        """Saves a checkpoint of the model, the optimizer's state, the step and the data shards in `folder` (None: the
        configured checkpoint_dir), on a file system that all workers share. All workers call it between the same steps.
        Returns when the checkpoint exists."""
        self.save_checkpoint_begin(folder).wait()

    def save_checkpoint_begin(self, folder: Union[str, "os.PathLike[str]", None] = None) -> Operation[None]:
        """Begins save_checkpoint: the model may change as soon as this returns, and files are written beside the next
        steps. Wait for, or await, what it returns."""
        # The call may wait for an earlier save.
        def begin(session: Any, *arguments: Any) -> Any:
            return interruptible(lambda: _raw.dsgd_checkpoint_save(session, *arguments), abandoned=_raw.dsgd_op_free)

        return Operation(self._handle, (), lambda _: None, begin, _path(folder), None)

    def load_checkpoint(self, folder: Union[str, "os.PathLike[str]", None] = None) -> None:
        """Loads the newest checkpoint of `folder`, or the checkpoint `folder`/step-NNNNNNNNNN that is given itself, after
        start. Status.NOT_FOUND: there is none. After Status.VIEW_CHANGED, call it again, on all workers. info.steps then
        counts its steps, and the shards that were made before go on where it was taken. The number of workers and the
        strategy may be others."""
        self._run(_raw.dsgd_checkpoint_load, _path(folder), None)

    # ---- Objects, data, logs ----

    def put(self, name: str, data: Data) -> None:
        """Gives `data` to every worker under `name`; returns when all have it. A NumPy array, CPU tensor or array.array arrives as
        an array, in workers of all languages; bytes, a bytearray or a memoryview of bytes arrive as bytes."""
        buffer = Buffer(data, "data")
        as_bytes = isinstance(data, (bytes, bytearray, memoryview)) and buffer.dtype is DType.uint8 and len(buffer.shape) == 1
        dtype, shape = (-1, ()) if as_bytes else (int(buffer.dtype), buffer.shape)
        self._run(_raw.dsgd_object_put, name, buffer.source, dtype, shape, None, buffers=(buffer,))

    def get(self, name: str, timeout: Optional[float] = None) -> Any:
        """The object of that name, read-only and without a copy, waiting up to `timeout` seconds (None: `step_timeout`)
        for it. An array is a NumPy array, or a memoryview where there is no NumPy; its bfloat16 elements are seen as uint16. Bytes are a
        memoryview; `bytes(...)` of it copies."""
        found = Operation(self._handle, (), lambda op: _object(_raw.dsgd_op_object(op)), _raw.dsgd_object_get, name, None)
        try:
            return found._wait(
                timeout,
                lambda: f"object {name!r} has not come within {timeout:g} s: no worker has put it, or its data is still on the way",
            )
        except BaseException:
            _raw.dsgd_op_abort(found._op.pointer, None)  # no caller wants the object any more
            raise

    def delete(self, name: str) -> None:
        """Deletes the object of that name on all workers; returns when none holds it. The name can then be put again. Views
        that get() has returned stay valid."""
        self._run(_raw.dsgd_object_delete, name, None)

    def shard(self, samples: int, seed: int = 0, *, shuffle: bool = True) -> Shard:
        """This worker's part of a data set of `samples` samples; the order depends on seed and epoch alone."""
        return Shard(self._handle, samples, seed, shuffle)

    def poll_log(self, timeout: float = 0.0) -> Optional[LogRecord]:
        """The next log record, None if none comes: for sessions made with
        forward_logs=False."""
        try:
            record: LogRecord = wait_in_slices(lambda ms: _logs.poll(self._handle.pointer, ms), timeout)
            return record
        except Error as error:
            if error.status in (Status.WAIT_TIMEOUT, Status.CLOSED):
                return None
            raise


def init(config: Optional[Config] = None, *, forward_logs: bool = True, **options: Any) -> Session:
    """Joins a job and waits until it is complete: `dsgd.init(head="10.0.0.1:7700", num_workers=4)`, or with a Config.

    Without either, the DSGD_* variables of the environment are read. forward_logs: dsgd's log records go to
    logging.getLogger("dsgd"), from a thread; without a configuration of `logging`, Python writes warnings and errors to stderr.
    An exception in the meantime, KeyboardInterrupt for example, ends joining, and the other workers are told.
    """
    joining = _Joining(config, options)
    try:
        joining.begin().wait()
    except BaseException as failure:
        joining.end(failure)
        raise
    return joining.session(forward_logs)


async def init_async(config: Optional[Config] = None, *, forward_logs: bool = True, **options: Any) -> Session:
    """As init, while the event loop goes on: `async with await dsgd.init_async(num_workers=4) as session`.

    Cancelling it ends joining, and the other workers are told.
    """
    joining = _Joining(config, options)
    try:
        await joining.begin()
    except BaseException as failure:
        joining.end(failure)
        raise
    return joining.session(forward_logs)


class _Joining:
    """A session that joins its job."""

    def __init__(self, config: Optional[Config], options: Any) -> None:
        self._config = config_from(config, options)
        self._handle = Handle()
        self._logs_on_stderr = self._config["log_to"] == "stderr"

    def begin(self) -> Operation[None]:
        given = self._config["nccl_library"]
        self._config["nccl_library"] = given or wheel_nccl()
        try:
            op = self._handle.open(self._config._pointer)
        finally:
            self._config["nccl_library"] = given  # it may be the caller's
        return Operation(self._handle, (), lambda _: None, lambda _: op)

    def end(self, failure: BaseException) -> None:
        if self._handle.pointer is None:
            return
        if not isinstance(failure, Error):
            _raw.dsgd_abort(self._handle.pointer, f"{type(failure).__name__} while joining")
        self._handle.close(0)

    def _views_change(self) -> bool:
        """Whether the job can go on in another view, as core/base/views_change.h says."""
        workers = int(self._config["num_workers"])
        if any(int(self._config[limit] or workers) != workers for limit in ("min_workers", "max_workers")):
            return True
        return any(digit in self._config["rejoin_timeout"] for digit in "123456789")  # else it is 0, in any unit

    def session(self, forward_logs: bool) -> Session:
        config = self._config
        session = Session(
            self._handle,
            early_update=config["early_update"] == "1",
            views_change=self._views_change(),
            absent_is_zero=config["absent"] == "zero",
            devices=config["devices"],
            devices_per_worker=int(config["devices_per_worker"]),
        )
        if forward_logs:
            _logs.forward(self._handle, on_stderr=self._logs_on_stderr)
        return session


@atexit.register
def _at_exit() -> None:
    close_all()
    close_heads()
    _logs.join()


def _object(pointer: Any) -> Any:
    region, is_array = _raw.dsgd_py_object_region(pointer)
    return as_array(region) if is_array else memoryview(region)
