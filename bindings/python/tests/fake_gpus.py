"""Tensors on GPUs, by DLPack, on the fake CUDA runtime, whose memory is the host's. ctest runs it where the plug-in that has that
runtime within is found first, and names it: DSGD_TEST_FAKE_CUDA; DSGD_TEST_CUDA_DRIVER is a library that is named as CUDA's driver."""

import concurrent.futures
import ctypes
import gc
import os
import time

import numpy
import pytest

import dsgd

FAKE = ctypes.CDLL(os.environ["DSGD_TEST_FAKE_CUDA"])
DRIVER = os.environ["DSGD_TEST_CUDA_DRIVER"]
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Array:
    """A tensor of some framework on a GPU."""

    alive = {}  # by address of the managed tensor

    def __init__(self, shape, device=0, offset=0, versioned=True, flags=0, capsule_device=None, kind=2):
        memory = ctypes.c_void_p()
        FAKE.cudaSetDevice(device)
        nbytes = 4 * int(numpy.prod(shape)) + offset
        assert FAKE.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(nbytes)) == 0
        FAKE.cudaSetDevice(0)
        self.data, self.shape, self.offset, self.versioned, self.flags = memory.value, shape, offset, versioned, flags
        self.device, self.kind = device, kind
        self.capsule_device = device if capsule_device is None else capsule_device
        self.streams = []
        self.seen = numpy.ctypeslib.as_array((ctypes.c_float * int(numpy.prod(shape))).from_address(self.data + offset)).reshape(shape)
        self.seen[...] = 0

    def free(self):
        FAKE.cudaFree(ctypes.c_void_p(self.data))

    def __dlpack_device__(self):
        return (self.kind, self.device)

    def __dlpack__(self, stream=None, **options):
        if not self.versioned and options:
            raise TypeError("unexpected keyword argument")
        self.streams.append(stream)
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        tensor = DLTensor(self.data, self.kind, self.capsule_device, len(self.shape), 2, 32, 1, shape, None, self.offset)
        deleter = DELETER(lambda address: Array.alive.pop(address) and None)
        managed = Versioned(1, 0, None, deleter, self.flags, tensor) if self.versioned else Legacy(tensor, None, deleter)
        address = ctypes.addressof(managed)
        Array.alive[address] = (managed, shape, deleter, self)
        return new_capsule(address, b"dltensor_versioned" if self.versioned else b"dltensor", None)


@pytest.fixture
def arrays():
    made = []

    def make(*shape, **options):
        made.append(Array(shape, **options))
        return made[-1]

    before = len(Array.alive)
    yield make
    gc.collect()
    assert len(Array.alive) == before, "a tensor that was taken is not given back"
    for array in made:
        array.free()


def trained(session, replica, parameter, gradient):
    session.set_optimizer("sgd", lr=1.0)
    session.start()
    operation = session.step_begin(1)
    gradient[...] = 2
    replica.gradient_ready(parameter, 1)
    operation.wait()
    session.digest()  # comes after the step


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(
    "value, gradient",
    [
        (dict(shape=(4, 3)), dict(shape=(4, 3))),
        (dict(shape=(12,)), dict(shape=(12,))),
        (dict(shape=(4, 3)), dict(shape=(12,))),
        (dict(shape=(4, 3), offset=16), dict(shape=(4, 3), versioned=False)),
        (dict(shape=(4, 3), kind=13), dict(shape=(4, 3))),
    ],
)
def test_bind_uses_the_gpus_memory(arrays, device, value, gradient):
    with dsgd.init() as session:
        parameter, replica = session.add_parameter("w", (4, 3)), session.add_replica(f"cuda:{device}")
        held = [arrays(*options.pop("shape"), device=device, **options) for options in (dict(value), dict(gradient))]
        replica.bind(parameter, *held)
        trained(session, replica, parameter, held[1].seen)
        assert (held[0].seen == -2).all()
        assert [array.streams for array in held] == [[1], [1]]  # what the producer has entered comes before dsgd's work


def test_a_flat_parameter_takes_a_tensor_of_its_shape(arrays):
    with dsgd.init() as session:
        parameter, replica = session.add_parameter("w", 5), session.add_replica("cuda:0")
        value, gradient = arrays(5), arrays(5)
        replica.bind(parameter, value, gradient)
        trained(session, replica, parameter, gradient.seen)
        assert (value.seen == -2).all()


