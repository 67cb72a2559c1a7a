#!/usr/bin/env python3
"""A name server that never answers must not keep a head waiting for longer than its requests to etcd may take.

mute_name_server.py DSGD

The head is in a network namespace of its own, in which the only name server is a socket that is never read. The system's resolver
waits for it for a minute. A head that cannot find etcd must end long before that.
"""
import argparse
import os
import shutil
import subprocess
import sys
import time

from namespaces import Network

RESOLVER = 60  # s
LIMIT = 20  # s; the request is given half a second
SOCKET = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53)); print('ready', flush=True); time.sleep(300)"


def check(dsgd, network):
    mute = subprocess.Popen(network.command("head", sys.executable, "-c", SOCKET), stdout=subprocess.PIPE, text=True)
    try:
        assert mute.stdout.readline() == "ready\n"
        command = network.command("head", dsgd, "head", "--listen", "127.0.0.1:0", "--num-workers", "2", "--set", "lease=2s", "--set",
                                  "head_state=etcd://slow.example:2379")
        begin = time.monotonic()
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RESOLVER + LIMIT)
        took = time.monotonic() - begin
    finally:
        mute.kill()
        mute.wait()
        mute.stdout.close()
    assert ended.returncode == 1 and "no name server" in ended.stdout, f"status {ended.returncode}: {ended.stdout}"
    assert took < LIMIT, f"the head ended only after {took:.1f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsgd", help="the dsgd program")
    options = parser.parse_args()
    with Network(["head"]) as network:
        folder = os.path.join("/etc/netns", network.space("head"))  # `ip netns exec` puts its files into /etc
        os.makedirs(folder)
        try:
            with open(os.path.join(folder, "resolv.conf"), "w") as file:
                print(f"nameserver 127.0.0.1\noptions timeout:{RESOLVER} attempts:1", file=file)
            check(options.dsgd, network)
        finally:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
