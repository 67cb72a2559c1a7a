"""Trains a small network on handwritten digits with PyTorch, together with any number of other workers in any language.

Copy this file to begin a trainer of your own. The values of the module's parameters and their gradients are dsgd's memory, so
that nothing is copied between PyTorch and dsgd: see attach() and step(). The network has 64 inputs, 128 hidden units with ReLU
and 10 classes. Run it by itself or under `dsgd run`; each entry of --device is a replica, and a GPU may have several. In the
second command two workers run the trainer digits.py on the CPU:

    python digits_torch.py --data digits.csv --device cuda:0
    dsgd run -n 1 -- python digits_torch.py --data digits.csv --device cuda:0,cuda:0 : -n 2 -- python digits.py --data digits.csv
"""

import argparse
import json
import os
import sys
import time

import dsgd
import torch
from torch.nn import functional

INPUTS, HIDDEN, CLASSES = 64, 128, 10


def read_data(path):
    """Every fifth row is for the test, the others for training: ((pixels, labels), (pixels, labels))."""
    try:
        with open(path) as file:
            rows = torch.tensor([[int(word) for word in line.split(",")] for line in file])
    except (OSError, ValueError) as error:
        sys.exit(f"digits: cannot read {path}: {error}")
    pixels, labels = rows[:, :INPUTS].float() / 16, rows[:, INPUTS]
    test = torch.arange(len(rows)) % 5 == 0
    return (pixels[~test], labels[~test]), (pixels[test], labels[test])


class Layer(torch.nn.Module):
    """As torch.nn.Linear with the weight the other way round, which is how trainers in other languages have it: all workers
    of a job have parameters of the same names and shapes."""

    def __init__(self, inputs, outputs):
        super().__init__()
        bound = (6 / inputs) ** 0.5
        self.weight = torch.nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))  # He et al. 2015
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, given):
        return torch.addmm(self.bias, given, self.weight)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = Layer(INPUTS, HIDDEN)
        self.output = Layer(HIDDEN, CLASSES)

    def forward(self, pixels):
        return self.output(functional.relu(self.hidden(pixels)))


class Replica:
    """A copy of the model, and of the data, on the next one of the session's devices."""

    def __init__(self, session, train):
        self.replica = session.add_replica()  # says if there is no such device
        self.device = torch.device(self.replica.device)
        self.network = Network().to(self.device)
        self.pixels, self.labels = (data.to(self.device) for data in train)
        self.loss = torch.zeros((), device=self.device)

    def attach(self, parameters):
        """Puts the network's values and gradients into dsgd's memory. Autograd adds to a gradient that is there, in place."""
        for name, tensor in self.network.named_parameters():
            value, gradient = self.replica.alloc_tensors(parameters[name])
            tensor.data = torch.from_dlpack(value).copy_(tensor.data)
            tensor.grad = torch.from_dlpack(gradient)

    def begin_epoch(self, order):
        self.order = order.to(self.device)  # once per epoch: a copy of each batch from the host would wait for the GPU
        self.loss.zero_()

    def backward(self, begin, end):
        """The mean gradient over these images of the epoch."""
        self.network.zero_grad(set_to_none=False)  # None would make autograd take other memory
        if begin < end:
            rows = self.order[begin:end]
            loss = functional.cross_entropy(self.network(self.pixels[rows]), self.labels[rows])
            loss.backward()
            self.loss += loss.detach() * (end - begin)

    def mark(self, parameters):
        """Tells dsgd where on the GPU's stream the gradients will be ready. Neither this nor backward() waits for the GPU. Work
        that is enqueued in this stream after the step sees the new values."""
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None
        for parameter in parameters.values():
            self.replica.gradient_ready(parameter, stream)

    def accuracy(self, pixels, labels):
        with torch.no_grad():
            right = self.network(pixels.to(self.device)).argmax(dim=1) == labels.to(self.device)
        return 100 * right.float().mean().item()


def step(session, replicas, parameters, begin, end):
    """One step on images [begin, end) of the epoch, divided over the replicas. Without images this worker contributes nothing."""
    count = end - begin
    bounds = [begin + count * r // len(replicas) for r in range(len(replicas) + 1)]
    for r, replica in enumerate(replicas):
        replica.replica.set_weight(bounds[r + 1] - bounds[r])  # the mean weighs each replica by its images
    operation = session.step_begin(count)
    for r, replica in enumerate(replicas):
        replica.backward(bounds[r], bounds[r + 1])
        replica.mark(parameters)
    return operation.wait()


def report(**values):
    print(json.dumps(values), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits.csv")
    parser.add_argument("--device", help="one or more of cpu, cuda:0, ..., with commas; else DSGD_DEVICES, or every GPU")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--optimizer-options", default="lr=0.1 momentum=0.9")
    options = parser.parse_args()
    if options.batch < 1 or options.epochs < 1:
        parser.error("--batch and --epochs are at least 1")
    # dsgd run --set devices=auto --set devices_per_worker=1 gives each worker one GPU.
    devices = options.device or os.environ.get("DSGD_DEVICES") or ("auto" if torch.version.cuda else "cpu")
    if "cuda" in devices and torch.version.cuda is None:
        parser.error("this PyTorch was built without CUDA; install another, or try --device cpu")
    train, test = read_data(options.data)
    torch.manual_seed(options.seed)

    with dsgd.init(devices=devices) as session:  # the rest from DSGD_* variables, for example from `dsgd run`
        replicas = [Replica(session, train) for _ in range(session.info.replicas)]
        parameters = {
            name: session.add_parameter(name, tuple(tensor.shape))
            for name, tensor in replicas[0].network.named_parameters()
        }
        for replica in replicas:
            replica.attach(parameters)
        session.set_optimizer(options.optimizer, options.optimizer_options)
        session.start()  # from here on all replicas of all workers hold rank 0's values

        shard = session.shard(len(train[1]), seed=options.seed)
        for epoch in range(1, options.epochs + 1):
            began = time.perf_counter()
            shard.set_epoch(epoch)
            order = torch.as_tensor(shard.next(max(len(shard), 1)), dtype=torch.long)
            for replica in replicas:
                replica.begin_epoch(order)
            done, begin = False, 0
            while not done:  # a worker that has no data left goes on with weight 0 until nobody has
                end = min(begin + options.batch, len(order))
                done, begin = step(session, replicas, parameters, begin, end).all_done, end
            loss = sum(replica.loss.item() for replica in replicas)
            speed = len(shard) / (time.perf_counter() - began)
            report(epoch=epoch, loss=loss / len(shard), accuracy=replicas[0].accuracy(*test), samples_per_second=speed)
        devices = ",".join(replica.replica.device for replica in replicas)
        digest = f"{session.digest():016x}"
        report(done=True, rank=session.rank, language="python", device=devices, accuracy=replicas[0].accuracy(*test), digest=digest)


if __name__ == "__main__":
    try:
        main()
    except dsgd.Error as error:
        sys.exit(f"digits: {error}")