class HeldStream:
    """A stream whose work waits until let_go()."""

    def __init__(self):
        self.stream, self.released = ctypes.c_void_p(), numpy.zeros(1, numpy.uint32)
        assert FAKE.cudaStreamCreateWithFlags(ctypes.byref(self.stream), 1) == 0
        wait, how = ctypes.c_void_p(), ctypes.c_int()
        found = FAKE.cudaGetDriverEntryPointByVersion(
            b"cuStreamWaitValue32", ctypes.byref(wait), ctypes.c_uint(12000), ctypes.c_ulonglong(0), ctypes.byref(how)
        )
        assert found == 0
        hold = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)(wait.value)
        assert hold(self.stream, self.released.ctypes.data, 1, 0) == 0

    def let_go(self):
        self.released[0] = 1


def test_tensors_are_held_until_the_gpu_has_used_them(arrays):
    def taken(array):
        return any(entry[3] is array for entry in list(Array.alive.values()))

    with dsgd.init() as session:
        parameter, replica = session.add_parameter("w", 5), session.add_replica("cuda:0")
        first, second = (arrays(5), arrays(5)), (arrays(5), arrays(5))
        replica.bind(parameter, *first)
        session.set_optimizer("sgd", lr=1.0)
        session.start()
        held = HeldStream()
        operation = session.step_begin(1)
        replica.gradient_ready(parameter, held.stream.value)
        operation.wait()
        replica.bind(parameter, *second)
        session.barrier()
        gc.collect()
        assert all(map(taken, first + second))
        held.let_go()
        deadline = time.monotonic() + 30
        while any(map(taken, first)) and time.monotonic() < deadline:
            session.barrier()  # any operation lets go of what is no longer used
        assert not any(map(taken, first)) and all(map(taken, second))
    assert FAKE.cudaStreamDestroy(held.stream) == 0


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(device=1), "is on cuda:1, but its replica is on cuda:0"),
        (dict(capsule_device=1), r"is on DLPack device \(2, 1\); the replica is on cuda:0, which is \(2, 0\)"),
        (dict(flags=1), "read-only"),
        (dict(kind=1), "is on the cpu, but its replica is on cuda:0"),
    ],
)
def test_what_lies_elsewhere_is_refused(arrays, options, says):
    with dsgd.init() as session:
        parameter, replica = session.add_parameter("w", (4, 3)), session.add_replica("cuda:0")
        with pytest.raises(dsgd.InvalidArgumentError, match=says):
            replica.bind(parameter, arrays(4, 3, **options), arrays(4, 3))
        with pytest.raises(dsgd.InvalidArgumentError, match="is on cuda:0, but host memory is needed"):
            session.add_replica("cpu").bind(parameter, arrays(4, 3), arrays(4, 3))
        with pytest.raises(dsgd.InvalidArgumentError, match="in host memory, and its replica is on cuda:0"):
            replica.bind(parameter, bytearray(48), bytearray(48))


def test_consumers_streams_come_after_new_values():
    with dsgd.init() as session:
        parameter, replica = session.add_parameter("w", 5), session.add_replica("cuda:0")
        value, gradient = replica.alloc_tensors(parameter)
        assert value.__dlpack_device__() == (2, 0)
        session.start()
        session.step()
        stream = ctypes.c_void_p()
        assert FAKE.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
        for number in (None, -1, 1, 2, stream.value):
            value.__dlpack__(stream=number)
            gradient.__dlpack__(stream=number, max_version=(1, 0))
        replica.stream_wait(stream.value)
        with pytest.raises(BufferError, match="stream 0 is ambiguous"):
            value.__dlpack__(stream=0)
        with pytest.raises(BufferError, match="cannot be exported"):
            value.__dlpack__(dl_device=(1, 0))
        assert FAKE.cudaStreamDestroy(stream) == 0


def test_a_gpus_memory_given_as_the_hosts_is_refused(arrays):
    """Without DLPack nobody says where memory is. Asked is CUDA, in a process that uses it."""
    ctypes.CDLL(DRIVER)
    with dsgd.init() as session:
        parameter, replica = session.add_parameter("w", (4, 3)), session.add_replica("cpu")
        there = arrays(4, 3, device=1).seen  # looks like an array on the host
        with pytest.raises(dsgd.InvalidArgumentError, match="the value is memory of cuda:1, but its replica is on the cpu"):
            replica.bind(parameter, there, numpy.zeros((4, 3), "f4"))
        with pytest.raises(dsgd.InvalidArgumentError, match="the gradient is memory of cuda:1"):
            replica.bind(parameter, numpy.zeros((4, 3), "f4"), there)
        replica.bind(parameter, numpy.zeros((4, 3), "f4"), numpy.zeros((4, 3), "f4"))
        with pytest.raises(dsgd.InvalidArgumentError, match="'data' is memory of cuda:1; objects take memory of the host"):
            session.put("there", there)


