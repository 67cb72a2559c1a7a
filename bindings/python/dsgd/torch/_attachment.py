"""A module whose gradients dsgd averages while backward runs."""

from __future__ import annotations

import contextlib
import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Tuple

import torch

from .._errors import ClosedError, Error, InvalidArgumentError, StateError, WorkerLostError
from .._operation import StepOperation
from .._session import Session
from .._tables import SessionState, Status
from .._types import StepResult
from ._buffers import Buffers, add_untrained
from ._optimizers import OtherOptimizers
from ._parameters import TrainedParameter


def attach(
    session: Session,
    module: torch.nn.Module,
    *,
    device: Optional[str] = None,
    broadcast_buffers: bool = True,
    find_unused_parameters: bool = False,
    **others: NoReturn,
) -> "Attachment":
    """Makes `module` a replica of the session's model. Before Session.start.

    A session with an attached module has no default optimizer: call Session.set_optimizer before the start, too.

    Parameters that require a gradient are trained; their values and gradients move into dsgd's memory. Frozen parameters
    and buffers get rank 0's values when the session starts. All workers attach modules of the same structure.

    With the optimizer "none", each backward pass ends with the mean gradient of all workers in `.grad`, for an optimizer
    of PyTorch. With another one, call Attachment.step after backward. Until then dsgd sends this worker's gradient, which
    is in `.grad`: it may be read, not changed. Changes through exported memory (DLPack, data_ptr(), storage(), or a NumPy
    array that was made before backward) and by C++ extensions are not found. No optimizer of PyTorch may step. One that holds
    parameters of the module must keep its settings, since dsgd does not take them: the step after a learning rate scheduler or
    the host has changed one is an error. The host may give the rate to Session.set_learning_rate after each change; else use
    "none" with a scheduler.

    device: where the module is; by default found from its parameters.
    broadcast_buffers: after each step all workers hold rank 0's buffers, such as the running means of batch norm.
    find_unused_parameters: a backward pass may leave out parameters. A parameter without a gradient counts as zero if
    another worker has one for it; if no worker has one, its value stays. With the optimizer "none", a parameter whose
    `.grad` is not None counts as used, since an optimizer of PyTorch applies it; zero_grad(set_to_none=True) sets it to
    None. A pass that uses no parameter at all is an error. The option costs one small all-reduce per step, but none with
    an optimizer of dsgd and the key absent=zero. Without the option, a parameter that gets no gradient is an error.

    With early_update=1 no gradient may be absent: find_unused_parameters and freezing a parameter later are errors.

    In an elastic job, buffers may differ between workers for the step in which a worker is lost or joins. There
    find_unused_parameters needs absent=zero.
    """
    check_arguments(session, module, "dsgd.torch.attach(session, module)", others)
    if find_unused_parameters and session._early_update:
        raise InvalidArgumentError(
            "find_unused_parameters=True leaves gradients out, and no gradient may be absent with early_update = 1; set "
            "early_update = 0 on all workers, or use every parameter in each pass"
        )
    if find_unused_parameters and session._views_change and not session._absent_is_zero:
        raise InvalidArgumentError(
            "find_unused_parameters=True makes an all-reduce within each step if absent = skip, and a loss or a join in this "
            "elastic job could end it; set absent = zero on all workers"
        )
    if session._attached:
        raise StateError(
            "the session trains a module already; attach one module that contains all of them (torch.nn.ModuleList), or "
            "use a session for each"
        )
    if session.info.state in (SessionState.STARTED, SessionState.TORN):
        raise StateError(
            "the session has started; attach the module before Session.start, which DistributedDataParallel calls by itself"
        )
    if session.replicas:
        raise StateError("the session has a replica that is not this module; do not call add_replica: attach adds one")
    return Attachment(
        session,
        module,
        device=device,
        broadcast_buffers=broadcast_buffers,
        find_unused_parameters=find_unused_parameters,
    )


