"""Network namespaces that are joined by a bridge, for tests that cut a process off."""
import os
import subprocess
import sys

SKIPPED = 77  # exit status of a test that could not make them


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Network:
    """Namespaces dsgd-PID-NAME with the addresses 10.78.0.1, 10.78.0.2, ... in the order of the names, and one with the bridge."""

    def __init__(self, names):
        self.prefix, self.names = f"dsgd-{os.getpid()}", list(names)
        self.hub = self.prefix + "-hub"

    def __enter__(self):
        try:
            ip("netns", "add", self.hub)
            ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.hub, "link", "set", "bridge", "up")
            for name in self.names:
                space = self.space(name)
                ip("netns", "add", space)
                ip("-n", self.hub, "link", "add", f"port-{name}", "type", "veth", "peer", "name", "eth", "netns", space)
                self.heal(name)
                ip("-n", self.hub, "link", "set", f"port-{name}", "up")
                ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth")
                ip("-n", space, "link", "set", "eth", "up")
                ip("-n", space, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            if not isinstance(error, FileNotFoundError):  # without `ip` there is nothing to clean up
                self.__exit__()
            print("skipped: no network namespaces here:", error)
            sys.exit(SKIPPED)
        return self

    def __exit__(self, *_):
        for name in [*self.names, "hub"]:
            subprocess.run(["ip", "netns", "del", self.space(name)], stderr=subprocess.DEVNULL)

    def space(self, name):
        return f"{self.prefix}-{name}"

    def address(self, name):
        return f"10.78.0.{self.names.index(name) + 1}"

    def command(self, name, *words):
        """The command that runs `words` in a namespace; it has the process id of the program."""
        return ["ip", "netns", "exec", self.space(name), *words]

    # Off the bridge, rather than down: TCP notices packets that its own machine drops, and backs off less.
    def cut(self, name):
        ip("-n", self.hub, "link", "set", f"port-{name}", "nomaster")

    def heal(self, name):
        ip("-n", self.hub, "link", "set", f"port-{name}", "master", "bridge")
