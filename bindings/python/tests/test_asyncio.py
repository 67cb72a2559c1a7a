import asyncio
import concurrent.futures
import threading

import numpy
import pytest

import dsgd
import jobs


def test_operations_are_awaited(session):
    async def main():
        data = numpy.ones(10, "f4")
        assert await session.allreduce_async(data) is data
        gathered = await asyncio.gather(*(session.allreduce_async(numpy.full(5, i)) for i in range(50)))
        assert [array[0] for array in gathered] == list(range(50))
        await session.barrier_async()

    asyncio.run(main())


def test_a_step_is_awaited(session):
    value, gradient = session.add_replica().alloc(session.add_parameter("w", 3))
    session.set_optimizer("sgd", lr=1)
    session.start()

    async def main():
        gradient[:] = 1
        operation = session.step_begin(4)
        session.step_flush()
        return await operation

    for step in range(3):
        result = asyncio.run(main())
        assert result.step == step and result.weight == 4
    assert (value == -3).all()


async def ticks(until):
    """How often the event loop comes round until the future is done."""
    count = 0
    while not until.done():
        await asyncio.sleep(0)
        count += 1
    return count


def test_a_session_is_joined_and_closed_while_the_event_loop_goes_on():
    async def main():
        joining = asyncio.ensure_future(dsgd.init_async(num_workers=1))
        assert await ticks(joining) > 0
        async with await joining as session:
            assert (await session.allreduce_async(numpy.ones(3)) == 1).all()
        assert session.closed
        with pytest.raises(ValueError):
            async with await dsgd.init_async(num_workers=1) as session:
                raise ValueError
        assert session.closed

    asyncio.run(main())


def test_joining_may_be_cancelled_or_fail():
    async def main():
        waiting = asyncio.ensure_future(dsgd.init_async(num_workers=2, rank=0, head="127.0.0.1:0"))
        for _ in range(100):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(dsgd.Error):
            await dsgd.init_async(num_workers=2, rank=1, head="127.0.0.1:1", init_timeout="100ms")

    asyncio.run(main())


async def cancel_the_closing(session):
    loop, released = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, released.wait)

    async def closed_with_a_barrier_in_flight():
        async with session:
            session.barrier_async()

    closing = asyncio.ensure_future(closed_with_a_barrier_in_flight())
    while session.info.state is not dsgd.SessionState.CLOSED:
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    released.set()
    await busy


def close(session):
    if session.rank == 0:
        return asyncio.run(cancel_the_closing(session))
    with pytest.raises(dsgd.Error, match="closed"):  # it does not join the barrier
        session.get("never")


def test_closing_is_cancelled_though_the_default_executor_is_busy():
    jobs.run(close, step_timeout="10m")


def meet(session):
    """Rank 1 comes only when rank 0's loop has been seen to run while its operation was in flight."""

    async def main():
        if session.rank == 1:
            await asyncio.get_running_loop().run_in_executor(None, session.get, "go")
            return float((await session.allreduce_async(numpy.ones(3)))[0])
        operation = session.allreduce_async(numpy.ones(3))
        waiting = asyncio.ensure_future(_await(operation))
        twice = asyncio.ensure_future(_await(operation))
        cancelled = asyncio.ensure_future(_await(operation))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done() and not operation.done
        cancelled.cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(operation), 0.01)
        session.put("go", b"")
        assert (await twice) is (await waiting)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return float((await waiting)[0])

    return asyncio.run(main())


async def _await(operation):
    return await operation


def test_the_loop_runs_on_while_an_operation_is_in_flight():
    assert jobs.run(meet) == [2.0, 2.0]


def test_two_loops_share_a_session(session):
    """Whichever of two event loops reads the session's queue wakes the other's waiters too."""
    results = []

    def loop():
        async def main():
            for _ in range(50):
                results.append(float((await session.allreduce_async(numpy.ones(4)))[0]))

        asyncio.run(main())

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [1.0] * 100


def aborted(session):
    async def main():
        if session.rank == 1:
            await asyncio.get_running_loop().run_in_executor(None, session.get, "go")
            session.abort("no more data")
            return None
        waiting = [asyncio.ensure_future(_await(session.barrier_async())) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, session.put, "go", b"")
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        return [(error.status.name, error.rank, "no more data" in str(error)) for error in errors]

    return asyncio.run(main())


def test_awaiting_an_operation_that_fails_raises():
    assert jobs.run(aborted)[0] == [("ABORTED", 1, True)] * 3


def closed(session):
    async def main():
        if session.rank == 1:
            session.get("never")  # until the test ends this process
        waiting = asyncio.ensure_future(_await(session.barrier_async()))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, session.close, 0)
        with pytest.raises(dsgd.ClosedError):
            await asyncio.wait_for(waiting, 20)
        return True

    return asyncio.run(main())


def test_close_wakes_those_who_await():
    with jobs.Job(closed) as job:
        assert job.result(0) is True
