"""The worker of loss_worker.c in Python, with its arguments and its output, but without DEATH and SIGTERM."""

import sys
import time

import dsgd

DRAWN = 64


def draw(shard, step, most):
    """Writes the samples of epoch 0; returns their number."""
    indices = shard.next(most) if shard.epoch == 0 else []
    print("drew", step, *indices, flush=True)
    return len(indices)


def train(session, number, steps, elements, pause, samples):
    value, gradient = session.add_replica("cpu").alloc(session.add_parameter("p", (elements,)))
    session.set_optimizer("sgd", "lr=1 momentum=0.5")
    session.start()
    shard = session.shard(samples, 7)
    result = None
    step = session.info.steps  # 0, or where the job is that this worker has joined
    while step < steps or (step < elements and not (result and result.all_done)):
        weight = 1
        if step < steps:
            draw(shard, step, 2)
        else:
            weight = int(draw(shard, step, DRAWN) > 0)
        gradient[:] = 0
        gradient[step] = 1 << number
        before = value[step]
        time.sleep(pause)
        result = session.step(weight)
        change = before - value[step]
        print(f"step {step} {result.view} {result.size} {result.weight:g} {change:.9g} {time.monotonic():.6f}", flush=True)
        step += 1
    while not (result and result.all_done):
        result = session.step(0)
    print("values", value.tobytes().hex())


def main():
    number, steps, elements, microseconds, _, samples = map(int, sys.argv[1:7])
    try:
        with dsgd.init() as session:
            print("joined", flush=True)
            train(session, number, steps, elements, microseconds * 1e-6, samples)
    except dsgd.Error as error:
        print("failed", error.status.name, error)


if __name__ == "__main__":
    main()
