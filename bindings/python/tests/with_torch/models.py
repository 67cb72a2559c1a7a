"""Modules, and a function that trains them for STEPS steps. dsgd and PyTorch use the same function."""

import contextlib
import os

import torch
import torch.utils.checkpoint
from torch import nn

STEPS = 200 if os.environ.get("TEST_ALL_CASES") else 32
CLASSES = 5


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def convolution():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, CLASSES)
    )


def frozen():
    module = mlp()
    for parameter in module[1].parameters():
        parameter.requires_grad_(False)
    return module


def tied():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, CLASSES))
    module[3].weight = module[1].weight
    return module


class Checkpointed(nn.Module):
    """The last layers are computed again in backward, in a pass of their own."""

    def __init__(self):
        super().__init__()
        self.flatten, self.first, self.last = nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, CLASSES)

    def forward(self, pixels):
        hidden = self.first(self.flatten(pixels))
        return torch.utils.checkpoint.checkpoint(lambda given: self.last(torch.relu(given)), hidden, use_reentrant=True)


class Branches(nn.Module):
    """Which branches a pass uses depends on the data: both, one, or on no worker the second one."""

    def __init__(self):
        super().__init__()
        self.flatten, self.trunk = nn.Flatten(), nn.Linear(64, 16)
        self.first, self.second = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, pixels, use=(True, True)):
        hidden = torch.relu(self.trunk(self.flatten(pixels)))
        return sum(branch(hidden) for branch, used in zip((self.first, self.second), use) if used)


def uses(step, rank):
    return (step + rank) % 3 != 0, step % 4 != 0 and (step + rank) % 2 == 0 or (step + rank) % 3 == 0


class Batches:
    """This worker's images, and labels that a linear rule gives them."""

    def __init__(self, rank, dtype=torch.float32):
        self.generator = torch.Generator().manual_seed(100 + rank)
        self.rule = torch.randn(64, CLASSES, generator=torch.Generator().manual_seed(9))
        self.dtype = dtype

    def next(self, count=8):
        pixels = torch.randn(count, 1, 8, 8, generator=self.generator)
        return pixels.to(self.dtype), (pixels.flatten(1) @ self.rule).argmax(1)


def train(model, batches, rank, *, optimizer=None, scheduler=None, after=lambda: None, clip=None, passes=1, branches=False,
          set_to_none=True, steps=STEPS):
    """`optimizer`: of PyTorch, or None where `after` updates. `passes`: how many are accumulated in a step."""
    no_sync = getattr(model, "no_sync", contextlib.nullcontext)
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.zero_()
        for last in [False] * (passes - 1) + [True]:
            pixels, labels = batches.next()
            arguments = (uses(step, rank),) if branches else ()
            with contextlib.nullcontext() if last else no_sync():
                nn.functional.cross_entropy(model(pixels, *arguments), labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if optimizer is not None:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        after()
    model.eval()
    with torch.no_grad():
        model(batches.next()[0])  # DistributedDataParallel gives out the buffers before the next pass, dsgd after the step


def state(module):
    """For comparison in another process."""
    return {name: tensor.detach().double().numpy().copy() for name, tensor in module.state_dict().items()}
