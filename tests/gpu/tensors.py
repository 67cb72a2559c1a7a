"""A framework's tensors as a replica's buffers and dsgd's memory as the framework's tensors, without a copy either way; and as
buffers of collectives.

tensors.py FRAMEWORK [--device cuda:0]      torch, cupy, jax, or numpy (on the cpu). Status 0: right, 1: wrong, 3: it is not there

Gradients are written by the device long after the host has marked them, on a stream of the framework's, and new values are read on
that stream, so that the order of streams shows: what comes too early has other numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any, Callable, ContextManager, Dict, List, Optional

import dsgd

COUNT, STEPS, RATE = 1000, 5, 0.5
SPIN = 30_000_000  # cycles of the device before a gradient is written


class Framework:
    """What differs between frameworks. `fill` may return another tensor than it was given, where tensors cannot be written."""

    writable = True

    def zeros(self) -> Any: ...
    def address(self, tensor: Any) -> int: ...
    def take(self, tensor: dsgd.Tensor) -> Any: ...
    def fill(self, tensor: Any, numbers: List[float]) -> Any: ...
    def read(self, tensor: Any) -> List[float]: ...
    def stream(self) -> ContextManager[Optional[int]]:
        return contextlib.nullcontext()


class Torch(Framework):
    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")

    def zeros(self) -> Any:
        return self.torch.zeros(COUNT, device=self.device)

    def address(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def take(self, tensor: dsgd.Tensor) -> Any:
        return self.torch.from_dlpack(tensor)

    def fill(self, tensor: Any, numbers: List[float]) -> Any:
        there = self.torch.tensor(numbers, device=self.device)
        if self.device.type == "cuda":
            self.torch.cuda._sleep(SPIN)
        return tensor.copy_(there)

    def read(self, tensor: Any) -> List[float]:
        return tensor.tolist()

    @contextlib.contextmanager
    def stream(self):
        if self.device.type != "cuda":
            yield None
            return
        stream = self.torch.cuda.Stream(self.device)
        stream.wait_stream(self.torch.cuda.current_stream(self.device))
        with self.torch.cuda.stream(stream):
            yield stream.cuda_stream


class Cupy(Framework):
    def __init__(self, device: str) -> None:
        import cupy

        if device == "cpu":
            raise ImportError("CuPy has GPUs alone")
        self.cupy = cupy
        cupy.cuda.Device(int(device.partition(":")[2])).use()
        code = 'extern "C" __global__ void spin(long long n) { long long b = clock64(); while (clock64() - b < n) {} }'
        self.spin = cupy.RawKernel(code, "spin")

    def zeros(self) -> Any:
        return self.cupy.zeros(COUNT, "float32")

    def address(self, tensor: Any) -> int:
        return tensor.data.ptr

    def take(self, tensor: dsgd.Tensor) -> Any:
        return self.cupy.from_dlpack(tensor)

    def fill(self, tensor: Any, numbers: List[float]) -> Any:
        there = self.cupy.asarray(numbers, "float32")
        self.spin((1,), (1,), (self.cupy.int64(SPIN),))
        tensor[...] = there
        return tensor

    def read(self, tensor: Any) -> List[float]:
        return tensor.get().tolist()

    @contextlib.contextmanager
    def stream(self):
        with self.cupy.cuda.Stream(non_blocking=True) as stream:
            yield stream.ptr


class Jax(Framework):
    """Its arrays cannot be written, so values are dsgd's, and each step's gradient is bound anew."""

    writable = False

    def __init__(self, device: str) -> None:
        import os

        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the GPU's memory
        import jax

        kind, _, index = device.partition(":")
        self.jax = jax
        try:
            self.device = jax.devices("gpu" if kind == "cuda" else "cpu")[int(index or 0)]
        except RuntimeError as error:
            raise ImportError(f"JAX has no such device: {error}") from None

    def zeros(self) -> Any:
        return self.jax.device_put(self.jax.numpy.zeros(COUNT, "float32"), self.device)

    def address(self, tensor: Any) -> int:
        return tensor.unsafe_buffer_pointer()

    def take(self, tensor: dsgd.Tensor) -> Any:
        return self.jax.numpy.from_dlpack(tensor)

    def fill(self, tensor: Any, numbers: List[float]) -> Any:
        # Work of the device's that takes its time and adds nothing.
        size = 64 if self.device.platform == "cpu" else 4096
        slow = self.jax.device_put(self.jax.numpy.ones((size, size), "float32"), self.device)
        for _ in range(20):
            slow = slow @ slow * (1 / size)
        return self.jax.device_put(self.jax.numpy.asarray(numbers, "float32"), self.device) + (slow[0, 0] - slow[0, 0])

    def read(self, tensor: Any) -> List[float]:
        return [float(number) for number in self.jax.device_get(tensor + 0)]


class Numpy(Framework):
    def __init__(self, device: str) -> None:
        import numpy

        if device != "cpu":
            raise ImportError("NumPy has the cpu alone")
        self.numpy = numpy

    def zeros(self) -> Any:
        return self.numpy.zeros(COUNT, "float32")

    def address(self, tensor: Any) -> int:
        return tensor.ctypes.data

    def take(self, tensor: dsgd.Tensor) -> Any:
        return self.numpy.from_dlpack(tensor)

    def fill(self, tensor: Any, numbers: List[float]) -> Any:
        tensor[:] = numbers
        return tensor

    def read(self, tensor: Any) -> List[float]:
        return tensor.tolist()


FRAMEWORKS: Dict[str, Callable[[str], Framework]] = {"torch": Torch, "cupy": Cupy, "jax": Jax, "numpy": Numpy}


def gradient_of(step: int) -> List[float]:
    return [float((7 * i + step) % 11 - 5) for i in range(COUNT)]


def must_be(what: str, seen: Any, wanted: Any) -> None:
    if seen != wanted:
        first = next((f", first at {i}: {a} for {b}" for i, (a, b) in enumerate(zip(seen, wanted)) if a != b), "") if isinstance(seen, list) else ""
        sys.exit(f"FAILED: {what} is not what it should be{first or f': {seen} for {wanted}'}")


def train(framework: Framework, device: str, bound: bool) -> None:
    """`bound`: the buffers are the framework's own; else dsgd's, of which the framework has tensors."""
    with dsgd.init() as session:
        replica = session.add_replica(device)
        parameter = session.add_parameter("weight", COUNT)
        held, gradient_held = replica.alloc_tensors(parameter)
        own = bound and framework.writable
        if own:
            value, gradient = framework.zeros(), framework.zeros()
            replica.bind(parameter, value, gradient)
        else:
            value, gradient = framework.take(held), framework.take(gradient_held)
            again = framework.take(held)
            must_be("the address of the same tensor", framework.address(again), framework.address(value))
            if framework.address(value) == framework.address(gradient):
                sys.exit("FAILED: value and gradient have one address")
        session.set_optimizer("sgd", lr=RATE)
        session.start()
        expected = [0.0] * COUNT
        for step in range(STEPS):
            numbers = gradient_of(step)
            expected = [value - RATE * number for value, number in zip(expected, numbers)]
            with framework.stream() as stream:
                if framework.writable:
                    operation = session.step_begin(1)
                    framework.fill(gradient, numbers)
                    replica.gradient_ready(parameter, stream)
                    operation.wait()
                else:
                    replica.bind(parameter, held, framework.fill(None, numbers))
                    session.step(1)
                # Taken anew, a tensor is right on the stream on which it is taken.
                seen = value if own else framework.take(held)
                must_be(f"the value after step {step}", framework.read(seen), expected)
            if not bound:
                with framework.stream():  # another one, on which nothing was marked
                    must_be(f"the value after step {step}, on another stream,", framework.read(framework.take(held)), expected)


def collect(framework: Framework) -> None:
    """Collectives read and write a tensor after the work that its current stream holds."""
    with dsgd.init() as session:
        for step in range(STEPS):
            numbers = gradient_of(step)
            with framework.stream():
                tensor = framework.fill(framework.zeros(), numbers)
                if not framework.writable:
                    must_be("what is gathered", session.allgather(tensor).reshape(-1).tolist(), numbers)
                    continue
                must_be("the sum", framework.read(session.allreduce(tensor)), numbers)
                gathered = framework.fill(framework.zeros(), gradient_of(step + 1))
                must_be("what is gathered", framework.read(session.allgather(tensor, gathered)), numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    try:
        framework = FRAMEWORKS[options.framework](options.device)
    except ImportError as error:
        print(f"{options.framework}: {error}", file=sys.stderr)
        return 3
    for bound in (True, False):
        train(framework, options.device, bound)
    collect(framework)
    print(f"{options.framework} on {options.device}: its tensors and dsgd's are one memory, in the order of its streams")
    return 0


if __name__ == "__main__":
    sys.exit(main())
