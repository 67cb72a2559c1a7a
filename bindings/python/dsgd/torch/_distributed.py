"""A module around a module, as torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, NoReturn, Optional

import torch

from .._errors import StateError
from .._session import Session
from ._attachment import attach, check_arguments


class DistributedDataParallel(torch.nn.Module):
    """Wraps a module; each backward pass ends with the mean gradient of all workers in `.grad`.

    Sets the session's optimizer to "none" and starts the session, after which all workers hold rank 0's parameters and
    buffers. The options are those of attach. As with PyTorch's class, the module is `.module`, and the keys of the state
    dictionary begin with "module.".
    """

    def __init__(
        self,
        module: torch.nn.Module,
        session: Session = None,  # type: ignore[assignment]  # without it: TypeError that shows the call
        *,
        device: Optional[str] = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        **others: NoReturn,  # a type checker accepts none
    ) -> None:
        super().__init__()
        check_arguments(session, module, "dsgd.torch.DistributedDataParallel(module, session)", others)
        if session._optimizer_chosen and not session._optimizer_is_none:
            raise StateError(
                "the session has an optimizer of dsgd, and this class leaves the update to one of PyTorch; use "
                "dsgd.torch.attach, whose step() updates the parameters, or do not call set_optimizer"
            )
        self.module = module
        self.attachment = attach(
            session,
            module,
            device=device,
            broadcast_buffers=broadcast_buffers,
            find_unused_parameters=find_unused_parameters,
        )
        session.set_optimizer("none")
        session.start()

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    def no_sync(self) -> ContextManager[None]:
        """See Attachment.no_sync."""
        return self.attachment.no_sync()

    def set_weight(self, weight: float) -> None:
        """See Attachment.set_weight."""
        self.attachment.set_weight(weight)

    def join_hook(self, **_: Any) -> NoReturn:
        """The hook that PyTorch's Join asks its models for."""
        raise TypeError("`with Join([model])` is for models of PyTorch; leave it out, and call model.join(optimizer.step) after the loop")

    def join(self, update: Callable[[], Any] = None) -> None:  # type: ignore[assignment]  # without it: an error of Attachment.join
        """See Attachment.join."""
        self.attachment.join(update)
