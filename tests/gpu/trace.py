"""CUDA calls of a step, from PyTorch's profiler, which sees the whole process: 161 tensors of ResNet-50 on one GPU.

trace.py [--steps N]                runs and traces; status 0: all calls are allowed, 1: some are not, 3: no GPU for PyTorch
trace.py --read TRACE [--steps N]   looks at a trace that was exported

Prints the calls per step. A step may enqueue and query; it must not synchronize, allocate or free.
PyTorch's profiler leaves out cudaEventCreate and cudaEventDestroy, with the calls that choose a device, and shows few of the driver's
functions besides launches; that no event is made in a step is tested on the fake runtime.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import tempfile
from typing import Any, Dict, List, Tuple

REGION = "dsgd steps"
# Of the runtime's and of the driver's functions, whose names may end in a version, and in what streams of their own threads have.
ALLOWED = re.compile(
    r"(cuda|cu)(LaunchKernel(Ex|ExC)?|Memcpy\w*Async|EventRecord(WithFlags)?|EventQuery|StreamWaitEvent|LaunchHostFunc|"
    r"(Device|DevicePrimaryCtx|Ctx|Stream|Pointer|Func)?(Get|Peek)\w+|SetDevice|Ctx(SetCurrent|PushCurrent|PopCurrent)|"
    r"ThreadExchangeStreamCaptureMode|StreamIsCapturing)(_v\d+)?(_ptsz|_ptds)?"
)
LEAST = 2  # kernels that a step launches; with less the trace has not seen what dsgd does


def resnet50() -> List[Tuple[int, ...]]:
    shapes: List[Tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = 64 << stage
        for block in range(blocks):
            shapes += [(planes, inputs, 1, 1), (planes,), (planes,), (planes, planes, 3, 3), (planes,), (planes,)]
            shapes += [(4 * planes, planes, 1, 1), (4 * planes,), (4 * planes,)]
            if block == 0:
                shapes += [(4 * planes, inputs, 1, 1), (4 * planes,), (4 * planes,)]
            inputs = 4 * planes
    return [*shapes, (1000, 2048), (1000,)]


def read(trace: Dict[str, Any], steps: int) -> int:
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    regions = [event for event in events if event["name"] == REGION and event.get("cat") in ("user_annotation", "cpu_op")]
    if not regions:
        print(f"FAILED: the trace has no region '{REGION}'")
        return 1
    begin, end = regions[0]["ts"], regions[0]["ts"] + regions[0]["dur"]
    calls = [e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and begin <= e["ts"] <= end]
    counts = collections.Counter(calls)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count / steps:g} per step")
    status = 0
    launches = sum(count for name, count in counts.items() if "LaunchKernel" in name)
    if launches < LEAST * steps:
        print(f"FAILED: the trace has {launches} launches of kernels, and {steps} steps make {LEAST * steps} at least")
        status = 1
    for name in sorted(counts):
        if not ALLOWED.fullmatch(name):
            print(f"FAILED: a step calls {name}, which is none of what it may")
            status = 1
    return status


def record(steps: int) -> int:
    try:
        import torch
    except ImportError as error:
        print(error, file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        return 3
    import dsgd

    with dsgd.init() as session:
        replica = session.add_replica("cuda:0")
        parameters = [session.add_parameter(f"p{i}", shape) for i, shape in enumerate(resnet50())]
        for parameter in parameters:
            replica.alloc_tensors(parameter)
        session.set_optimizer("sgd", lr=0.1, momentum=0.9)
        session.start()

        def step() -> None:
            operation = session.step_begin(1)
            for parameter in parameters:
                replica.gradient_ready(parameter)
            operation.wait()

        for _ in range(5):
            step()
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            with torch.profiler.record_function(REGION):
                for _ in range(steps):
                    step()
            torch.cuda.synchronize()
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            profile.export_chrome_trace(file.name)
            with open(file.name) as exported:
                return read(json.load(exported), steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--read", metavar="TRACE", help="a trace in Chrome's format, of --steps steps")
    options = parser.parse_args()
    if options.read:
        with open(options.read) as file:
            return read(json.load(file), options.steps)
    return record(options.steps)


if __name__ == "__main__":
    sys.exit(main())
