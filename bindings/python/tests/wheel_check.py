"""Run by test-wheel: an installed dsgd, whose Cap'n Proto is hidden inside, and pycapnp with its own, in one process."""

import asyncio
import importlib.metadata
import pathlib
import sys
import tempfile
import threading

if sys.argv[1] == "dsgd-first":
    import dsgd
    import capnp
else:
    import capnp
    import dsgd

import numpy

SCHEMA = """@0xbf5147cbbecf40c1;
struct Point { x @0 :Float32; name @1 :Text; values @2 :List(Int64); }
interface Adder { add @0 (left :Int64, right :Int64) -> (sum :Int64); }
"""


def job_of_two():
    """Over TCP: dsgd's own Cap'n Proto at work, with its own event loop."""
    sums = []
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:

        def worker(rank):
            with dsgd.init(head=head.address, num_workers=2, rank=rank, embed_head="never") as session:
                value, gradient = session.add_replica().alloc(session.add_parameter("w", 100000))
                session.set_strategy("ps")
                session.set_optimizer("sgd", lr=1)
                session.start()
                gradient[:] = rank
                session.step()
                sums.append(float(value.sum()))

        threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sums == [-50000.0, -50000.0], sums


def schema_of(folder):
    path = pathlib.Path(folder, "point.capnp")
    path.write_text(SCHEMA)
    return capnp.load(str(path))


async def rpc(schema):
    """pycapnp's RPC, over a pair of sockets within this process."""

    class Adder(schema.Adder.Server):
        async def add(self, left, right, **others):
            return left + right

    ours, theirs = __import__("socket").socketpair()
    server_end = await capnp.AsyncIoStream.create_connection(sock=ours)
    client_end = await capnp.AsyncIoStream.create_connection(sock=theirs)
    server = capnp.TwoPartyServer(server_end, bootstrap=Adder())
    client = capnp.TwoPartyClient(client_end)
    answer = await client.bootstrap().cast_as(schema.Adder).add(20, 22)
    assert answer.sum == 42
    del server


# A phrase from the licence of the project and of each library that is inside the wheel.
LICENSES = {
    "LICENSE": "Apache License",
    "capnproto.txt": "Sandstorm Development Group",
    "libuv.txt": "Joyent",
    "libsodium.txt": "Frank Denis",
    "xxhash.txt": "Yann Collet",
    "nlohmann_json.txt": "Niels Lohmann",
    "cli11.txt": "University of Cincinnati",
}


def licenses(plugin):
    expected = {**LICENSES, "cuda.txt": "NVIDIA"} if plugin else LICENSES
    package = importlib.metadata.distribution("dsgd")
    texts = {path.name: path.read_text(encoding="utf-8") for path in package.files if path.parent.name == "licenses"}
    assert texts.keys() == expected.keys(), sorted(texts)
    for name, phrase in expected.items():
        assert phrase in texts[name], name
    assert sorted(package.metadata.get_all("License-File")) == sorted(expected)


def gpus():
    """A wheel with the plug-in says what the machine lacks, or takes the replica; one without says that."""
    plugin = pathlib.Path(dsgd.__file__).with_name("libdsgd_cuda.so.1").exists()
    with dsgd.init() as session:
        try:
            session.add_replica("cuda:0")
        except dsgd.Error as error:
            expected = ("no NVIDIA driver", "driver is too old", "this process can use none") if plugin else ("cannot be loaded",)
            assert any(text in str(error) for text in expected), error
        else:
            assert plugin
    return "with" if plugin else "without"


def main():
    assert "site-packages" in dsgd.__file__, dsgd.__file__
    assert pathlib.Path(dsgd._raw.__file__).name == "_raw.abi3.so", dsgd._raw.__file__
    with tempfile.TemporaryDirectory() as folder:
        schema = schema_of(folder)
        for _ in range(2):
            job_of_two()
            point = schema.Point.new_message(x=1.5, name="a", values=list(range(1000)))
            with schema.Point.from_bytes(point.to_bytes()) as read:
                assert read.x == 1.5 and read.name == "a" and list(read.values) == list(range(1000))
            asyncio.run(capnp.run(rpc(schema)))
    plugin = gpus()
    licenses(plugin == "with")
    # libdsgd must bring no Cap'n Proto that another could capture, nor take the other's.
    maps = pathlib.Path("/proc/self/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    own = [name for name in libraries if "libdsgd" in name]
    assert own and all("site-packages" in name for name in own), own
    assert not any(part in name for name in libraries for part in ("libkj", "libcapnp", "libuv", "libsodium")), libraries
    print(f"ok: dsgd {dsgd.__version__} and pycapnp {capnp.__version__}, {sys.argv[1]}, NumPy {numpy.__version__}, {plugin} GPUs")


if __name__ == "__main__":
    main()
