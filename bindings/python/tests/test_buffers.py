"""Buffers of the host's and of dsgd's: addresses, lifetimes, refusals."""

import array
import gc
import sys

import numpy
import pytest

import dsgd
from dsgd import _raw


class TensorOf:
    """A producer of DLPack without the buffer protocol, as PyTorch's tensors are. `versioned` False: from before 1.0."""

    def __init__(self, source, versioned=True, device=(1, 0)):
        self.source, self.versioned, self.device = source, versioned, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.source.__dlpack__(**options)


def model(session, shape=(3, 4), dtype="float32"):
    parameter = session.add_parameter("w", shape, dtype)
    return parameter, session.add_replica("cpu")


def step_once(session, gradient):
    session.set_optimizer("sgd", lr=1.0)
    session.start()
    gradient[...] = 2
    session.step()


def test_alloc_is_one_memory_of_dsgds(session):
    parameter, replica = model(session)
    value, gradient = replica.alloc(parameter)
    assert value.shape == gradient.shape == (3, 4) and value.dtype == numpy.float32
    assert not value.any() and not gradient.any() and value.flags.writeable
    assert value.ctypes.data % 64 == 0 and gradient.ctypes.data % 64 == 0
    again = replica.alloc(parameter)
    assert again[0].ctypes.data == value.ctypes.data and again[1].ctypes.data == gradient.ctypes.data
    step_once(session, gradient)
    assert (value == -2).all()


def test_without_numpy_alloc_gives_memoryviews(session, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)  # importing it fails
    replica = session.add_replica()
    with pytest.warns(RuntimeWarning, match="NumPy is not installed, so dsgd's arrays are memoryviews") as warned:
        value, gradient = replica.alloc(session.add_parameter("w", (2, 2)))
    assert warned[0].filename == __file__
    session.set_optimizer("sgd", lr=1)
    session.start()
    gradient.cast("B")[:] = array.array("f", [1, 2, 3, 4]).tobytes()
    gradient[0, 1] = 1.5
    session.step()
    assert value.tolist() == [[-1, -1.5], [-3, -4]]
    flat = gradient.cast("B").cast("f")
    flat[:] = array.array("f", [0, 0, 0, 1])
    with pytest.raises(TypeError, match="a bytes-like object is required, not 'tuple'"):
        flat[:] = 0.0, 0.0, 0.0, 2.0
    session.step()
    assert value[1, 1] == -5


def test_allocated_memory_outlives_the_session():
    session = dsgd.init()
    parameter, replica = model(session, (1000,))
    value, gradient = replica.alloc(parameter)
    session.close()
    del session, parameter, replica
    gc.collect()
    value[:] = 7
    gradient[:] = 8
    assert value.sum() == 7000 and gradient.sum() == 8000


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("wrap", [lambda a: a, TensorOf, lambda a: TensorOf(a, versioned=False)])
def test_bind_uses_the_hosts_memory(session, dtype, wrap):
    parameter, replica = model(session, dtype=dtype)
    value, gradient = numpy.ones((3, 4), dtype), numpy.zeros((3, 4), dtype)
    replica.bind(parameter, wrap(value), wrap(gradient))
    step_once(session, gradient)
    assert (value == -1).all()


@pytest.mark.parametrize(
    "value, gradient",
    [
        (array.array("f", range(4)), array.array("f", bytes(16))),
        (memoryview(bytearray(16)).cast("f"), memoryview(bytearray(16)).cast("f")),
        (numpy.arange(4, dtype="f4"), TensorOf(numpy.zeros(4, "f4"))),
        (TensorOf(numpy.arange(4, dtype="f4")), array.array("f", bytes(16))),
    ],
)
def test_bind_takes_any_buffer_and_mixtures(session, value, gradient):
    parameter, replica = model(session, 4)
    replica.bind(parameter, value, gradient)
    session.start()
    assert session.step().applied


def test_a_flat_buffer_serves_any_shape(session):
    parameter, replica = model(session)
    replica.bind(parameter, numpy.zeros(12, "f4"), TensorOf(numpy.zeros(12, "f4")))
    session.start()


