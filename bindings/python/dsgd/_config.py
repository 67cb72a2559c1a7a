"""Configuration: string keys with string values."""

from __future__ import annotations

import datetime
import os
import weakref
from typing import Any, Iterator, List, Union

from . import _raw
from ._errors import InvalidArgumentError
from ._types import ConfigKey


def capability(name: str) -> bool:
    """Whether the library has an optional part: "cuda" for replicas on GPUs. False for names that it does not know."""
    return bool(_raw.dsgd_capability(name))


def config_keys() -> List[ConfigKey]:
    """The table of all keys, in alphabetical order."""
    return [ConfigKey(*_raw.dsgd_config_key_at(index)) for index in range(_raw.dsgd_config_key_count())]


def _text(value: Any) -> Any:
    """As the table writes it: switches 0 or 1, durations in ms. Anything else is str()'s; None is left to be refused."""
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, datetime.timedelta):
        return f"{round(value / datetime.timedelta(milliseconds=1))}ms"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


class Config:
    """How to join a job: `Config(head="10.0.0.1:7700", num_workers=4)`.

    A value comes from here, else from the environment (DSGD_HEAD, as it was when the Config was made), else from a
    loaded file, else from the default. One thread at a time.
    """

    def __init__(self, **values: Any) -> None:
        self._pointer = _raw.dsgd_config_new()
        if self._pointer is None:
            raise MemoryError("no memory for a dsgd.Config")
        # Not at exit, when a thread may be joining with it still.
        weakref.finalize(self, _raw.dsgd_config_free, self._pointer).atexit = False
        self.update(**values)

    def update(self, **values: Any) -> None:
        for key, value in values.items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        _raw.dsgd_config_set(self._pointer, key, _text(value))

    def __getitem__(self, key: str) -> str:
        """The effective value."""
        value = _raw.dsgd_config_value(self._pointer, key)
        if value is None:
            raise KeyError(key)
        return str(value)

    def get(self, key: str, default: Any = None) -> Any:
        value = _raw.dsgd_config_value(self._pointer, key)
        return default if value is None else value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and _raw.dsgd_config_value(self._pointer, key) is not None

    def __iter__(self) -> Iterator[str]:
        return (key.name for key in config_keys())

    def __len__(self) -> int:
        return int(_raw.dsgd_config_key_count())

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads "key = value" lines from a file. Nothing is set if one line fails."""
        _raw.dsgd_config_load(self._pointer, os.fsencode(path))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{key.name}={self[key.name]!r}"
            for key in config_keys()
            if key.name != "token" and self[key.name] != key.default
        )
        return f"Config({shown})"


def config_from(config: Any, values: Any) -> Config:
    if config is None:
        return Config(**values)
    if not isinstance(config, Config):
        raise TypeError(f"expected a dsgd.Config, got {type(config).__name__}; options are keyword arguments")
    if values:
        raise InvalidArgumentError(
            f"both a Config and options ({', '.join(sorted(values))}) were given; set the options on the Config"
        )
    return config


def options_text(options: Any, values: Any) -> Any:
    """The "key=value" words of dsgd.h from a string, keyword arguments, or both."""
    words = [] if options is None else [options]
    if options is not None and not isinstance(options, str):
        raise TypeError(f"the options are {options!r}; give a string or keyword arguments, such as lr=0.1")
    for key, value in values.items():
        if isinstance(value, (dict, list, tuple)):
            remedy = "give beta1 and beta2" if key == "betas" else f"give one value, as in {key}=0.1"
            raise TypeError(f"the option {key!r} is {value!r}; {remedy}")
    for key, value in values.items():
        words.append(f"{key}={int(value) if isinstance(value, bool) else value}")
    return " ".join(words) if words else None
