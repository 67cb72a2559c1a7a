"""PyTorch's fused optimizers on 100 million float32 parameters, in the rows of bench: name,seconds,bytes,limit.

bench_torch.py [--rounds N] [--scale PART]
"""

import argparse
import time

import torch

REPEATS = 20


def measure(enter) -> float:
    enter()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(REPEATS):
        enter()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    count = max(1024, int(100_000_000 * options.scale))
    print(f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    for _ in range(options.rounds):
        source, target = torch.zeros(count, device="cuda"), torch.zeros(count, device="cuda")
        print(f"torch device copy,{measure(lambda: target.copy_(source)):.9f},{8 * count},")
        del source, target
        for name, bytes_each, make in (
            ("sgd", 20, lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True)),
            ("adamw", 28, lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True)),
        ):
            parameter = torch.nn.Parameter(torch.zeros(count, device="cuda"))
            parameter.grad = torch.zeros_like(parameter)
            optimizer = make([parameter])
            print(f"torch fused {name},{measure(optimizer.step):.9f},{bytes_each * count},torch device copy", flush=True)
            del optimizer, parameter


if __name__ == "__main__":
    main()
