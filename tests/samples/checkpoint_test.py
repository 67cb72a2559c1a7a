#!/usr/bin/env python3
"""Trainers with --checkpoint: killed with all their workers and started again, they end with the bits of a run that was never
stopped. `dsgd run --restarts` starts them again by itself; this is tested in the first language, or in each language if the
environment variable TEST_ALL_CASES is set.

checkpoint_test.py --source DIR --build DIR --python PROGRAM LANGUAGE...
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from checks import expect, failed

EPOCHS, WORKERS, INTERVAL = 8, 2, 7


def trainer(language, source, build, python):
    return {
        "c": [build / "bin/digits_c"],
        "java": ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--enable-native-access=ALL-UNNAMED", "-cp", f"{build}/java/dsgd.jar:{build}/java/samples", "Digits"],
        "go": [build / "bin/digits_go"],
        "python": [python, source / "samples/python/digits.py"],
    }[language]


class Job:
    """A job under `dsgd run`; its lines are read as they come."""

    def __init__(self, build, words, command, folder):
        # The threads of a numerical library could split sums in another way.
        environment = dict(os.environ, PYTHONPATH=str(build / "python"), DSGD_CHECKPOINT_INTERVAL=str(INTERVAL),
                           LD_LIBRARY_PATH=str(build / "lib"), OPENBLAS_NUM_THREADS="1")
        self.process = subprocess.Popen([build / "bin/dsgd", "run", "-n", str(WORKERS), *words, "--", *command,
                                         "--epochs", str(EPOCHS), "--checkpoint", folder],
                                        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.output = ""

    def read_until(self, pattern):
        """Whether a line comes that matches."""
        for line in self.process.stdout:
            self.output += line
            if re.search(pattern, line):
                return True
        return False

    def end(self):
        self.output += self.process.stdout.read()
        return self.process.wait()

    def digests(self):
        done = [json.loads(line.partition("] ")[2]) for line in self.output.splitlines() if '"done"' in line]
        return [worker["digest"] for worker in sorted(done, key=lambda worker: worker["rank"])]

    def worker(self):
        """The process of one worker."""
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return next(int(child) for child in children if b"DSGD_RANK=1" in pathlib.Path(f"/proc/{child}/environ").read_bytes())


def resumes(language, job, work):
    undisturbed = job([], work / "undisturbed")
    expect(undisturbed.end() == 0, f"{language}: an undisturbed job ends well", undisturbed.output)
    digests = undisturbed.digests()
    expect(len(digests) == WORKERS and len(set(digests)) == 1, f"{language}: all workers hold the same bits", undisturbed.output)
    kept = sorted(path.name for path in (work / "undisturbed").iterdir())
    expect(len(kept) == 3, f"{language}: the last three checkpoints are kept", str(kept))

    killed = job([], work / "killed")
    expect(killed.read_until(r'^\[0\] .*"epoch": 3,'), f"{language}: a job begins", killed.output)
    killed.process.send_signal(signal.SIGKILL)  # its workers are killed with it
    killed.end()
    expect('"done"' not in killed.output, f"{language}: it is killed before its end", killed.output)
    again = job([], work / "killed")
    expect(again.end() == 0, f"{language}: it ends well when it is started again", again.output)
    expect('"epoch": 1,' not in again.output, f"{language}: it does not begin from the start", again.output)
    expect(again.digests() == digests, f"{language}: it ends with the bits of the undisturbed job", f"{digests}\n{again.output}")

    return digests


def is_restarted(language, job, work, digests):
    restarted = job(["--restarts", "1"], work / "restarted")
    expect(restarted.read_until(r'^\[0\] .*"epoch": 2,'), f"{language}: a job with --restarts begins", restarted.output)
    os.kill(restarted.worker(), signal.SIGKILL)
    expect(restarted.end() == 0, f"{language}: --restarts starts it again after a worker was killed", restarted.output)
    expect("starting all workers again (restart 1 of 1)" in restarted.output, f"{language}: and says so", restarted.output)
    expect(restarted.digests() == digests, f"{language}: and it ends with the same bits", f"{digests}\n{restarted.output}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("languages", nargs="+")
    options = parser.parse_args()
    for language in options.languages:
        command = [*trainer(language, options.source, options.build, options.python),
                   "--data", options.source / "samples/data/digits.csv"]
        with tempfile.TemporaryDirectory() as work:
            run = lambda words, folder: Job(options.build, words, command, folder)
            digests = resumes(language, run, pathlib.Path(work))
            if language == options.languages[0] or os.environ.get("TEST_ALL_CASES"):
                is_restarted(language, run, pathlib.Path(work), digests)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