def in_threads(workers, function):
    """Runs function(session, rank) for each worker of a job, in threads of this process, whose GPUs the fake has."""
    ctypes.CDLL(DRIVER)
    with dsgd.Head(head="127.0.0.1:0", num_workers=workers) as head:

        def work(rank):
            with dsgd.init(head=head.address, num_workers=workers, rank=rank, embed_head="never") as session:
                return function(session, rank)

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return [future.result(120) for future in [pool.submit(work, rank) for rank in range(workers)]]


def test_collectives_take_tensors_on_a_gpu(arrays):
    """Rank 0 has its tensors on a GPU without a replica, rank 1 in host memory."""
    made = [arrays(4, 3, device=1), arrays(2, 4, 3, device=1), arrays(6, device=1)]

    def work(session, rank):
        data, gathered, part = made if rank == 0 else [numpy.zeros((4, 3), "f4"), numpy.zeros((2, 4, 3), "f4"), numpy.zeros(6, "f4")]
        seen = [array.seen if rank == 0 else array for array in (data, gathered, part)]
        seen[0][...] = rank + 1
        assert session.allreduce(data) is data and (seen[0] == 3).all()
        seen[0][...] = rank + 1
        assert session.channel(2).broadcast(data, 1) is data and (seen[0] == 2).all()
        seen[0][...] = rank + 1
        assert session.allgather(data, gathered) is gathered
        assert (seen[1][0] == 1).all() and (seen[1][1] == 2).all()
        assert session.reduce_scatter(data, part, "max") is part and (seen[2] == 2).all()
        new = session.allgather(data)
        assert isinstance(new, numpy.ndarray) and (new == seen[1]).all()
        return True

    assert in_threads(2, work) == [True, True]
    assert made[0].streams == [1] * 5 and made[1].streams == [1]  # what the producer has entered comes before


def test_a_tensor_on_a_gpu_may_be_empty(arrays):
    made = [[arrays(4), arrays(4)], [arrays(0), arrays(0)]]

    def work(session, rank):
        mine, part = made[rank]
        mine.seen[...] = 3
        assert (session.allgather(mine, element_counts=[4, 0]) == [3, 3, 3, 3]).all()
        session.reduce_scatter(numpy.full(4, rank + 1, "f4"), part, element_counts=[4, 0])
        assert rank == 1 or (part.seen == 3).all()
        return True

    assert in_threads(2, work) == [True, True]


def test_a_tensor_is_held_until_its_collective_has_ended(arrays):
    ctypes.CDLL(DRIVER)
    array = arrays(5)
    array.seen[...] = 7
    with dsgd.init() as session:
        session.allreduce(array)
        held = HeldStream()
        assert FAKE.cudaStreamSynchronize(ctypes.c_void_p(1)) == 0
        event = ctypes.c_void_p()
        assert FAKE.cudaEventCreateWithFlags(ctypes.byref(event), 2) == 0
        assert FAKE.cudaEventRecord(event, held.stream) == 0
        assert FAKE.cudaStreamWaitEvent(ctypes.c_void_p(1), event, 0) == 0  # as a producer's stream
        operation = session.allreduce_async(array)
        with pytest.raises(dsgd.WaitTimeoutError):
            operation.wait(0.05)
        del operation
        gc.collect()
        assert any(entry[3] is array for entry in Array.alive.values())
        array.seen[...] = 8
        held.let_go()
        session.barrier()
        assert session.allreduce(array) is array and (array.seen == 8).all()
        assert FAKE.cudaEventDestroy(event) == 0
    assert FAKE.cudaStreamDestroy(held.stream) == 0


def test_collectives_refuse_tensors_that_they_cannot_use(arrays):
    ctypes.CDLL(DRIVER)
    with dsgd.init() as session:
        with pytest.raises(dsgd.InvalidArgumentError, match="`send` is memory of cuda:0 and `receive` is memory of cuda:1; give both on one GPU"):
            session.allgather(arrays(4), arrays(4, device=1))
        with pytest.raises(dsgd.InvalidArgumentError, match="'data' is on cuda:0|data is on cuda:0, but host memory is needed"):
            session.put("tensor", arrays(4))
        with pytest.raises(dsgd.InvalidArgumentError, match=r"is on DLPack device \(13, 0\)"):
            session.allreduce(arrays(4, kind=13))
        with pytest.raises(dsgd.InvalidArgumentError, match="read-only"):
            session.allreduce(arrays(4, flags=1))
        session.barrier()
