"""Shared by the tests of samples/job: checks, all of which run even if one fails, and jobs that must succeed."""

import json
import os
import subprocess

failed = []


def expect(truth, what, output=""):
    print("ok:" if truth else "FAILED:", what)
    if not truth:
        print(output)
        failed.append(what)


def run(*command, **environment):
    """A program's exit status, and all that it says."""
    done = subprocess.run(command, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def link(folder, links):
    """Makes the folder look like a build folder: `links` are names in it, and what they stand for."""
    for name, target in links.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target.absolute())


class Jobs:
    def __init__(self, program, source, build, work):
        """`program` runs the trainers of the folder `build`; `work` is for what it writes."""
        self.command = [program, "--build", build, "--source", source]
        self.report, self.plot = work / "report.json", work / "plot.svg"

    def run(self, *words, **environment):
        """The job's output and report."""
        for file in (self.report, self.plot):
            file.unlink(missing_ok=True)
        status, output = run(*self.command, "--report", self.report, "--plot", self.plot, *words, **environment)
        changed = [f"{name}={value}" for name, value in environment.items()]
        expect(status == 0, " ".join(["the job", *changed, *words, "ends well"]), output)
        return output, json.loads(self.report.read_text()) if status == 0 else None
