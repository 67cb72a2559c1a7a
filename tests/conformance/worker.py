"""The conformance worker in Python; README.md has the contract."""

import asyncio
import math
import struct
import sys

import numpy

import dsgd

DIGEST_START = 0xCBF29CE484222325
MASK = 2**64 - 1


def pattern(dtype, count, seed, salt):
    x = numpy.uint64((seed * 1000003 + salt) & MASK) + numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(
        0x9E3779B97F4A7C15
    )
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    x = x ^ (x >> numpy.uint64(31))
    number = ((x >> numpy.uint64(33)) % numpy.uint64(17)).astype(numpy.int64)
    return (number if dtype.startswith("uint") else number - 8).astype(dtype)


def fnv(data, h=DIGEST_START):
    for byte in bytes(data):
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def numbers(word, kind=int):
    return [] if word == "-" else [kind(number) for number in word.split(",")]


class Worker:
    def __init__(self, out):
        self.out = out
        self.configuration = dsgd.Config()
        self.session = None
        self.parameters = []
        self.tensors = []  # by replica, by parameter: (value, gradient)
        self.line = 0

    def run(self, script):
        lines = enumerate(script, 1)
        for self.line, text in lines:
            text = text.rstrip("\n")
            if not text or text.startswith("#"):
                continue
            word, _, rest = text.partition(" ")
            if word == "async":
                asyncio.run(self.run_async([next(lines) for _ in range(int(rest))]))
            elif word == "try":
                try:
                    self.operation(rest, trying=True)
                except dsgd.Error as error:
                    self.write(f"error={error.code}")
                else:
                    raise AssertionError(f"line {self.line}: {rest!r} was expected to fail")
            else:
                self.operation(text)

    def write(self, text, line=None):
        self.out.write(f"{line or self.line} {text}\n")

    def operation(self, text, trying=False):
        name, *words = text.split(" ")
        options = text.split(" ", 2)[2] if len(words) > 1 else None
        if name in ("allreduce", "broadcast", "allgather", "reduce_scatter"):
            self.write(f"digest={fnv(self.begin(name, words).wait()):016x}")
        elif name == "get":
            data = self.session.get(words[0], 0 if trying else None)
            self.write(f"nbytes={data.nbytes} digest={fnv(data):016x}")
        elif name in ("parameter_set", "optimizer", "strategy", "config"):
            getattr(self, name)(words[0], options)
        else:
            getattr(self, name)(*words)

    async def run_async(self, lines):
        """Awaited, so that asyncio is tested beside the plain wait."""
        begun = [(line, self.begin(*self.split(text))) for line, text in lines]
        for line, operation in begun:
            result = await operation
            if result is not None:
                self.write(f"digest={fnv(result):016x}", line)
        self.line = lines[-1][0]

    @staticmethod
    def split(text):
        name, *words = text.rstrip("\n").split(" ")
        return name, words

    # ---- Before start ----

    def config(self, key, value):
        self.configuration[key] = value

    def init(self):
        self.session = dsgd.init(self.configuration)
        self.write(f"rank={self.session.rank} size={self.session.size}")

    def replica(self):
        self.session.add_replica("cpu")

    def parameter(self, name, dtype, shape, kind):
        self.parameters.append(
            self.session.add_parameter(name, numbers(shape), dtype, trained=kind == "trained")
        )

    def parameter_set(self, name, options):
        self.named(name).set(options)

    def optimizer(self, name, options):
        self.session.set_optimizer(name, options)

    def strategy(self, name, options):
        self.session.set_strategy(name, options)

    def named(self, name):
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def alloc(self):
        self.tensors = [
            [replica.alloc(parameter) for parameter in self.parameters] for replica in self.session.replicas
        ]

    def bind(self):
        self.tensors = []
        for replica in self.session.replicas:
            row = []
            for parameter in self.parameters:
                value = numpy.zeros(parameter.shape, parameter.dtype.name)
                gradient = numpy.zeros_like(value) if parameter.trained else None
                replica.bind(parameter, value, gradient)
                row.append((value, gradient))
            self.tensors.append(row)

    def fill(self, seed):
        for r, row in enumerate(self.tensors):
            for p, (value, _) in enumerate(row):
                self.fill_one(value, seed, 1000000 + self.salt(r, p))

    def fill_one(self, array, seed, salt):
        array[...] = pattern(array.dtype.name, array.size, int(seed), salt).reshape(array.shape)

    def salt(self, r, p):
        return self.session.rank * 10000 + r * 100 + p

    def start(self):
        self.session.start()

    # ---- Steps ----

    def rate(self, rate):
        self.session.set_learning_rate(float(rate))

    def replica_weight(self, rank, replica, weight):
        if int(rank) == self.session.rank:
            self.session.replicas[int(replica)].set_weight(float(weight))

    def absent(self, rank, name):
        if int(rank) == self.session.rank:
            for replica in self.session.replicas:
                replica.gradient_absent(self.named(name))

    def stop(self, rank):
        if int(rank) == self.session.rank:
            self.session.request_stop()

    def step(self, seed, weights):
        for r, row in enumerate(self.tensors):
            for p, (_, gradient) in enumerate(row):
                if gradient is not None:
                    self.fill_one(gradient, seed, self.salt(r, p))
        self.step_line(self.session.step(self.my_weight(weights)))

    def overlap(self, seed, weights):
        operation = self.session.step_begin(self.my_weight(weights))
        for r, replica in reversed(list(enumerate(self.session.replicas))):
            for p, parameter in reversed(list(enumerate(self.parameters))):
                if parameter.trained:
                    self.fill_one(self.tensors[r][p][1], seed, self.salt(r, p))
                    replica.gradient_ready(parameter)
        self.step_line(operation.wait())

    def my_weight(self, weights):
        return numbers(weights, float)[self.session.rank]

    def step_line(self, result):
        self.write(
            f"step={result.step} size={result.size} applied={int(result.applied)} all_done={int(result.all_done)} "
            f"stop={int(result.stop)} weight={struct.pack('>d', result.weight).hex()}"
        )

    def values(self):
        self.digest_of(value for row in self.tensors for value, _ in row)

    def gradients(self):
        self.digest_of(gradient for row in self.tensors for _, gradient in row if gradient is not None)

    def digest_of(self, arrays):
        h = DIGEST_START
        for array in arrays:
            h = fnv(array.tobytes(), h)
        self.write(f"digest={h:016x}")

    def digest(self):
        self.write(f"digest={self.session.digest():016x}")

    # ---- Beyond the step ----

    def begin(self, name, words):
        """A collective as an Operation."""
        session = self.session
        if name == "barrier":
            return session.barrier_async()
        dtype, counts, *words = words
        counts = numbers(counts)
        seed = int(words[-1])
        if name == "allreduce":
            return session.allreduce_async(pattern(dtype, counts[0], seed, session.rank), words[0])
        if name == "broadcast":
            return session.broadcast_async(pattern(dtype, counts[0], seed, session.rank), int(words[0]))
        uneven = counts if len(counts) > 1 else None
        per_rank = uneven or counts * session.size
        if name == "allgather":
            send = pattern(dtype, per_rank[session.rank], seed, session.rank)
            return session.allgather_async(send, element_counts=uneven)
        send = pattern(dtype, sum(per_rank), seed, session.rank)
        return session.reduce_scatter_async(send, reduction=words[0], element_counts=uneven)

    def barrier(self):
        self.session.barrier()

    def put(self, rank, name, nbytes, seed):
        if int(rank) == self.session.rank:
            self.session.put(name, memoryview(pattern("uint8", int(nbytes), int(seed), 0)))

    def put_array(self, rank, name, dtype, shape, seed):
        if int(rank) == self.session.rank:
            sizes = numbers(shape)
            self.session.put(name, pattern(dtype, math.prod(sizes), int(seed), 0).reshape(sizes))

    def get_array(self, name, dtype):
        array = self.session.get(name)
        shape = ",".join(map(str, array.shape)) or "-"
        self.write(f"dtype={int(dsgd.DType[array.dtype.name])} shape={shape} digest={fnv(array.tobytes()):016x}")

    def shard(self, samples, seed, flags, epoch, batch):
        shard = self.session.shard(int(samples), int(seed), shuffle=not int(flags) & 1)
        h = DIGEST_START
        for indices in shard.batches(int(batch), int(epoch)):
            h = fnv(indices.tobytes(), h)
        self.write(f"size={len(shard)} digest={h:016x}")

    def close(self):
        self.session.close()


def main():
    with open(sys.argv[1]) as script, open(sys.argv[2], "w") as out:
        Worker(out).run(script)


if __name__ == "__main__":
    main()
