"""This worker's part of the data set."""

from __future__ import annotations

import array
import weakref
from typing import Any, Iterator, Optional

from . import _raw
from ._buffers import Indices, numpy_or_none
from ._errors import InvalidArgumentError
from ._handle import Handle


class Shard:
    """Which sample indices this worker reads in an epoch (a pass over the data set). Made by Session.shard.

    Over all workers every index comes exactly once per epoch, also if workers are lost and the job goes on: then ask
    for more even if there was none. One thread at a time.
    """

    def __init__(self, handle: Handle, samples: int, seed: int, shuffle: bool) -> None:
        self._handle = handle
        self._pointer = _raw.dsgd_shard_new(handle.pointer, samples, seed, 0 if shuffle else _raw.DSGD_SHARD_SEQUENTIAL)
        weakref.finalize(self, _raw.dsgd_shard_free, self._pointer).atexit = False

    def __len__(self) -> int:
        """Indices per epoch on this worker."""
        return int(_raw.dsgd_shard_size(self._pointer))

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch: 0, 1, 2, ..."""
        _raw.dsgd_shard_epoch(self._pointer, epoch)

    def seek(self, epoch: int, position: int) -> None:
        """Goes to a position in an epoch's order of all samples: the workers together have read the first `position`
        indices, and the rest is split among them anew. A job can thus resume in mid-epoch with another number of
        workers."""
        _raw.dsgd_shard_seek(self._pointer, epoch, position)

    @property
    def epoch(self) -> int:
        """The epoch that the shard is in: the last one set, or that of the checkpoint that was loaded."""
        return int(_raw.dsgd_shard_current_epoch(self._pointer))

    @property
    def position(self) -> int:
        """The position of all workers together, for seek(), provided that each has drawn as many indices as this one."""
        return int(_raw.dsgd_shard_position(self._pointer))

    def next(self, count: int) -> Indices:
        """Up to `count` next indices, as a NumPy array of int64 (array.array where there is no NumPy); none when the
        epoch is over."""
        if count < 1:
            raise InvalidArgumentError(f"{count} indices were asked for; give 1 or more")
        numpy = numpy_or_none()
        indices: Any = array.array("q", bytes(8 * count)) if numpy is None else numpy.empty(count, numpy.int64)
        drawn: Indices = indices[: _raw.dsgd_shard_next(self._pointer, indices)]
        return drawn

    def batches(self, size: int, epoch: Optional[int] = None) -> Iterator[Indices]:
        """The rest of the epoch, or all of the given one, in arrays of `size` indices; the last may be shorter."""
        if size < 1:
            raise InvalidArgumentError(f"a batch of {size} indices was asked for; give 1 or more")
        if epoch is not None:
            self.set_epoch(epoch)
        return self._batches(size)

    def _batches(self, size: int) -> Iterator[Indices]:
        while True:
            indices = self.next(size)
            if len(indices) == 0:
                return
            yield indices