_PYTORCH_ARGUMENTS = {  # of its DistributedDataParallel, by name: what to do instead
    "device_ids": "move the module to its device before, module.to(device)",
    "output_device": "leave it out; the output is on the module's device",
    "process_group": "give the session, which names the workers",
    "bucket_cap_mb": "set the configuration key bucket_size",
    "gradient_as_bucket_view": "leave it out; gradients are always in the memory that is sent",
    "static_graph": "leave it out",
}


def check_arguments(session: Any, module: Any, call: str, others: Dict[str, Any]) -> None:
    """Raises TypeError that shows the right `call`, in particular where the two arguments are swapped, or what to do instead
    of `others`, which are no arguments."""
    if others:
        name = next(iter(others))
        raise TypeError(f"{call} takes no argument {name!r}; {_PYTORCH_ARGUMENTS.get(name, 'see its help()')}")
    for name, value, kind in (("module", module, torch.nn.Module), ("session", session, Session)):
        if not isinstance(value, kind):
            wanted = "a torch.nn.Module" if kind is torch.nn.Module else "a dsgd.Session"
            raise TypeError(f"argument {name!r} must be {wanted}, not {type(value).__name__!r}; call {call}")


class Attachment:
    """A module whose gradients dsgd averages. Made by attach."""

    def __init__(
        self,
        session: Session,
        module: torch.nn.Module,
        *,
        device: Optional[str],
        broadcast_buffers: bool,
        find_unused_parameters: bool,
    ) -> None:
        self.session = session
        self.module = module
        self.result: Optional[StepResult] = None  # of the latest step
        self._find_unused = find_unused_parameters
        self._weight = 1.0
        self._synchronizing = self._next_synchronizes = True  # see no_sync
        self._checked = False
        self._operation: Optional[StepOperation] = None
        self._end_queued = False  # _after_backward will be called
        self._failure: Optional[StateError] = None

        named = list(module.named_parameters())
        trained = [(name, tensor) for name, tensor in named if tensor.requires_grad]
        if not trained:
            raise InvalidArgumentError("the module has no parameter that requires a gradient; there is nothing to train")
        self.device = _device_of(trained, device)
        _check_configured(session, self.device)
        self._replica = session.add_replica(str(self.device) if self.device.type != "cpu" else "cpu")
        self._trained: List[TrainedParameter] = []
        self._frozen: List[Tuple[str, torch.Tensor]] = []
        for name, tensor in named:  # in the module's order, so that the first difference between workers is the one to correct
            if tensor.requires_grad:
                self._trained.append(TrainedParameter(session, self._replica, name, tensor))
            else:
                self._frozen.append((name, tensor))
                add_untrained(session, self._replica, name, tensor)
        for name, tensor in module.named_buffers():
            add_untrained(session, self._replica, name, tensor)
        self._buffers = Buffers(module)
        self._broadcasts_buffers = broadcast_buffers

        self._known = {id(tensor) for _, tensor in named}
        self._other_optimizers = OtherOptimizers(tensor for _, tensor in trained)
        self._hooks = [entry.on_gradient(self._on_gradient) for entry in self._trained]
        self._hooks.append(module.register_forward_pre_hook(_ForwardHook(self, "_before_forward")))
        if find_unused_parameters:
            self._hooks.append(module.register_forward_hook(_ForwardHook(self, "_after_forward")))
        session._attached = True  # steps are begun here from now on

    # ---- What the host calls ----

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients: passes whose forward runs in this context stay on this worker, and the first one after
        it sends the sum. As DistributedDataParallel.no_sync."""
        before, self._next_synchronizes = self._next_synchronizes, False
        try:
            yield
        finally:
            self._next_synchronizes = before

    def set_weight(self, weight: float) -> None:
        """Sets the contribution weight of this worker from the next step on, usually its number of samples. Call it
        before backward; the default is 1."""
        self._require_no_step("set_weight")
        self._weight = weight

    def step(self) -> StepResult:
        """Ends the step that backward began: all workers hold the new values afterwards. For optimizers of dsgd."""
        if self.session._optimizer_is_none:
            raise StateError(
                "with the optimizer 'none' a step ends with backward; call step() of an optimizer of PyTorch, or set "
                "one of dsgd's optimizers before the session starts"
            )
        if self._operation is None:
            self._check_module()
            raise StateError(
                "no gradient has come since the last step; call backward() on a loss of the attached module, outside "
                "no_sync(), before step(), or join() on a worker that has no data left"
            )
        return self._end_step()

    def join(self, update: Optional[Callable[[], Any]] = None) -> bool:
        """Takes part in steps with weight 0 until no worker has data left, and returns True. All workers call it after
        their last batch, where they may have different numbers of batches. With the optimizer "none", `update` is called
        after each step to apply the mean gradient: `join(optimizer.step)`. With an optimizer of dsgd and a learning rate
        that changes with the step, give a function that sets the next rate, as the loop does.

        In an elastic job it returns False after a step in another view than the last one: the data shard may have samples
        of a lost worker. Train on them, and call it again."""
        if update is None and self.session._optimizer_is_none:
            raise InvalidArgumentError(
                "join() needs a function that applies the mean gradient, since the optimizer is 'none'; give the step "
                "function of the optimizer: join(optimizer.step), as a call after the loop, not in a with statement"
            )
        if update is not None and not callable(update):
            raise TypeError(
                f"argument 'update' of join must be a function, not {type(update).__name__!r}; with an optimizer of "
                "PyTorch call join(optimizer.step)"
            )
        self._require_no_step("join")
        view = self.session.view if self.result is None else self.result.view
        while True:
            self._begin_step(0.0)
            result = self._end_step(idle=True)
            if result.all_done:
                return True
            if result.applied and update is not None:
                update()
            if result.view != view:
                return False

    def detach(self) -> None:
        """Removes the hooks, so that the module trains by itself again. Its parameters stay where they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for entry in self._trained:
            entry.release_gradient()

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the module, also a pickled one, is not attached

    # ---- Around the passes ----

    def _before_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if self._operation is None:
            self._check_module()
        self._synchronizing = self._next_synchronizes

    def _after_forward(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        """A pass that uses no parameter has no backward pass, which would begin the step that the others wait for."""
        if not (torch.is_grad_enabled() and self._synchronizing and module.training):
            return
        needs = list(_need_gradient(output))
        if needs and not any(needs):
            raise StateError(
                "this forward pass used no parameter that requires a gradient, so there is no backward pass that takes part "
                "in the step of the other workers; add 0 * sum(p.sum() for p in module.parameters()) to its output, or call "
                "eval() or use torch.no_grad() for a pass that does not train"
            )

    def _on_gradient(self, entry: TrainedParameter) -> None:
        """Autograd has accumulated a gradient, perhaps on a thread of its own."""
        if not self._synchronizing:
            entry.used = True
            return
        if self._failure is not None:
            raise self._failure
        if entry.marked_version is not None:
            self._failure = StateError(
                f"parameter {entry.name!r} got a second gradient in one step, and dsgd already sends the first; call "
                "step() after each backward(), and run all but the last of several passes in no_sync()",
                parameter=entry.name,
            )
            raise self._failure
        if self._operation is None:
            self._begin_step(self._weight)
        if self.session._optimizer_is_none and not self._end_queued:
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
            self._end_queued = True
        self._mark(entry)

    def _after_backward(self) -> None:
        self._end_queued = False
        if self._operation is None:
            return  # the step has failed during backward
        if _in_nested_backward() and any(entry.marked_version is None for entry in self._trained):
            return  # the outer pass goes on, and its next gradient queues this callback again
        self._end_step()

    def _begin_step(self, weight: float) -> None:
        if self.session.closed:
            raise ClosedError(
                "the session that this module is attached to was closed; call detach() to train the module without it"
            )
        self._check_module()
        self._operation = self.session._step_begin(weight)

    def _mark(self, entry: TrainedParameter) -> None:
        entry.used = True
        entry.take_gradient(local=not self.session._optimizer_is_none)
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None
        try:
            self._replica.gradient_ready(entry.parameter, stream)
        except Error:
            if self._operation is not None and self._operation.done:
                self._forget_step()  # it has failed
            raise
        entry.marked_version = entry.gradient._version

    def _end_step(self, idle: bool = False) -> StepResult:
        """Marks the gradients that did not come, and waits. `idle`: this worker has no data left."""
        operation = self._operation
        assert operation is not None
        if self._failure is not None:
            raise self._failure
        missing = [entry for entry in self._trained if entry.marked_version is None]
        self._mark_missing(missing, idle)
        if not idle:
            for entry in self._trained:
                if entry.marked_version is not None:
                    entry.check_gradient()
        try:
            self.result = result = operation.wait()
        finally:
            self._forget_step()
        if self.device.type == "cuda":
            self._replica.stream_wait(torch.cuda.current_stream(self.device).cuda_stream)
        self._after_step(result)
        return result

    def _forget_step(self) -> None:
        self._operation = None
        self._checked = self._end_queued = False
        for entry in self._trained:
            entry.used, entry.marked_version = False, None

    def _mark_missing(self, missing: List[TrainedParameter], idle: bool) -> None:
        if idle:
            for entry in missing:
                if not entry.used:
                    entry.tensor.grad = None  # a gradient of an earlier step, which must not count again
        used = self._used_by_any_worker() if self._find_unused else {}
        for entry in missing:
            if entry.used:  # by a pass in no_sync()
                self._mark(entry)
            elif used.get(entry):
                self._mark(entry)  # with zeros, or with the gradient that the host left in `.grad`
            elif self._find_unused or not entry.tensor.requires_grad:
                self._replica.gradient_absent(entry.parameter)
            elif idle:
                self._mark(entry)  # with zeros
            else:
                without = [e for e in missing if e.tensor.requires_grad and not e.used]
                self._failure = StateError(_missing_text(without), parameter=without[0].name)
                raise self._failure

    def _used_by_any_worker(self) -> Dict[TrainedParameter, bool]:
        """Returns which parameters have a gradient on some worker: all that must not be marked absent. With the optimizer
        "none", every `.grad` that is not None counts, because an optimizer of PyTorch applies it, zeros included."""
        counts_grads = self.session._optimizer_is_none
        if self.session._absent_is_zero and not counts_grads:
            return {}  # dsgd counts a gradient that is absent here as zero where another worker has one
        used_here = [entry.used or (counts_grads and entry.tensor.grad is not None) for entry in self._trained]
        flags = torch.tensor(used_here, dtype=torch.uint8, device="cpu")
        with _explain_worker_lost("This all-reduce finds the parameters that no worker uses (find_unused_parameters)"):
            used = self.session.allreduce(flags, "max").tolist()
        return dict(zip(self._trained, used))

    def _after_step(self, result: StepResult) -> None:
        if self.session._optimizer_is_none:
            if not result.applied:  # no mean was written; else the optimizer would apply this worker's own gradient
                for entry in self._trained:
                    entry.tensor.grad = None
        elif result.applied:
            _bump_versions([entry.tensor for entry in self._trained])
        self._buffers.restore()
        if self._broadcasts_buffers:
            with _explain_worker_lost("This broadcast gives rank 0's buffers to all workers after each step"):
                try:
                    self._buffers.broadcast(self.session)
                except Error as error:
                    if error.status is not Status.VIEW_CHANGED:  # else the broadcast after the next step makes them equal
                        raise

    def _require_no_step(self, what: str) -> None:
        if self._operation is not None:
            raise StateError(f"{what}() was called after backward has begun a step; call step() first")

    # ---- Whether the module is still the one that was attached ----

    def _check_module(self) -> None:
        """Once per step. A fault that it finds would otherwise train nothing, or only here, without a word."""
        if self._checked:
            return
        present = {
            id(tensor)
            for module in self.module.modules()
            for tensor in module._parameters.values()
            if tensor is not None
        }
        if present != self._known:
            raise StateError(
                "the module's parameters are not those that were attached: they were replaced, added or removed since, "
                "for example by load_state_dict(assign=True); change the module first, then attach it to a new session"
            )
        for name, tensor in self._frozen:
            if tensor.requires_grad:
                raise StateError(
                    f"parameter {name!r} was frozen when the module was attached and requires a gradient now; attach it "
                    "with requires_grad_(True), and freeze it afterwards",
                    parameter=name,
                )
        for entry in self._trained:
            entry.check_value()
            if self.session._early_update and not entry.tensor.requires_grad:
                raise StateError(
                    f"parameter {entry.name!r} was frozen after the module was attached, so that it has no gradient, and no "
                    "gradient may be absent with early_update = 1; freeze it before attach, or set early_update = 0 on all "
                    "workers",
                    parameter=entry.name,
                )
        if not self.session._optimizer_is_none:
            self._other_optimizers.check(self.session._rates_set)
        self._checked = True


@contextlib.contextmanager
def _explain_worker_lost(purpose: str) -> Iterator[None]:
    """Adds `purpose`, and that a join() may be missing, to a WorkerLostError of a collective that the host did not
    call."""
    try:
        yield
    except WorkerLostError as error:
        error.message += (
            f". {purpose}. Where workers have different numbers of batches, each calls join() after its last one"
        )
        raise


class _ForwardHook:
    """A hook of the module's forward. A copy of the module, such as a moving average, is not attached."""

    def __init__(self, attachment: Optional[Attachment] = None, method: str = "") -> None:
        self._attachment = (lambda: None) if attachment is None else weakref.ref(attachment)
        self._method = method

    def __call__(self, *arguments: Any) -> None:
        attachment = self._attachment()
        if attachment is not None:
            getattr(attachment, self._method)(*arguments)

    def __reduce__(self) -> Any:
        return _ForwardHook, ()


def _device_of(trained: List[Any], wanted: Optional[str]) -> torch.device:
    first_name, first = trained[0]
    for name, tensor in trained:
        if tensor.device != first.device:
            raise InvalidArgumentError(
                f"parameter {first_name!r} is on {first.device} and parameter {name!r} on {tensor.device}; a module that "
                "is attached is on one device"
            )
    if wanted is not None and torch.device(wanted) != first.device:
        raise InvalidArgumentError(f"the module is on {first.device}, not on {wanted!r}; move it first: module.to({wanted!r})")
    return first.device


def _check_configured(session: Session, device: torch.device) -> None:
    """Refuses a module that is on none of the devices that the key `devices`, if it names some, gives this worker."""
    entries = [entry.strip() for entry in session._devices.split(",")]
    if entries in (["cpu"], ["auto"]):
        return
    count = session._devices_per_worker
    if count > 0 and not session._views_change:  # else local ranks change
        entries = entries[session.local_rank * count : (session.local_rank + 1) * count]
    if entries and str(device) not in entries:
        raise InvalidArgumentError(
            f"the module is on {device}, but `devices` gives this worker {', '.join(entries)}; move the module there first, "
            f"module.to({entries[0]!r}), or do not set `devices`"
        )


def _need_gradient(output: Any) -> Iterator[bool]:
    """Of each tensor in the output of a module; True where its type is unknown."""
    if isinstance(output, torch.Tensor):
        yield output.requires_grad
    elif isinstance(output, (list, tuple, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _need_gradient(part)
    elif output is not None:
        yield True


def _in_nested_backward() -> bool:
    """Whether the backward pass that ends runs within another one, as those of reentrant checkpoints do."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.autograd.function.BackwardCFunction.apply.__code__:
            return True
        frame = frame.f_back
    return False


def _missing_text(missing: List[TrainedParameter]) -> str:
    names = ", ".join(repr(entry.name) for entry in missing[:5]) + (", ..." if len(missing) > 5 else "")
    count = "1 parameter" if len(missing) == 1 else f"{len(missing)} parameters"
    return (
        f"{count} got no gradient in this backward pass: {names}; give find_unused_parameters=True if "
        "that may be, or freeze them with requires_grad_(False)"
    )


def _bump_versions(tensors: List[torch.Tensor]) -> None:
    """Tells autograd that the values have changed, so that backward through a graph from before the step is an error."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.view(-1)[:0].zero_()
