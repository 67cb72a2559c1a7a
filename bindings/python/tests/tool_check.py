"""Run by test-wheel: the `dsgd` command that an installed wheel brings. tool_check.py PROGRAM"""

import os
import pathlib
import subprocess
import sys

import dsgd

WORKER = "import dsgd; session = dsgd.init(); print('rank', session.rank, 'of', session.size); session.close()"


def output(*command, status=0):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == status, (command, run)
    return run.stdout


def main():
    program = sys.argv[1]
    for command in ([program], [sys.executable, "-I", "-m", "dsgd"]):
        assert output(*command, "version") == f"dsgd {dsgd.__version__}\n"
        lines = output(*command, "run", "-n", "2", "--", sys.executable, "-I", "-c", WORKER).splitlines()
        assert sorted(line.partition("] ")[2] for line in lines) == ["rank 0 of 2", "rank 1 of 2"], lines
    # Python ignores SIGPIPE; the workers must not.
    [line] = output(program, "run", "-n", "1", "--", "sh", "-c", "grep SigIgn: /proc/self/status").splitlines()
    assert int(line.split()[-1], 16) & 1 << 12 == 0, line
    # It is the wheel's own library that the tool is linked with.
    libraries = output("ldd", str(pathlib.Path(dsgd.__file__).parent / "bin" / "dsgd"))
    own = [line for line in libraries.splitlines() if "libdsgd" in line]
    assert len(own) == 1 and os.path.samefile(own[0].split()[2], pathlib.Path(dsgd.__file__).with_name("libdsgd.so.1")), own
    assert not any(part in libraries for part in ("libkj", "libcapnp", "libuv", "not found")), libraries
    print(f"ok: {output(program, 'version').strip()}, the command")


if __name__ == "__main__":
    main()
