import builtins
import pickle
import traceback

import numpy
import pytest

import dsgd
from dsgd import _errors, _raw
from raising import raises

CODES = sorted(getattr(_raw, name) for name in dir(_raw) if name.startswith("DSGD_ERR_"))


def test_every_code_of_the_library_has_its_status():
    assert len(CODES) >= 22
    for code in CODES:
        status = _errors.status_of(code)
        assert status == code and _raw.dsgd_status_name(code) == f"DSGD_ERR_{status.name}"
    assert _errors.status_of(0) is _errors.status_of(1) is _errors.status_of(min(CODES) - 1) is dsgd.Status.UNKNOWN


@pytest.mark.parametrize("kind", [dsgd.Error, dsgd.MismatchError, dsgd.TimeoutError])
def test_errors_print_as_hosts_name_them(kind):
    assert traceback.format_exception_only(kind, kind("why")) == [f"dsgd.{kind.__name__}: why\n"]


def test_errors_are_also_pythons_own():
    assert issubclass(dsgd.InvalidArgumentError, ValueError)
    assert issubclass(dsgd.StateError, RuntimeError)
    assert issubclass(dsgd.TimeoutError, builtins.TimeoutError)
    assert issubclass(dsgd.WaitTimeoutError, builtins.TimeoutError)
    assert issubclass(dsgd.WorkerLostError, ConnectionError)


@pytest.mark.parametrize("code", CODES)
def test_attributes_and_a_way_through_pickle(code):
    error = _errors.from_status(code, "rank 2 is gone", 2, "node7", "step 17", "dense.weight")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert type(same) is type(error) and isinstance(same, dsgd.Error)
        assert (same.code, same.status, same.rank, same.host, same.operation) == (code, code, 2, "node7", "step 17")
        assert (same.parameter, same.message, str(same)) == ("dense.weight", "rank 2 is gone", "rank 2 is gone")


def test_a_code_of_a_newer_library_is_a_plain_error():
    error = _errors.from_status(-99, "", -1, "", "", "")
    assert type(error) is dsgd.Error and error.rank is None and "-99" in str(error)
    assert (error.code, error.status) == (-99, dsgd.Status.UNKNOWN)


def test_an_error_from_the_library_carries_its_parameter(session):
    session.add_parameter("w", 3)
    with raises(dsgd.Status.EXISTS, match="w") as caught:
        session.add_parameter("w", 3)
    assert caught.value.code == _raw.DSGD_ERR_EXISTS
    assert caught.value.parameter == "w"
    assert caught.value.rank is None or caught.value.rank == 0


def test_a_call_of_a_closed_session_is_named():
    session = dsgd.init()
    session.close()
    for name in "rank", "size", "view":
        with pytest.raises(dsgd.ClosedError, match=rf"^Session\.{name}: the session is closed; open a new one with dsgd\.init$"):
            getattr(session, name)


def test_messages_use_the_names_of_python(session):
    with pytest.raises(dsgd.StateError, match="a step needs Session.start first"):
        session.step()
    with pytest.raises(dsgd.StateError, match="there is no replica; call Session.add_replica before Session.start; dsgd.torch.attach adds one for a PyTorch module"):
        session.start()
    session.close()
    with pytest.raises(dsgd.ClosedError, match="open a new one with dsgd.init"):
        session.start()


def test_quoted_values_are_not_names():
    text = "dsgd_bind: parameter 'dsgd_step' of dsgd_alloc, '/tmp/dsgd_init', DSGD_HEAD, dsgd_unknown"
    assert _errors.in_python(text) == (
        "Replica.bind: parameter 'dsgd_step' of Replica.alloc, '/tmp/dsgd_init', DSGD_HEAD, dsgd_unknown"
    )


def test_a_parameter_that_is_none_is_refused_with_the_remedy(session):
    session.add_parameter("w", 2)
    replica = session.add_replica()
    data = numpy.zeros(2, numpy.float32)
    for call in (
        lambda: replica.bind("w", data, data),
        lambda: replica.alloc("w"),
        lambda: replica.gradient_ready("w"),
        lambda: replica.gradients_ready(["w"]),
        lambda: replica.gradient_absent("w"),
    ):
        with pytest.raises(TypeError, match="'w'; give the Parameter that Session.add_parameter returned"):
            call()


def test_options_of_several_values_are_refused_with_the_remedy(session):
    for options in ({"lr": 0.1}, ["lr=0.1"]):
        with pytest.raises(TypeError, match="give a string or keyword arguments"):
            session.set_optimizer("sgd", options)
    with pytest.raises(TypeError, match=r"the option 'betas' is \(0.9, 0.99\); give beta1 and beta2"):
        session.set_optimizer("adam", betas=(0.9, 0.99))
    with pytest.raises(TypeError, match=r"the option 'lr' is \[0.1\]; give one value"):
        session.set_optimizer("adam", lr=[0.1])
    with pytest.raises(TypeError, match="give 'sgd', 'adam' or 'adamw'"):
        session.set_optimizer(object())


def test_data_without_a_type_of_dsgd_is_refused_with_the_remedy(session):
    with pytest.raises(dsgd.InvalidArgumentError, match=r"array.view\(numpy.uint8\) for bool"):
        session.allreduce(numpy.zeros(2, bool))
    with pytest.raises(TypeError, match=r"text.encode\(\) makes bytes"):
        session.put("x", "text")
    with pytest.raises(dsgd.InvalidArgumentError, match="give a number of seconds"):
        session.get("x", timeout="5")
