"""A job of one worker: everything but the peers."""

import dataclasses
import json
import logging
import math

import numpy
import pytest

import dsgd
from raising import raises


def trained(session, count=4, replicas=1, optimizer="sgd"):
    parameter = session.add_parameter("w", count)
    buffers = [session.add_replica("cpu").alloc(parameter) for _ in range(replicas)]
    session.set_optimizer(optimizer, **({"lr": 1.0} if optimizer == "sgd" else {}))
    session.start()
    return parameter, buffers


def test_who_am_i(session):
    assert (session.rank, session.size, session.local_rank, session.local_size) == (0, 1, 0, 1)
    assert session.view >= 0 and "rank 0 of 1" in repr(session)


def test_info_follows_the_session(session):
    joined = session.info
    assert (joined.state, joined.steps, joined.replicas) == (dsgd.SessionState.JOINED, 0, 1)
    assert (joined.rank, joined.size, joined.local_rank, joined.local_size) == (0, 1, 0, 1)
    assert joined.view == session.view and joined.id > 0
    trained(session)
    session.step()
    assert session.info == dataclasses.replace(joined, state=dsgd.SessionState.STARTED, steps=1)
    session.close()
    assert session.info == dataclasses.replace(joined, state=dsgd.SessionState.CLOSED, steps=1)


def test_metrics_count_calls_and_steps(session):
    trained(session)
    session.step()
    session.put("name", b"12345")
    session.get("name")
    metrics = session.metrics()
    assert metrics["dsgd_workers"] == metrics["dsgd_steps_total"] == metrics['dsgd_calls_total{call="start"}'] == 1
    assert metrics['dsgd_call_bytes_total{call="object_put"}'] == metrics['dsgd_call_bytes_total{call="object_get"}'] == 5
    assert metrics['dsgd_step_phase_seconds_total{phase="update"}'] > 0
    assert session.metrics_text().endswith("# EOF\n")
    events = json.loads(session.trace())["traceEvents"]
    assert {"step", "start", "object_put"} <= {event["name"] for event in events}
    session.close()
    with pytest.raises(dsgd.ClosedError):
        session.metrics()


