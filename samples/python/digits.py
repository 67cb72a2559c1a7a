"""Trains a small network on handwritten digits, together with any number of other workers in any language.

Copy this file to begin a trainer of your own. The code for dsgd is in main(); the network (64 inputs, 128 hidden units
with ReLU, 10 classes, softmax cross-entropy) is above it. Run it by itself or under `dsgd run`:

    python digits.py --data digits.csv --epochs 40
    dsgd run -n 4 -- python digits.py --data digits.csv --epochs 40

With checkpoints it goes on after a crash, here by itself:

    dsgd run -n 4 --restarts 3 -- python digits.py --data digits.csv --checkpoint checkpoints
"""

import argparse
import json
import sys
import time

import dsgd
import numpy as np

INPUTS, HIDDEN, CLASSES = 64, 128, 10


def read_data(path):
    """Every fifth row is for the test, the others for training: ((pixels, labels), (pixels, labels))."""
    rows = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels, labels = rows[:, :INPUTS] / 16, rows[:, INPUTS].astype(int)
    test = np.arange(len(rows)) % 5 == 0
    return (pixels[~test], labels[~test]), (pixels[test], labels[test])


def initialise(values, seed):  # uniform, He et al. 2015
    random = np.random.default_rng(seed)
    for name, inputs in (("hidden.weight", INPUTS), ("output.weight", HIDDEN)):
        bound = (6 / inputs) ** 0.5
        values[name][:] = random.uniform(-bound, bound, values[name].shape)


def forward(values, pixels):
    hidden = np.maximum(pixels @ values["hidden.weight"] + values["hidden.bias"], 0)
    scores = hidden @ values["output.weight"] + values["output.bias"]
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores)
    return hidden, probabilities / probabilities.sum(axis=1, keepdims=True)


def backward(values, gradients, pixels, labels):
    """Writes the mean gradient of a batch; returns the sum of the losses."""
    hidden, error = forward(values, pixels)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(error[rows, labels], 1e-30)).sum()
    error[rows, labels] -= 1
    error /= len(labels)
    gradients["output.weight"][:] = hidden.T @ error
    gradients["output.bias"][:] = error.sum(axis=0)
    back = (error @ values["output.weight"].T) * (hidden > 0)
    gradients["hidden.weight"][:] = pixels.T @ back
    gradients["hidden.bias"][:] = back.sum(axis=0)
    return float(loss)


def accuracy(values, pixels, labels):
    return 100 * float((forward(values, pixels)[1].argmax(axis=1) == labels).mean())


def load_newest(session):
    while True:
        try:
            return session.load_checkpoint()
        except dsgd.Error as error:
            if error.status == dsgd.Status.NOT_FOUND:  # there is none
                return
            if error.status != dsgd.Status.VIEW_CHANGED:  # else a worker has joined or was lost: all load again
                raise


def report(**values):
    print(json.dumps(values), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits.csv")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--optimizer-options", default="lr=0.1 momentum=0.9")
    parser.add_argument("--checkpoint", metavar="DIR", help="save in this folder, and go on from its newest checkpoint")
    options = parser.parse_args()
    (pixels, labels), test = read_data(options.data)

    config = dsgd.Config()  # DSGD_* variables, for example from `dsgd run`
    if options.checkpoint:  # dsgd saves by itself; DSGD_CHECKPOINT_INTERVAL changes how often
        config["checkpoint_dir"] = options.checkpoint
        if config["checkpoint_interval"] == "0":
            config["checkpoint_interval"] = "100"
    with dsgd.init(config) as session:
        # The model: four tensors, one copy of them on this worker's CPU.
        replica = session.add_replica("cpu")
        values, gradients = {}, {}
        for name, shape in (
            ("hidden.weight", (INPUTS, HIDDEN)),
            ("hidden.bias", (HIDDEN,)),
            ("output.weight", (HIDDEN, CLASSES)),
            ("output.bias", (CLASSES,)),
        ):
            values[name], gradients[name] = replica.alloc(session.add_parameter(name, shape))
        session.set_optimizer(options.optimizer, options.optimizer_options)
        initialise(values, options.seed)
        session.start()  # from here on all workers hold rank 0's values

        shard = session.shard(len(labels), seed=options.seed)
        if options.checkpoint:  # go on from the newest checkpoint, also with another number of workers
            load_newest(session)
        first = max(shard.epoch, 1)  # of the checkpoint, or of a running job that this worker has joined
        for epoch in range(first, options.epochs + 1):
            began, loss = time.perf_counter(), 0.0
            if shard.epoch != epoch:  # else it goes on within the epoch
                shard.set_epoch(epoch)
            done = False
            while not done:  # a worker that has no data left goes on with weight 0 until nobody has
                batch = shard.next(options.batch)
                if len(batch) > 0:
                    loss += backward(values, gradients, pixels[batch], labels[batch])
                done = session.step(len(batch)).all_done  # the mean weighs this worker by its samples
            speed = len(shard) / (time.perf_counter() - began)
            report(epoch=epoch, loss=loss / len(shard), accuracy=accuracy(values, *test), samples_per_second=speed)
        digest = f"{session.digest():016x}"
        report(done=True, rank=session.rank, language="python", accuracy=accuracy(values, *test), digest=digest)


if __name__ == "__main__":
    try:
        main()
    except dsgd.Error as error:
        sys.exit(f"digits: {error}")
