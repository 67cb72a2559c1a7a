"""The buffers of a module, such as batch-norm's running mean: all workers use rank 0's values, as in DistributedDataParallel."""

from __future__ import annotations

from typing import List

import torch

from .._collectives import Collectives
from .._replica import Replica
from .._session import Session
from .._tables import DType
from ._parameters import registered_name


class Buffers:
    """Found anew at each use, since a module may replace the tensor of a buffer."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._bound = [  # tensors in dsgd's memory, with the modules that have them
            (owner, name, buffer)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def restore(self) -> None:
        """Where the module has replaced a tensor, moves the new values into the earlier one and puts that back, so that
        checkpoints and workers that join get them."""
        for owner, name, bound in self._bound:
            present = owner._buffers.get(name)
            if present is None or present is bound or present.shape != bound.shape or present.dtype != bound.dtype:
                continue
            bound.copy_(present.detach())
            owner._buffers[name] = bound

    def _tensors(self) -> List[torch.Tensor]:
        return [buffer.detach() for buffer in self._module.buffers() if buffer.numel() > 0]

    def broadcast(self, session: Collectives) -> None:
        """All workers hold rank 0's afterwards. One collective, in host memory, for all buffers."""
        tensors = self._tensors()
        if not tensors:
            return
        packed = torch.cat([as_bytes(tensor).cpu() for tensor in tensors])
        session.broadcast(packed)
        begin = 0
        for tensor in tensors:
            end = begin + tensor.numel() * tensor.element_size()
            # A clone is aligned for any type.
            tensor.copy_(packed[begin:end].clone().view(tensor.dtype).view(tensor.shape))
            begin = end


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def add_untrained(session: Session, replica: Replica, name: str, tensor: torch.Tensor) -> None:
    """Registers a buffer or a frozen parameter, whose value the start of the session gives out."""
    if tensor.numel() == 0:
        return
    if not tensor.is_contiguous():
        tensor.data = tensor.data.contiguous()
    memory = tensor.detach()
    if str(memory.dtype).rpartition(".")[2] not in DType.__members__:
        memory = as_bytes(memory)  # such as bool
    replica.bind(session.add_parameter(registered_name(name), tuple(memory.shape), memory.dtype, trained=False), memory)
