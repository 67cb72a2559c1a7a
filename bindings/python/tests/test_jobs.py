"""Jobs of two and three worker processes over loopback."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import dsgd
import jobs
from raising import raises


def train(session, strategy, algorithm):
    """Least squares with momentum; returns the values and the digest."""
    random = numpy.random.default_rng(0)
    samples = random.integers(-3, 4, (60, 5)).astype("f8")
    targets = samples @ numpy.arange(5.0)
    weight = session.add_parameter("weight", 5, "float64")
    value, gradient = session.add_replica().alloc(weight)
    value[:] = session.rank + 1  # rank 0's are the ones that count
    session.set_optimizer("sgd", lr=0.01, momentum=0.5)
    session.set_strategy(strategy, **({"algorithm": algorithm} if algorithm else {}))
    session.start()
    assert (value == 1).all()
    shard = session.shard(len(samples), seed=3)
    for epoch in range(3):
        for batch in shard.batches(8, epoch):
            error = samples[batch] @ value - targets[batch]
            gradient[:] = samples[batch].T @ error / len(batch)
            result = session.step(len(batch))
    return value.tolist(), session.digest(), result.weight


def oracle(workers):
    random = numpy.random.default_rng(0)
    samples = random.integers(-3, 4, (60, 5)).astype("f8")
    targets = samples @ numpy.arange(5.0)
    value, velocity = numpy.ones(5), numpy.zeros(5)
    with dsgd.init() as session:
        orders = []
        for epoch in range(3):
            shard = session.shard(60, seed=3)
            shard.set_epoch(epoch)
            orders.append(shard.next(60))
    for order in orders:
        own = [order[rank::workers] for rank in range(workers)]
        for begin in range(0, len(own[0]), 8):
            batch = numpy.concatenate([indices[begin : begin + 8] for indices in own])
            gradient = samples[batch].T @ (samples[batch] @ value - targets[batch]) / len(batch)
            velocity = 0.5 * velocity + gradient
            value = value - 0.01 * velocity
    return value


@pytest.mark.parametrize(
    "strategy, algorithm", [("simple", None), ("ps", None), ("allreduce", "direct"), ("allreduce", "ring")]
)
def test_training_is_the_same_as_in_one_process(strategy, algorithm):
    results = jobs.run(train, 3, (strategy, algorithm))
    assert len({digest for _, digest, _ in results}) == 1
    for values, _, weight in results:
        numpy.testing.assert_allclose(values, oracle(3), rtol=1e-12)
        assert weight == 12  # 60 samples: 20 each, in batches of 8, 8, 4


def train_with_thirds(session):
    weight = session.add_parameter("weight", 1000, "float32")
    value, gradient = session.add_replica().alloc(weight)
    session.set_optimizer("sgd", lr=1)
    session.start()
    gradient[:] = (1 + session.rank) / 3
    for _ in range(30):
        session.step()
    return value.tolist()


def test_halves_on_the_wire_lose_no_more_than_one_rounding():
    first, second = jobs.run(train_with_thirds, 2, wire="bf16")
    assert first == second
    numpy.testing.assert_allclose(first, -30 * 0.5, atol=0.01)
    with pytest.raises(dsgd.InvalidArgumentError, match="key 'wire': 'fp16' needs loss_scale") as caught:
        dsgd.init(wire="fp16")
    assert caught.value.parameter == "wire"


def collect(session, dtype):
    rank, size = session.rank, session.size
    mine = numpy.arange(6, dtype=dtype) + rank
    out = {}
    for reduction in ("sum", "min", "max", "prod") + (("mean",) if dtype.startswith("float") else ()):
        out[reduction] = session.allreduce(mine.copy(), reduction).tolist()
    out["broadcast"] = session.broadcast(mine.copy(), root=1).tolist()
    out["allgather"] = session.allgather(mine.reshape(2, 3)).tolist()
    out["uneven"] = session.allgather(mine[: rank + 1].copy(), element_counts=range(1, size + 1)).tolist()
    out["scatter"] = session.reduce_scatter(mine).tolist()
    out["uneven scatter"] = session.reduce_scatter(mine, element_counts=[6] + [0] * (size - 1)).tolist()
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "int8", "uint64"])
def test_collectives(dtype):
    results = jobs.run(collect, 3, (dtype,))
    stacked = numpy.stack([numpy.arange(6, dtype=dtype) + rank for rank in range(3)])
    for rank, out in enumerate(results):
        assert out["sum"] == stacked.sum(0).tolist()
        assert out["min"] == stacked.min(0).tolist() and out["max"] == stacked.max(0).tolist()
        assert out["prod"] == stacked.prod(0, dtype=dtype).tolist()  # integers wrap around
        if dtype.startswith("float"):
            assert out["mean"] == stacked.mean(0).tolist()
        assert out["broadcast"] == stacked[1].tolist()
        assert out["allgather"] == stacked.reshape(3, 2, 3).tolist()
        assert out["uneven"] == [0, 1, 2, 2, 3, 4]
        assert out["scatter"] == stacked.sum(0)[2 * rank : 2 * rank + 2].tolist()
        assert out["uneven scatter"] == (stacked.sum(0).tolist() if rank == 0 else [])


def on_channels(session):
    def metrics(number, sums):
        channel = session.channel(number, timeout=60)
        for call in range(20):
            sums.append(float(channel.allreduce(numpy.full(3, float(number * call)))[0]))

    sums = [[] for _ in range(3)]
    numbers = [1, 2, 3] if session.rank == 0 else [3, 2, 1]  # no common order
    threads = [threading.Thread(target=metrics, args=(number, sums[number - 1])) for number in numbers]
    for thread in threads:
        thread.start()
    for _ in range(20):
        session.allreduce(numpy.ones(1000))
    for thread in threads:
        thread.join()
    return sums


def test_channels_need_no_common_order():
    expected = [[2.0 * number * call for call in range(20)] for number in (1, 2, 3)]
    assert jobs.run(on_channels, 2) == [expected, expected]


def test_a_channel_has_its_own_deadline_and_number():
    with dsgd.init(num_workers=1) as session:
        with pytest.raises(dsgd.InvalidArgumentError, match="channels are 0 to 3"):
            session.channel(4).barrier()
        with pytest.raises(dsgd.InvalidArgumentError, match="timeout is 0 ms"):
            session.channel(1, timeout=0).barrier()


def in_place(session):
    data = numpy.zeros((256, 256), "f4")
    data[:] = session.rank + 1
    address = data.ctypes.data
    operation = session.allreduce_async(data)
    result = operation.wait(30)
    return result is data and result.ctypes.data == address and bool((data == 3).all())


def test_a_collective_works_in_the_arrays_own_memory():
    assert jobs.run(in_place) == [True, True]


def uneven(session, batches):
    value, gradient = session.add_replica().alloc(session.add_parameter("w", 2))
    session.set_optimizer("sgd", lr=1)
    session.start()
    weights = []
    for weight in batches[session.rank]:
        gradient[:] = weight
        weights.append(session.step(weight).weight)
    while not (result := session.step(0)).all_done:
        weights.append(result.weight)
    return weights, value.tolist(), result.applied


def test_uneven_work_ends_together():
    results = jobs.run(uneven, 2, ([[1, 2, 3], [5]],))
    value = -((1 * 1 + 5 * 5) / 6) - 2 - 3
    for weights, values, applied in results:
        assert weights == [6, 2, 3] and not applied
        assert values == pytest.approx([value, value])


def stopping(session):
    session.add_replica().alloc(session.add_parameter("w", 2))
    session.start()
    steps = 0
    while True:
        if session.rank == 1 and steps == 3:
            session.request_stop()
        steps += 1
        if session.step().stop:
            return steps


def test_all_workers_see_the_stop_in_the_same_step():
    assert jobs.run(stopping, 3) == [4, 4, 4]


def objects(session):
    if session.rank == 1:
        session.put("settings", numpy.arange(1000, dtype="i8"))
    return int(numpy.frombuffer(session.get("settings", timeout=30), "i8").sum())


def test_objects_reach_everyone():
    assert jobs.run(objects, 3) == [499500] * 3


def overlapped(session):
    first, second = session.add_parameter("first", 1000), session.add_parameter("second", 3)
    replica = session.add_replica()
    (value, gradient), (_, other) = replica.alloc(first), replica.alloc(second)
    session.set_optimizer("sgd", lr=1)
    session.start()
    for step in range(5):
        operation = session.step_begin(1)
        other[:] = 1
        replica.gradient_ready(second)
        gradient[:] = session.rank
        replica.gradient_ready(first)
        operation.wait()
    return value[0].item(), session.digest()


def test_gradients_marked_one_by_one():
    (first, digest), (second, other) = jobs.run(overlapped)
    assert first == second == -2.5 and digest == other


# ---- Disagreement, loss, abort ----


def disagree(session, what):
    shape = 4 if what != "shape" or session.rank == 0 else 5
    name = "w" if what != "name" or session.rank == 0 else "v"
    session.add_replica().alloc(session.add_parameter(name, shape))
    if what == "optimizer" and session.rank == 1:
        session.set_optimizer("adam")
    session.start()


@pytest.mark.parametrize("what", ["shape", "name", "optimizer"])
def test_workers_that_disagree_hear_the_same_before_any_value_moves(what):
    with jobs.Job(disagree, arguments=(what,)) as job:
        errors = [job.failure(rank) for rank in range(2)]
    assert all(isinstance(error, dsgd.MismatchError) for error in errors)
    assert str(errors[0]) == str(errors[1])


def mismatched_collective(session):
    with pytest.raises(dsgd.MismatchError) as caught:
        session.allreduce(numpy.ones(3 + session.rank, "f4"))
    return str(caught.value), session.allreduce(numpy.ones(3))[0]


def test_a_mismatched_collective_fails_on_all_and_the_session_goes_on():
    for text, total in jobs.run(mismatched_collective):
        assert "3" in text and "4" in text and total == 2


def lose(session, folder, how):
    value, gradient = session.add_replica().alloc(session.add_parameter("w", 100))
    session.start()
    session.step()
    if session.rank == 1:
        pathlib.Path(folder, "pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), how)
    session.step()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_is_named(tmp_path, how):
    with jobs.Job(lose, arguments=(str(tmp_path), how), lease="500ms") as job:
        error = job.failure(0, timeout=30)
    assert isinstance(error, dsgd.WorkerLostError) and error.rank == 1
    assert "1" in str(error) and error.operation


def gather(session, parts):
    return session.allgather(numpy.ones(1), element_counts=[1] * parts).tolist()


def gather_in_the_background(session, parts):
    return session.allgather_async(numpy.ones(1), element_counts=[1] * parts).wait().tolist()


def scatter(session, parts):
    return session.reduce_scatter(numpy.ones(parts), element_counts=[1] * parts).tolist()


def scatter_equal_parts(session, parts):
    return session.reduce_scatter(numpy.ones(parts)).tolist()


def go_on_after_a_loss(session, folder, call):
    """With one worker less, makes a call for the earlier number of workers, then for the present one."""
    session.add_replica().alloc(session.add_parameter("w", 100))
    session.start()
    session.barrier()
    pathlib.Path(folder, str(session.rank)).touch()
    if session.rank == 2:
        while len(os.listdir(folder)) < 3:  # the barrier has ended everywhere
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    while session.size == 3:
        time.sleep(0.001)
    with raises(dsgd.Status.VIEW_CHANGED):
        call(session, 3)
    while True:
        try:
            result = call(session, 2)
            break
        except dsgd.Error as error:  # until the workers of the new view have agreed, and once more
            if error.status is not dsgd.Status.VIEW_CHANGED:
                raise
    with pytest.raises(dsgd.InvalidArgumentError) as caught:
        call(session, 3)
    session.barrier()
    return result, str(caught.value)


THREE_COUNTS = "element_counts has 3 numbers; give one for each of the 2 workers"
THREE_ELEMENTS = "reduce-scatter: 3 elements cannot be split evenly among 2 workers; give `element_counts`"


@pytest.mark.parametrize("call, expected, refusal", [
    (gather, [1, 1], THREE_COUNTS),
    (gather_in_the_background, [1, 1], THREE_COUNTS),
    (scatter, [2], THREE_COUNTS),
    (scatter_equal_parts, [2], THREE_ELEMENTS),
], ids=["gather", "gather in the background", "scatter", "scatter equal parts"])
def test_a_call_for_an_earlier_number_of_workers_fails_as_on_the_others(tmp_path, call, expected, refusal):
    with jobs.Job(go_on_after_a_loss, 3, (str(tmp_path), call), min_workers=1, lease="500ms") as job:
        assert [job.result(rank) for rank in range(2)] == [(expected, refusal)] * 2


def raise_in_block(session):
    session.add_replica().alloc(session.add_parameter("w", 2))
    session.start()
    if session.rank == 1:
        raise RuntimeError("the disk is full")
    session.step()


def test_an_exception_in_the_block_reaches_the_peers():
    with jobs.Job(raise_in_block) as job:
        error = job.failure(0)
        with pytest.raises(jobs.WorkerFailed, match="the disk is full"):
            job.result(1)
    assert error.status is dsgd.Status.ABORTED and error.rank == 1
    assert "RuntimeError: the disk is full" in str(error)


def go_on_alone(session):
    session.add_replica().alloc(session.add_parameter("w", 2))
    session.start()
    if session.rank == 1:
        raise RuntimeError("the disk is full")
    with pytest.raises(dsgd.Error) as caught:
        session.barrier()
    return caught.value.status, str(caught.value), session.step().size


def test_an_exception_in_the_block_of_an_elastic_job_loses_only_its_worker():
    with jobs.Job(go_on_alone, 2, min_workers=1) as job:
        status, message, size = job.result(0)
        with pytest.raises(jobs.WorkerFailed, match="the disk is full"):
            job.result(1)
    assert status is dsgd.Status.VIEW_CHANGED and "failed: RuntimeError: the disk is full" in message and size == 1


def test_wrong_token_and_wrong_job():
    with dsgd.Head(head="127.0.0.1:0", num_workers=2, token="right", job="ours") as head:
        good = dict(head=head.address, num_workers=2, token="right", job="ours", embed_head="never", init_timeout="5s")
        for wrong in ({"token": "wrong"}, {"job": "theirs"}):
            with raises(dsgd.Status.UNAUTHORIZED):
                dsgd.init(**{**good, **wrong})


@pytest.mark.parametrize("taken, message", [
    ({"rank": 1}, "rank 1, .*, is taken by worker .* give each worker its own `rank`"),
    ({"worker_id": "me"}, "worker id 'me' was taken over .* give each session its own `worker_id`"),
])
def test_of_two_workers_with_one_rank_or_id_one_is_refused_and_the_other_joins(taken, message):
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head, concurrent.futures.ThreadPoolExecutor(2) as threads:
        options = dict(head=head.address, num_workers=2, embed_head="never", init_timeout="60s")
        begun = [threads.submit(dsgd.init, **options, **taken) for _ in range(2)]
        done, waiting = concurrent.futures.wait(begun, timeout=60, return_when=concurrent.futures.FIRST_COMPLETED)
        (refused,), (other,) = done, waiting
        with raises(dsgd.Status.EXISTS, match=message):
            refused.result()
        with dsgd.init(**options) as last, other.result() as first:
            assert {first.rank, last.rank} == {0, 1}
            assert first.rank == taken.get("rank", first.rank)


def test_an_unreachable_head():
    begin = time.monotonic()
    with raises(dsgd.Status.UNREACHABLE, dsgd.Status.TIMEOUT, match="127.0.0.1"):
        dsgd.init(head="127.0.0.1:9", num_workers=2, embed_head="never", init_timeout="300ms")
    assert time.monotonic() - begin < 20


def test_a_job_that_is_not_complete_in_time():
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:
        with pytest.raises(dsgd.TimeoutError, match="1 of 2"):
            dsgd.init(head=head.address, num_workers=2, embed_head="never", init_timeout="1s")


# ---- The head ----


def test_a_head_ends_with_its_job():
    with dsgd.Head(head="127.0.0.1:0", num_workers=1) as head:
        assert head.address.startswith("127.0.0.1:") and not head.address.endswith(":0")
        with pytest.raises(dsgd.WaitTimeoutError):
            head.wait(0.01)
        with dsgd.init(head=head.address, num_workers=1, embed_head="never") as session:
            assert session.size == 1
        head.wait(30)
    head.close()
    with pytest.raises(dsgd.ClosedError):
        head.wait()


def test_an_address_in_use():
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:
        with raises(dsgd.Status.ADDRESS_IN_USE, match=head.address):
            dsgd.Head(head=head.address, num_workers=2)
    with pytest.raises(dsgd.InvalidArgumentError):
        dsgd.Head(head="no address")


def test_workers_join_by_the_environment():
    text = """
import dsgd
with dsgd.init() as session:
    print(session.rank, session.size, session.allreduce(bytearray([session.rank + 1]))[0])
"""
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:
        environment = dict(os.environ, DSGD_HEAD=head.address, DSGD_NUM_WORKERS="2", DSGD_EMBED_HEAD="never")
        running = [
            subprocess.Popen(
                [sys.executable, "-c", text], env=dict(environment, DSGD_RANK=str(rank)),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=60)[0] for process in running]
    assert said == ["0 2 3\n", "1 2 3\n"]