def test_bound_buffers_are_held_until_others_are_bound_and_until_close():
    import weakref

    class Array(numpy.ndarray):
        """NumPy's own have no weak references to them from a view."""

    def fresh():
        return numpy.zeros(12, "f4").view(Array)

    session = dsgd.init()
    parameter, replica = model(session, 12)
    first, second = fresh(), fresh()
    replica.bind(parameter, first, numpy.zeros(12, "f4"))
    first_gone, second_gone = weakref.ref(first), weakref.ref(second)
    del first
    gc.collect()
    assert first_gone() is not None
    replica.bind(parameter, second, numpy.zeros(12, "f4"))
    del second
    gc.collect()
    assert first_gone() is None and second_gone() is not None
    session.close()
    gc.collect()
    assert second_gone() is None


def test_a_failed_bind_keeps_what_was_bound(session):
    parameter, replica = model(session)
    value, gradient = numpy.ones((3, 4), "f4"), numpy.zeros((3, 4), "f4")
    replica.bind(parameter, value, gradient)
    with pytest.raises(dsgd.InvalidArgumentError):
        replica.bind(parameter, numpy.zeros(5, "f4"), gradient)
    step_once(session, gradient)
    assert (value == -1).all()


@pytest.mark.parametrize(
    "value, message",
    [
        (numpy.zeros((3, 4), "f8"), "float64"),
        (numpy.zeros((3, 4), ">f4"), "format"),
        (numpy.zeros((3, 4), "f2"), "float16"),
        (numpy.zeros((3, 4), "i2"), "format"),
        (numpy.zeros((3, 4), "c8"), "format"),
        (numpy.zeros((3, 4), "M8[s]"), "float32"),
        (numpy.zeros((4, 3), "f4"), r"\(4, 3\)"),
        (numpy.zeros((13,), "f4"), "13"),
        (numpy.zeros((4, 3), "f4").T, "contiguous"),
        (numpy.zeros((3, 8), "f4")[:, ::2], "contiguous"),
        (TensorOf(numpy.zeros((3, 8), "f4")[:, ::2]), "contiguous"),
        (TensorOf(numpy.zeros((3, 4), "i2")), "16 bits"),
        (TensorOf(numpy.zeros((3, 4), "f4"), device=(2, 0)), "is on cuda:0, but host memory is needed"),
    ],
)
def test_bind_refuses_what_does_not_fit(session, value, message):
    parameter, replica = model(session)
    with pytest.raises(dsgd.InvalidArgumentError, match=message):
        replica.bind(parameter, value, numpy.zeros((3, 4), "f4"))


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("wrap", [lambda a: a, TensorOf])
def test_a_read_only_value_is_refused_a_gradient_is_not(session, wrap):
    parameter, replica = model(session)
    with pytest.raises(dsgd.InvalidArgumentError, match="read-only"):
        replica.bind(parameter, wrap(read_only(numpy.zeros((3, 4), "f4"))), numpy.zeros((3, 4), "f4"))
    replica.bind(parameter, numpy.zeros((3, 4), "f4"), read_only(numpy.zeros((3, 4), "f4")))
    session.start()
    session.step()


def test_a_read_only_gradient_is_refused_where_the_mean_goes_into_it(session):
    parameter, replica = model(session)
    replica.bind(parameter, numpy.zeros((3, 4), "f4"), read_only(numpy.zeros((3, 4), "f4")))
    session.set_optimizer("none")
    with pytest.raises(dsgd.InvalidArgumentError, match="read-only"):
        session.start()


def test_things_that_are_no_buffers(session):
    parameter, replica = model(session)
    for thing in (None, 3, [1.0] * 12, object()):
        with pytest.raises(TypeError, match="buffer protocol"):
            replica.bind(parameter, thing, numpy.zeros((3, 4), "f4"))
    with pytest.raises(dsgd.InvalidArgumentError, match="'w' is trained and needs a gradient.*trained=False") as caught:
        replica.bind(parameter, numpy.zeros((3, 4), "f4"))
    assert caught.value.parameter == "w"


