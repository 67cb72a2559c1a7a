#!/usr/bin/env python3
"""Records what PyTorch's optimizers compute on the CPU, for optimizer_test.

    pip install torch
    python record_optimizers.py recorded_optimizers.json

Uses the single-tensor implementations (foreach=False, fused=False). Numbers are written as hexadecimal bit patterns, so
that nothing is rounded on the way. Inputs are made by the generator below and written too.
"""
import json
import struct
import sys

import torch

STEPS = 12
ELEMENTS = 19  # more than two vectors of any instruction set, and a remainder

# dsgd's name and options, PyTorch's class and arguments
CASES = [
    ("sgd", "lr=0.1", torch.optim.SGD, dict(lr=0.1)),
    ("sgd", "lr=0.05 weight_decay=0.01", torch.optim.SGD, dict(lr=0.05, weight_decay=0.01)),
    ("sgd", "lr=0.1 momentum=0.9", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("sgd", "lr=0.1 momentum=0.9 dampening=0.3", torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3)),
    ("sgd", "lr=0.1 momentum=0.9 dampening=0.3 weight_decay=0.02", torch.optim.SGD,
     dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.02)),
    ("sgd", "lr=0.03 momentum=0.8 nesterov=1", torch.optim.SGD, dict(lr=0.03, momentum=0.8, nesterov=True)),
    ("sgd", "lr=0.03 momentum=0.8 nesterov=1 weight_decay=0.001", torch.optim.SGD,
     dict(lr=0.03, momentum=0.8, nesterov=True, weight_decay=0.001)),
    ("adam", "", torch.optim.Adam, dict()),
    ("adam", "lr=0.02 beta1=0.8 beta2=0.95 eps=1e-6", torch.optim.Adam,
     dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6)),
    ("adam", "lr=0.02 beta1=0.3 beta2=0.5", torch.optim.Adam, dict(lr=0.02, betas=(0.3, 0.5))),
    ("adam", "lr=0.02 beta1=0 beta2=0.9", torch.optim.Adam, dict(lr=0.02, betas=(0.0, 0.9))),
    ("adam", "lr=0.01 weight_decay=0.05", torch.optim.Adam, dict(lr=0.01, weight_decay=0.05)),
    ("adam", "lr=0.01 amsgrad=1", torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    ("adam", "lr=0.01 amsgrad=1 weight_decay=0.05", torch.optim.Adam,
     dict(lr=0.01, amsgrad=True, weight_decay=0.05)),
    ("adamw", "", torch.optim.AdamW, dict()),
    ("adamw", "lr=0.05 weight_decay=0.1", torch.optim.AdamW, dict(lr=0.05, weight_decay=0.1)),
    ("adamw", "lr=0.05 weight_decay=0", torch.optim.AdamW, dict(lr=0.05, weight_decay=0)),
    ("adamw", "lr=0.05 weight_decay=0.1 amsgrad=1", torch.optim.AdamW,
     dict(lr=0.05, weight_decay=0.1, amsgrad=True)),
]


def bits(tensor):
    code, width = ("f", 8) if tensor.dtype == torch.float32 else ("d", 16)
    integer = "I" if code == "f" else "Q"
    return " ".join("%0*x" % (width, struct.unpack(integer, struct.pack(code, x))[0]) for x in tensor.tolist())


def states(optimizer, parameter):
    """The state tensors in dsgd's order."""
    state = optimizer.state[parameter]
    names = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    return [bits(state[name]) for name in names if isinstance(state.get(name), torch.Tensor)]


def record(inputs, name, options, kind, arguments):
    parameter = torch.nn.Parameter(inputs["values"].clone())
    optimizer = kind([parameter], foreach=False, fused=False, **arguments) if kind is torch.optim.SGD else kind(
        [parameter], foreach=False, fused=False, capturable=False, **arguments)
    steps = []
    for gradient in inputs["gradients"]:
        parameter.grad = gradient.clone()
        optimizer.step()
        steps.append({"value": bits(parameter.detach()), "states": states(optimizer, parameter)})
    return {"optimizer": name, "options": options, "steps": steps}


def main():
    torch.set_num_threads(1)
    document = {"torch": torch.__version__.split("+")[0], "seed": 20, "dtypes": {}}
    for dtype in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(document["seed"])
        inputs = {
            "values": torch.randn(ELEMENTS, generator=generator, dtype=torch.float64).to(dtype),
            # Magnitudes from 1e-4 to 1e2, and an exact zero.
            "gradients": [(torch.randn(ELEMENTS, generator=generator, dtype=torch.float64) *
                           10 ** (6 * torch.rand(ELEMENTS, generator=generator, dtype=torch.float64) - 4)).to(dtype)
                          for _ in range(STEPS)],
        }
        inputs["values"][3] = 0
        for gradient in inputs["gradients"]:
            gradient[5] = 0
        document["dtypes"][str(dtype).removeprefix("torch.")] = {
            "values": bits(inputs["values"]),
            "gradients": [bits(gradient) for gradient in inputs["gradients"]],
            "cases": [record(inputs, *case) for case in CASES],
        }
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(document, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
