"""Trains a PyTorch module with dsgd, as torch.nn.parallel.DistributedDataParallel does with a process group.

With an optimizer of PyTorch, backward leaves the mean gradient of all workers in `.grad`:

    import dsgd, dsgd.torch, torch

    with dsgd.init() as session:
        model = dsgd.torch.DistributedDataParallel(module, session)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

With an optimizer of dsgd, which updates the parameters while gradients are still travelling:

    with dsgd.init() as session:
        attachment = dsgd.torch.attach(session, module)
        session.set_optimizer("sgd", lr=0.1, momentum=0.9)
        session.start()                       # all workers hold rank 0's parameters and buffers
        for x, y in batches:
            module.zero_grad()
            loss(module(x), y).backward()
            attachment.step()
"""

from ._attachment import Attachment, attach
from ._distributed import DistributedDataParallel

__all__ = ["Attachment", "DistributedDataParallel", "attach"]