def test_untrained_scalar_and_empty_parameters(session):
    mean = session.add_parameter("mean", (), "float64", trained=False)
    empty = session.add_parameter("empty", (3, 0))
    counts = session.add_parameter("counts", 2, "int64", trained=False)
    assert type(mean) is dsgd.UntrainedParameter and type(empty) is dsgd.Parameter
    replica = session.add_replica()
    value, gradient = replica.alloc(mean)
    assert value.shape == () and gradient is None
    value, gradient = replica.alloc(empty)
    assert value.shape == gradient.shape == (3, 0)
    replica.bind(counts, numpy.arange(2))
    session.start()
    assert session.step().applied
    assert (mean.count, empty.count, counts.nbytes) == (1, 0, 16)


def test_alloc_tensors_share_the_memory_with_consumers_old_and_new(session):
    parameter, replica = model(session)
    value_tensor, gradient_tensor = replica.alloc_tensors(parameter)
    plain, _ = replica.alloc(parameter)
    value, gradient = numpy.from_dlpack(value_tensor), numpy.from_dlpack(gradient_tensor)
    assert value.ctypes.data == plain.ctypes.data and gradient.ctypes.data != value.ctypes.data
    plain[1, 2] = 5
    assert value[1, 2] == 5
    legacy = numpy.from_dlpack(TensorOf(value_tensor, versioned=False))
    assert legacy.ctypes.data == plain.ctypes.data and legacy[1, 2] == 5
    del value_tensor, gradient_tensor, plain
    session.close()
    gc.collect()
    assert value[1, 2] == 5 and legacy[1, 2] == 5 and gradient.sum() == 0


def test_tensors_refuse_what_they_cannot_do(session):
    tensor, _ = (lambda p, r: r.alloc_tensors(p))(*model(session))
    assert tensor.__dlpack_device__() == (1, 0)
    for options in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**options)
    tensor.__dlpack__()  # dropped unused: its destructor frees it
    tensor.__dlpack__(max_version=(1, 0))


def test_a_capsule_is_taken_once():
    capsule = numpy.zeros(3, "f4").__dlpack__()
    tensor = _raw.dsgd_py_tensor_import(capsule)
    assert _raw.dsgd_py_tensor_info(tensor)[4] == (3,)
    with pytest.raises(TypeError, match="capsule"):
        _raw.dsgd_py_tensor_import(capsule)
    with pytest.raises(TypeError, match="capsule"):
        _raw.dsgd_py_tensor_import(3)


def test_the_source_of_a_tensor_is_released_with_it():
    import weakref

    class Array(numpy.ndarray):
        pass

    source = numpy.zeros(3, "f4").view(Array)
    gone = weakref.ref(source)
    tensor = _raw.dsgd_py_tensor_import(source.__dlpack__())
    del source
    gc.collect()
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None


def test_bfloat16_is_updated_in_float32_and_seen_as_bits(session):
    parameter, replica = model(session, (2,), "bfloat16")
    value, gradient = replica.alloc(parameter)
    assert value.dtype == numpy.uint16
    value[...] = 0x3F80, 0x4000  # 1, 2
    session.set_optimizer("sgd", lr=0.001)
    session.start()
    gradient[...] = 0x3F80
    for _ in range(5):
        session.step()
    assert list(value) == [0x3F7F, 0x3FFF]  # 0.995 and 1.995, rounded; one step at a time would have been lost


@pytest.mark.parametrize("dtype, number", [("int8", -128), ("uint8", 255), ("int32", -7), ("uint64", 2**64 - 1)])
def test_allocated_integers(session, dtype, number):
    value, _ = session.add_replica().alloc(session.add_parameter("p", 3, dtype, trained=False))
    value[...] = number
    session.start()
    assert value.dtype == dtype and list(value) == [number] * 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "float16", "int8", "uint64"])
def test_names_of_dtypes(session, dtype):
    for number, form in enumerate((dtype, numpy.dtype(dtype), getattr(numpy, dtype), dsgd.DType[dtype])):
        assert session.add_parameter(f"p{number}", 1, form, trained=False).dtype is dsgd.DType[dtype]
    assert dsgd.DType[dtype].itemsize == numpy.dtype(dtype).itemsize == _raw.dsgd_dtype_size(dsgd.DType[dtype])
    with pytest.raises(dsgd.InvalidArgumentError, match="float32, float64"):
        session.add_parameter("q", 1, "int16")
    assert dsgd.DType.bfloat16.itemsize == _raw.dsgd_dtype_size(dsgd.DType.bfloat16) == 2
