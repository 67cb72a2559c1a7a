"""PyTorch's fused optimizers on 100 million float32 parameters, in the rows of gpu_bench: name,seconds,bytes,limit.

bench_torch.py [--rounds N] [--scale PART]
"""

import argparse
import time

import torch


def measure(enqueue, small) -> float:
    """Seconds of one of many, measured as gpu_bench does it."""
    begin, calls = time.perf_counter(), 1
    warm, least = (0, 1e-4) if small else (0.3, 0.05)
    while True:
        before = time.perf_counter()
        for _ in range(calls):
            enqueue()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - before
        if seconds >= least and before - begin >= warm:
            return seconds / calls
        if seconds < least:
            calls *= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    if options.rounds < 1 or not 0 < options.scale <= 10:
        parser.error("--rounds is at least 1, --scale above 0, and up to 10")
    count, small = max(1024, int(100_000_000 * options.scale)), options.scale < 1
    print(f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    if small:
        print(f"# scale {options.scale:g}: small sizes, which say nothing of speed")
    for _ in range(options.rounds):
        for name, bytes_each, make in (
            ("sgd", 20, lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True)),
            ("adamw", 28, lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True)),
        ):
            limit = f"device copy beside torch fused {name}"
            source, target = (torch.randn(count, device="cuda") for _ in range(2))
            print(f"{limit},{measure(lambda: target.copy_(source), small):.9f},{8 * count},")
            del source, target
            parameter = torch.nn.Parameter(torch.randn(count, device="cuda"))
            parameter.grad = torch.randn_like(parameter)
            optimizer = make([parameter])
            print(f"torch fused {name},{measure(optimizer.step, small):.9f},{bytes_each * count},{limit}", flush=True)
            del optimizer, parameter


if __name__ == "__main__":
    main()