def test_gradients_are_marked_all_or_none(session):
    parameters = [session.add_parameter(name, 2) for name in "abc"]
    replica = session.add_replica()
    buffers = [replica.alloc(parameter) for parameter in parameters]
    session.set_optimizer("sgd", lr=1.0)
    session.start()
    step = session.step_begin()
    for _, gradient in buffers:
        gradient[:] = 2
    with pytest.raises(dsgd.StateError, match="'a'"):
        replica.gradients_ready([*parameters, parameters[0]])
    replica.gradients_ready(parameters[1:])
    with pytest.raises(dsgd.StateError, match="'c'"):
        replica.gradients_ready([parameters[0], parameters[2]])
    replica.gradients_ready(iter(parameters[:1]))
    step.wait()
    assert all((value == -2).all() for value, _ in buffers)


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(6, dtype="f4").reshape(2, 3),
        numpy.arange(4, dtype="i8"),
        numpy.array(2.5),
        numpy.zeros((3, 0), "u1"),
        numpy.arange(3, dtype="f2"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_that_was_put_is_an_array(session, array):
    session.put("array", array)
    got = session.get("array")
    assert isinstance(got, numpy.ndarray) and got.dtype == array.dtype and got.shape == array.shape
    assert (got == array).all() and not got.flags.writeable


@pytest.mark.parametrize("data", [b"text", bytearray(b"text"), memoryview(b"text")], ids=lambda data: type(data).__name__)
def test_bytes_that_were_put_are_bytes(session, data):
    session.put("bytes", data)
    got = session.get("bytes")
    assert isinstance(got, memoryview) and bytes(got) == b"text"


def test_a_deleted_name_can_be_put_again(session):
    session.put("x", b"old")
    old = session.get("x")
    session.delete("x")
    with pytest.raises(dsgd.Error, match="'x'") as caught:
        session.delete("x")
    assert caught.value.status is dsgd.Status.NOT_FOUND
    session.put("x", b"new")
    assert bytes(session.get("x")) == b"new" and bytes(old) == b"old"


def test_a_shard_goes_on_in_mid_epoch(session):
    shard = session.shard(10, seed=3)
    first, second = list(shard.next(4)), list(shard.next(6))
    assert shard.position == 10
    shard.seek(0, 4)
    assert shard.position == 4 and list(shard.next(10)) == second and not set(first) & set(second)
    with pytest.raises(dsgd.InvalidArgumentError, match="position 11"):
        shard.seek(0, 11)


def test_the_package_tells_its_version():
    assert dsgd.__version__ == "1.0.0"


def test_unknown_capabilities_are_not_there(session):
    assert dsgd.capability("warp drive") is False
    try:
        session.add_replica("cuda:0")
    except dsgd.Error as error:
        assert dsgd.capability("cuda") is ("plug-in for CUDA devices cannot be loaded" not in str(error))


def test_a_step_applies_the_mean_over_replicas(session):
    _, ((value0, gradient0), (value1, gradient1)) = trained(session, replicas=2)
    gradient0[:], gradient1[:] = 1, 3
    result = session.step(8)
    assert math.isnan(result.gradient_norm)
    assert dataclasses.replace(result, gradient_norm=0) == dsgd.StepResult(0, session.view, 1, True, False, False, 8, 0, 0, -1, False)
    assert (value0 == -2).all() and (value1 == -2).all()
    assert [replica.index for replica in session.replicas] == [0, 1]


def test_weights_of_replicas(session):
    _, ((value, gradient0), (_, gradient1)) = trained(session, replicas=2)
    gradient0[:], gradient1[:] = 1, 5
    session.replicas[0].set_weight(3)
    session.replicas[1].set_weight(1)
    session.step(4)
    assert (value == -2).all()
    session.replicas[0].set_weight(None)
    session.replicas[1].set_weight(None)
    session.step(4)
    assert (value == -5).all()
    with pytest.raises(dsgd.InvalidArgumentError, match="negative"):
        session.replicas[0].set_weight(-1)


def test_weight_zero_skips_and_is_the_end_of_the_work(session):
    _, ((value, gradient),) = trained(session)
    gradient[:] = numpy.nan
    result = session.step(0)
    assert not result.applied and result.all_done and result.weight == 0
    assert (value == 0).all()


def test_absent_gradients_leave_the_value(session):
    parameter, ((value, gradient),) = trained(session)
    gradient[:] = 1
    session.replicas[0].gradient_absent(parameter)
    session.step()
    assert (value == 0).all()
    session.step()
    assert (value == -1).all()


def test_a_step_begun_ends_when_its_gradients_are_ready(session):
    parameter, ((value, gradient),) = trained(session)
    operation = session.step_begin(2)
    assert not operation.done
    with pytest.raises(dsgd.StateError):
        session.step_begin(2)
    gradient[:] = 1
    session.replicas[0].gradient_ready(parameter)
    with pytest.raises(dsgd.StateError, match="w"):
        session.replicas[0].gradient_ready(parameter)
    result = operation.wait(30)
    assert result.applied and result.weight == 2 and operation.done and "done" in repr(operation)
    assert (value == -1).all()
    assert repr(operation.wait()) == repr(result)


def test_only_a_flush_marks_what_was_not_marked(session):
    _, ((value, gradient),) = trained(session)
    gradient[:] = 1
    operation = session.step_begin()
    for timeout in (0, 0.05):
        with pytest.raises(dsgd.WaitTimeoutError) as error:
            operation.wait(timeout)
        assert not operation.done and error.value.parameter == "w"
    session.step_flush()
    operation.wait()
    assert (value == -1).all()


def test_closing_applies_no_gradient_that_was_not_marked():
    with dsgd.init() as session:
        _, ((value, gradient),) = trained(session)
        operation = session.step_begin()
        gradient[:] = 1
    with pytest.raises(dsgd.ClosedError, match="closed its session during step 0; gradient 'w' was not marked"):
        operation.wait()
    assert (value == 0).all()


def test_ready_without_a_step_is_an_error(session):
    parameter, _ = trained(session)
    with pytest.raises(dsgd.StateError):
        session.replicas[0].gradient_ready(parameter)


def test_rate_settings_and_freezing(session):
    parameter, ((value, gradient),) = trained(session)
    gradient[:] = 1
    session.set_learning_rate(0.5)
    session.step()
    assert (value == -0.5).all()
    parameter.set(rate=2)
    session.step()
    assert (value == -1.5).all()
    parameter.set("frozen=1")
    session.step()
    assert (value == -1.5).all()
    with pytest.raises(dsgd.InvalidArgumentError, match="speed"):
        parameter.set(speed=3)


def test_optimizers_options_as_words_or_text():
    for give in (
        lambda s: s.set_optimizer("sgd", "lr=1 momentum=0.5 nesterov=1"),
        lambda s: s.set_optimizer("sgd", lr=1, momentum=0.5, nesterov=True),
        lambda s: s.set_optimizer("sgd", "lr=1", momentum=0.5, nesterov=True),
    ):
        with dsgd.init() as session:
            parameter = session.add_parameter("w", 1)
            value, gradient = session.add_replica().alloc(parameter)
            give(session)
            session.start()
            gradient[:] = 1
            session.step()
            assert value[0] == -1.5


def test_optimizer_none_returns_the_mean_gradient(session):
    _, ((value, gradient0), (_, gradient1)) = trained(session, replicas=2, optimizer="none")
    gradient0[:], gradient1[:] = 1, 4
    session.step()
    assert (gradient0 == 2.5).all() and (gradient1 == 2.5).all() and (value == 0).all()


def test_gradient_norm_where_it_is_configured():
    with dsgd.init(gradient_norm=True) as session:
        _, ((_, gradient),) = trained(session)
        gradient[:] = [3, 4, 0, 0]
        assert session.step().gradient_norm == pytest.approx(5)


def test_a_step_whose_gradient_overflows_changes_nothing_and_halves_the_loss_scale():
    with dsgd.init(loss_scale="dynamic") as session:
        _, ((value, gradient),) = trained(session)
        assert session.loss_scale == 65536
        gradient[:] = math.inf
        result = session.step()
        assert not result.applied and not result.all_done and result.gradient_norm == math.inf
        assert session.loss_scale == 32768 and (value == 0).all()
        gradient[:] = 2 * session.loss_scale
        assert session.step().applied and (value == -2).all()
    with pytest.raises(dsgd.ClosedError):
        session.loss_scale
    with dsgd.init() as session:
        assert session.loss_scale == 1


def test_gradients_that_are_not_finite_skip_the_step_or_count_as_zero_or_fail():
    with dsgd.init(nonfinite="skip") as session:
        _, ((value, gradient),) = trained(session)
        gradient[:] = [1, math.nan, 1, -math.inf]
        result = session.step()
        assert result.skipped and not result.applied and (value == 0).all()
        assert result.nonfinite == 2 and result.nonfinite_rank == 0
        gradient[:] = 1
        result = session.step()
        assert result.applied and not result.skipped and result.nonfinite == 0 and result.nonfinite_rank == -1
    with dsgd.init(nonfinite="zero") as session:
        _, ((value, gradient),) = trained(session)
        gradient[:] = [1, math.nan, 1, 1]
        result = session.step()
        assert result.applied and result.nonfinite == 1 and value.tolist() == [-1, 0, -1, -1]
    with dsgd.init(nonfinite="fail") as session:
        _, ((value, gradient),) = trained(session)
        gradient[:] = [1, 1, 1, math.inf]
        with raises(dsgd.Status.NON_FINITE, match="the first at index 3") as caught:
            session.step()
        assert caught.value.rank == 0 and caught.value.parameter
        gradient[:] = 1
        assert session.step().step == 0 and (value == -1).all()


def test_strategies_change_between_steps(session):
    _, ((value, gradient),) = trained(session)
    for strategy in ("simple", "ps", "allreduce", "mirrored"):
        session.set_strategy(strategy)
        gradient[:] = 1
        session.step()
    session.set_strategy("allreduce", algorithm="ring")
    assert (value == -4).all()
    with pytest.raises(dsgd.InvalidArgumentError, match="allreduce"):
        session.set_strategy("allredux")


def test_a_wait_that_ran_out_names_the_hosts_own_timeout(session):
    """Not that of the last of the slices in which it waits."""
    with pytest.raises(dsgd.WaitTimeoutError, match="object 'vocabulary' has not come within 0.25 s:"):
        session.get("vocabulary", 0.25)
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:
        with pytest.raises(dsgd.WaitTimeoutError, match="after 250 ms"):
            head.wait(0.25)


def test_timeouts_may_be_numbers_of_numpy(session):
    for timeout in (numpy.float32(0), numpy.int64(0)):
        with pytest.raises(dsgd.WaitTimeoutError):
            session.get("vocabulary", timeout)


def test_metrics_of_a_job_whose_name_has_a_line_separator():
    with dsgd.init(job="a\u2028b") as session:
        assert session.metrics()["dsgd_workers"] == 1


def test_stop(session):
    trained(session)
    assert not session.step().stop
    session.request_stop()
    assert session.step().stop


def test_digest_follows_the_values(session):
    _, ((value, gradient),) = trained(session)
    before = session.digest()
    value[0] = 1
    assert session.digest() != before and 0 <= session.digest() < 2**64


def test_step_before_start_and_start_without_buffers(session):
    session.add_parameter("w", 3)
    session.add_replica()
    with pytest.raises(dsgd.StateError, match="start"):
        session.step()
    with pytest.raises(dsgd.StateError, match="w"):
        session.start()


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_bad_weights(session, weight):
    trained(session)
    with pytest.raises(dsgd.InvalidArgumentError, match="weight"):
        session.step(weight)


def test_bad_parameters_and_devices(session):
    for arguments in (("", 3), ("w", (-1,)), ("w", 3, "int32")):
        with pytest.raises(dsgd.InvalidArgumentError):
            session.add_parameter(*arguments)
    for shape in ("three", 2.5, (2, None)):
        with pytest.raises(TypeError, match="shape of parameter 'w' is .*; give an integer or a sequence"):
            session.add_parameter("w", shape)
    with raises(dsgd.Status.UNSUPPORTED, dsgd.Status.INVALID_ARGUMENT, match="cuda:0"):
        session.add_replica("cuda:0")
    assert session.parameters == () and session.replicas == ()


def test_objects_are_read_in_place(session):
    with pytest.raises(dsgd.WaitTimeoutError):
        session.get("vocabulary", timeout=0)
    session.put("vocabulary", b"a b c")
    session.put("numbers", numpy.arange(3))
    session.put("nothing", b"")
    found = session.get("vocabulary")
    assert found.readonly and bytes(found) == b"a b c"
    assert numpy.frombuffer(session.get("numbers"), numpy.int64).tolist() == [0, 1, 2]
    assert bytes(session.get("nothing")) == b""
    with raises(dsgd.Status.EXISTS, match="vocabulary"):
        session.put("vocabulary", b"again")
    with pytest.raises(TypeError):
        session.put("text", "not bytes")
    session.close()
    assert bytes(found) == b"a b c"


def test_shards(session):
    shard = session.shard(100, seed=7)
    assert len(shard) == 100
    first = numpy.concatenate(list(shard.batches(64)))
    assert sorted(first) == list(range(100)) and first.dtype == numpy.int64
    assert [len(batch) for batch in shard.batches(64, epoch=1)] == [64, 36]
    assert list(shard.batches(64)) == []
    assert (numpy.concatenate(list(shard.batches(9, epoch=0))) == first).all()
    shard.set_epoch(3)
    assert len(shard.next(5)) == 5
    assert list(session.shard(5, shuffle=False).next(10)) == [0, 1, 2, 3, 4]
    assert len(session.shard(0)) == 0 and len(session.shard(0).next(3)) == 0
    for bad in (lambda: shard.batches(0), lambda: shard.next(0), lambda: shard.next(-1)):
        with pytest.raises(dsgd.InvalidArgumentError):
            bad()


def test_numbers_out_of_range_are_named(session):
    for call, message in (
        (lambda: session.shard(-1), "'samples' is -1; give 0 to 18446744073709551615"),
        (lambda: session.shard(2**64), "'samples' is 18446744073709551616"),
        (lambda: session.shard(5, seed=-2), "'seed' is -2"),
        (lambda: session.shard(5).set_epoch(-3), "'epoch' is -3"),
        (lambda: session.broadcast(numpy.zeros(1), 2**31), "'root' is 2147483648, out of range: -2147483648 to"),
        (lambda: session.add_parameter("w", (1, 2**63)), r"shape\[1\] is 9223372036854775808; give 0 to"),
        (lambda: session.allgather(numpy.zeros(1), numpy.zeros(1), element_counts=[-4]), r"element_counts\[0\] is -4"),
        (lambda: session.get("vocabulary", -1), "timeout is -1"),
        (lambda: session.close(math.nan), "timeout is nan"),
    ):
        with pytest.raises(dsgd.InvalidArgumentError, match=message):
            call()
    with pytest.raises(TypeError, match="integer"):
        session.shard(1.5)


def test_collectives_of_one_are_copies(session):
    data = numpy.arange(5, dtype="f4")
    assert session.allreduce(data) is data and data.tolist() == [0, 1, 2, 3, 4]
    assert session.broadcast(data) is data
    assert session.allgather(data.reshape(5, 1)).shape == (1, 5, 1)
    assert session.allgather(data, element_counts=[5]).tolist() == data.tolist()
    assert session.reduce_scatter(data, reduction="mean").tolist() == data.tolist()
    receive = numpy.zeros(5, "f4")
    assert session.reduce_scatter(data, receive, "max", element_counts=[5]) is receive
    session.barrier()


def test_collectives_refuse_what_does_not_fit(session):
    data = numpy.zeros(4, "f4")
    with pytest.raises(dsgd.InvalidArgumentError, match="reduction 'total'"):
        session.allreduce(data, "total")
    with pytest.raises(dsgd.InvalidArgumentError, match="read-only"):
        session.allreduce(b"abc")
    with pytest.raises(dsgd.InvalidArgumentError, match="float64"):
        session.allgather(data, numpy.zeros(4))
    with pytest.raises(dsgd.InvalidArgumentError, match="each of the 1 workers"):
        session.allgather(data, element_counts=[2, 2])
    for counts in ([], [4, 0]):
        with pytest.raises(dsgd.InvalidArgumentError, match=f"element_counts has {len(counts)} numbers; .* each of the 1 workers"):
            session.reduce_scatter(data, element_counts=counts)
    with pytest.raises(dsgd.InvalidArgumentError, match="`element_counts` add up to 3 elements, the whole buffer has 4"):
        session.reduce_scatter(data, element_counts=[3])
    with pytest.raises(dsgd.InvalidArgumentError, match="root"):
        session.broadcast(data, root=1)
    with pytest.raises(dsgd.InvalidArgumentError):
        session.allgather(data, numpy.zeros(3, "f4"))
    with pytest.raises(dsgd.InvalidArgumentError):
        session.allreduce(numpy.zeros(4, "i4"), "mean")


def test_records_go_to_logging(caplog):
    with caplog.at_level(logging.DEBUG, logger="dsgd"):
        with dsgd.init(log_level="debug") as session:
            trained(session)
            session.step()
        from dsgd import _logs

        _logs.join()
    records = [record for record in caplog.records if record.name == "dsgd"]
    assert records and all(record.getMessage() for record in records)


def test_records_can_be_polled_instead():
    session = dsgd.init(log_level="debug", forward_logs=False)
    trained(session)
    session.close()
    records = []
    while (record := session.poll_log()) is not None:
        records.append(record)
    assert records and all(record.level in (10, 20, 30, 40) and record.message for record in records)
    assert records[-1].rank == 0 and records[0].session > 0 and records[0].time_ns > 0


@pytest.mark.parametrize("weight", [numpy.int64(3), numpy.float32(3), numpy.array(3.0), True, 3])
def test_whatever_counts_as_a_number_is_a_weight(weight):
    with dsgd.init() as session:
        line = session.add_parameter("line", (numpy.int64(2),))
        value, gradient = session.add_replica("cpu").alloc(line)
        session.set_optimizer("sgd", lr=1)
        session.start()
        gradient[:] = 1
        assert session.step(weight).weight == float(weight)
        assert list(value) == [-1, -1]


def test_what_is_no_number_says_so():
    with dsgd.init() as session:
        session.add_replica("cpu").alloc(session.add_parameter("line", (2,)))
        session.start()
        for weight in (None, "1"):
            with pytest.raises(TypeError, match=f"weight is {weight!r}; give a number"):
                session.step(weight)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize("failure", [OSError("no\0 data"), OSError("caf\udce9.txt"), Unprintable()])
def test_the_exception_of_a_with_block_goes_on_whatever_its_text_is(failure):
    with pytest.raises(type(failure)) as raised:
        with dsgd.init() as session:
            raise failure
    assert raised.value is failure and session.closed


def test_a_checkpoint_is_saved_and_loaded(session, tmp_path):
    _, [(value, gradient)] = trained(session)
    shard = session.shard(100, seed=1)
    shard.set_epoch(3)
    shard.next(10)
    gradient[:] = 1
    session.step()
    saved = value.copy()
    operation = session.save_checkpoint_begin(tmp_path)
    session.step()
    operation.wait()
    rest = list(shard.next(10))
    session.load_checkpoint(tmp_path)
    assert (value == saved).all() and session.info.steps == 1
    assert (shard.epoch, shard.position, list(shard.next(10))) == (3, 10, rest)
    session.step()
    session.save_checkpoint(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000001", "step-0000000002"]


def test_a_folder_without_a_checkpoint_is_not_found(session, tmp_path):
    trained(session)
    with pytest.raises(dsgd.Error, match="has no checkpoint") as raised:
        session.load_checkpoint(tmp_path)
    assert raised.value.status == dsgd.Status.NOT_FOUND
    with pytest.raises(dsgd.InvalidArgumentError, match="Session.load_checkpoint: no folder is given"):
        session.load_checkpoint()


def test_a_checkpoint_is_read_as_the_safetensors_format_says(session, tmp_path):
    _, [(value, _)] = trained(session)
    value[:] = [1, 2, 3, 4]
    session.save_checkpoint(tmp_path)
    (path,) = tmp_path.glob("step-0000000000/*.safetensors")
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header == {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    assert list(numpy.frombuffer(data[8 + length :], "<f4")) == [1, 2, 3, 4]
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest["step"] == 0 and manifest["optimizer"].startswith("sgd lr=1")
    assert [file["nbytes"] for file in manifest["files"]] == [len(data)]
