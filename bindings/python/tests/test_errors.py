import builtins
import pickle
import traceback

import pytest

import dsgd
from dsgd import _errors, _raw


def test_every_code_of_the_header_has_its_class():
    codes = {name: getattr(_raw, name) for name in dir(_raw) if name.startswith("DSGD_ERR_")}
    assert len(codes) >= 22
    for name, code in codes.items():
        kind = _errors._CLASSES[code]
        assert (kind.code, kind.status) == (code, name) and _raw.dsgd_status_name(code) == name
        assert getattr(dsgd, kind.__name__) is kind and issubclass(kind, dsgd.Error)


@pytest.mark.parametrize("kind", [dsgd.Error, dsgd.MismatchError, dsgd.TimeoutError])
def test_errors_print_as_hosts_name_them(kind):
    assert traceback.format_exception_only(kind, kind("why")) == [f"dsgd.{kind.__name__}: why\n"]


def test_errors_are_also_pythons_own():
    assert issubclass(dsgd.InvalidArgumentError, ValueError)
    assert issubclass(dsgd.TimeoutError, builtins.TimeoutError)
    assert issubclass(dsgd.WaitTimeoutError, builtins.TimeoutError)
    assert issubclass(dsgd.WorkerLostError, ConnectionError)
    assert issubclass(dsgd.NoMemoryError, MemoryError)


@pytest.mark.parametrize("code", range(-21, 0))
def test_attributes_and_a_way_through_pickle(code):
    error = _errors.from_status(code, "rank 2 is gone", 2, "node7", "step 17", "dense.weight")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert type(same) is type(error) and isinstance(same, dsgd.Error)
        assert (same.code, same.rank, same.host, same.operation) == (code, 2, "node7", "step 17")
        assert (same.parameter, same.message, str(same)) == ("dense.weight", "rank 2 is gone", "rank 2 is gone")


def test_a_code_of_a_newer_library_is_a_plain_error():
    error = _errors.from_status(-99, "", -1, "", "", "")
    assert type(error) is dsgd.Error and error.code == -99 and error.rank is None and str(error)


def test_an_error_from_the_library_carries_its_parameter(session):
    session.add_parameter("w", 3)
    with pytest.raises(dsgd.ExistsError, match="w") as caught:
        session.add_parameter("w", 3)
    assert caught.value.code == _raw.DSGD_ERR_EXISTS
    assert caught.value.parameter == "w"
    assert caught.value.rank is None or caught.value.rank == 0
