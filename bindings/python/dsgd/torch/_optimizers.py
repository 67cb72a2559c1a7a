"""Optimizers of PyTorch that hold parameters which an optimizer of dsgd updates."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Dict, Iterable, List, Tuple

import torch

from .._errors import StateError

Settings = Dict[str, Any]


class OtherOptimizers:
    """Finds settings that change in optimizers of PyTorch, which dsgd's optimizer does not see. Learning rate schedulers
    change them, and so do hosts.

    PyTorch has no list of optimizers, so they are sought among all objects. That takes some 50 ms, so it is done before the
    first step, the second, the third, the fifth, the ninth and so on."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._attached = {id(tensor) for tensor in tensors}
        self._known: Dict[int, Tuple["weakref.ref[Any]", Dict[int, Settings]]] = {}  # by id; settings by group
        self._checks = 0
        self._rates_set = 0

    def check(self, rates_set: int) -> None:
        """Before each step. `rates_set`: how often the host has set the session's learning rate."""
        if self._checks & (self._checks - 1) == 0:
            self._seek()
        self._checks += 1
        followed = rates_set != self._rates_set  # the host gives the rate to dsgd itself
        for reference, groups in list(self._known.values()):
            optimizer = reference()
            if optimizer is None:
                continue
            for index, before in groups.items():
                now = _settings(optimizer, optimizer.param_groups[index])
                for name, value in before.items():
                    if now.get(name) != value and not (name == "lr" and followed):
                        raise StateError(_text(optimizer, name, value, now.get(name)))
                groups[index] = now
        self._rates_set = rates_set

    def _seek(self) -> None:
        found: List[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)]
        for optimizer in found:
            known = self._known.get(id(optimizer))
            if known is not None and known[0]() is optimizer:
                continue
            groups = {
                index: {**_settings(optimizer, group), **_settings_before_schedulers(group)}
                for index, group in enumerate(getattr(optimizer, "param_groups", []))
                if any(id(tensor) in self._attached for tensor in group["params"])
            }
            if groups:
                self._known[id(optimizer)] = (weakref.ref(optimizer), groups)


def _settings(optimizer: Any, group: Settings) -> Settings:
    """The numbers in a group of parameters, such as "lr" and "betas"."""
    return {name: _number(group[name]) for name in optimizer.defaults if name in group}


def _settings_before_schedulers(group: Settings) -> Settings:
    """A scheduler with a warm-up changes the rate as it is made, and keeps the one from before."""
    return {"lr": _number(group["initial_lr"])} if "initial_lr" in group else {}


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return tuple(_number(part) for part in value) if isinstance(value, (list, tuple)) else value


def _text(optimizer: Any, name: str, before: Any, now: Any) -> str:
    follow = "call session.set_learning_rate() after each change of it, or " if name == "lr" else ""
    return (
        f"{name!r} of a {type(optimizer).__name__} of PyTorch was changed from {before} to {now}, as learning rate schedulers "
        "do, but the session's optimizer updates its parameters and does not take the change; "
        f"{follow}call set_optimizer('none') before the session starts and step the optimizer of PyTorch"
    )
