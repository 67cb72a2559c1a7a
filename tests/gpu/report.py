"""The report of tests/gpu/run: what passed, and the measurements as medians over the rounds.

report.py RESULTS_FOLDER     reads info.txt, checks.txt (lines of STATUS SECONDS NAME, a tab, and WHY), *.csv, NAME.log of failed checks,
                             and `running`, which has the name of the running check, if there is one; writes Markdown to stdout

A missed goal is not a failure. A missing figure and an impossible one are failures.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

# Goals, as fractions of the bandwidth of the limit.
GOALS = {
    "update sgd": 0.90,
    "update adamw": 0.90,
    "fuse 161 tensors": 0.85,
    "unfuse 161 tensors": 0.85,
    "reduce of 2 replicas": 0.90,
    "reduce of 4 replicas": 0.90,
    "to the device": 0.95,
    "to the host": 0.95,
    "both ways at once": 0.95,
    "step of a worker on the GPU and one on the CPU": 0.90,
}
SECONDS = {"host CPU time of a step with 161 tensors": 50e-6}  # goals for times: at most this
WANTED = [*GOALS, *SECONDS, "step sgd", "step adamw"]  # of gpu_bench
BESIDE = "device copy beside "  # the name of a limit that belongs to one row, and is shown in that row
# Nothing is so much faster than a copy of as many bytes: a part of the work is missing, or something else was measured. Some
# drivers copy within an H200 at 67 % of the memory's bandwidth (github.com/NVIDIA/cccl/issues/1672), and kernels reach more.
IMPOSSIBLE = 1.5

Rows = Dict[str, List[Tuple[float, float, str]]]  # by name and round: seconds, bytes, limit


def read_row(line: str) -> Tuple[str, Tuple[float, float, str]]:
    name, seconds, nbytes, limit = line.split(",")
    if not 0 < float(seconds) < math.inf:
        raise ValueError(f"no time: {seconds}")
    return name, (float(seconds), float(nbytes), limit)


def read_rows(folder: Path) -> Tuple[List[str], Rows]:
    """Returns the notes (comments, and lines that libraries have printed) and the rows."""
    notes, rows = [], defaultdict(list)
    for path in sorted(folder.glob("*.csv")):
        for line in path.read_text(errors="replace").split("\n")[:-1]:  # the last part is empty, or a line that was cut off
            if not line or line.startswith("name,"):
                continue
            try:
                name, row = read_row(line)
                rows[name].append(row)
            except ValueError:
                notes.append(line.lstrip("#").strip())
    return notes, dict(rows)


def part_of_limit(rows: Rows, name: str) -> Optional[float]:
    """Returns the bandwidth as a fraction of its limit's, the median over the rounds; None if there is no limit."""
    limits = rows.get(rows[name][0][2], [])
    ratios = [(b / s) / (lb / ls) for (s, b, _), (ls, lb, _) in zip(rows[name], limits)]
    return statistics.median(ratios) if ratios else None


def is_small(notes: List[str]) -> bool:
    """Returns whether the sizes are small: they only show that the benchmark works."""
    return any(note.startswith("scale ") for note in notes)


def wrong_figures(folder: Path) -> List["Check"]:
    notes, rows = read_rows(folder)
    wanted = WANTED if (folder / "device.csv").exists() else []
    wrong = [Check("failed", 0, name, "it was not measured") for name in wanted if name not in rows]
    for name, values in rows.items():
        limit, part = values[0][2], part_of_limit(rows, name)
        times = len(rows.get(limit, []))
        if limit and times != len(values):
            wrong.append(Check("failed", 0, name, f"it was measured {len(values)} times, and its limit, {limit}, {times} times"))
        elif part and part > IMPOSSIBLE and limit.startswith((BESIDE, "plain cop")) and not is_small(notes):
            wrong.append(Check("failed", 0, name, f"{part:.0%} of {limit} is impossible"))
    return wrong


def against_torch(rows: Rows, missed: Callable[[bool], str]) -> Iterator[str]:
    for name in ("sgd", "adamw"):
        theirs = f"torch fused {name}"
        for ours, what, goal in (
            (f"update {name}", "the update kernel alone, with gradients that are already in a bucket,", 1.0),
            (f"step {name}", "a whole step, which also fuses gradients into a bucket,", None),
        ):
            if ours in rows and theirs in rows:
                ratio = statistics.median(t[0] for t in rows[theirs]) / statistics.median(t[0] for t in rows[ours])
                wanted = f" (goal: ≥ {goal:.1f} ×{missed(ratio < goal)})" if goal else ""
                yield f"`{ours}`, {what} is {ratio:.2f} × as fast as PyTorch's `optimizer.step()`, `{theirs}`{wanted}."


def measurements(folder: Path) -> List[str]:
    notes, rows = read_rows(folder)
    if not rows:
        return [*notes, "", "Nothing was measured.", ""]

    def missed(is_missed: bool) -> str:
        return ", missed" if is_missed and not is_small(notes) else ""

    lines = [*notes, "", "| | time, median (range) | GB/s | of its limit | goal |", "| --- | --- | --- | --- | --- |"]
    for name, values in rows.items():
        if name.startswith(BESIDE):
            continue
        times = [seconds for seconds, _, _ in values]
        time, nbytes, limit = statistics.median(times), values[0][1], values[0][2]
        text = f"{time * 1e6:.1f} µs ({min(times) * 1e6:.1f} to {max(times) * 1e6:.1f})"
        bandwidth = f"{nbytes / time / 1e9:.0f}" if nbytes else ""
        part, shown, goal = part_of_limit(rows, name), "", ""
        if part is not None:
            speed = statistics.median(b / s for s, b, _ in rows[limit]) / 1e9
            shown = f"{part:.0%} of " + (f"a device copy, {speed:.0f} GB/s" if limit.startswith(BESIDE) else limit)
        if name in GOALS:
            goal = f"≥ {GOALS[name]:.0%}" + missed(part is not None and part < GOALS[name])
        elif name in SECONDS:
            goal = f"≤ {SECONDS[name] * 1e6:.0f} µs" + missed(time > SECONDS[name])
        lines.append(f"| {name} | {text} | {bandwidth} | {shown} | {goal} |")
    for line in against_torch(rows, missed):
        lines += ["", line]
    return [*lines, ""]


class Check(NamedTuple):
    status: str
    seconds: int
    name: str
    why: str

    @staticmethod
    def of(line: str) -> "Check":
        status, seconds, rest = line.split(" ", 2)
        name, _, why = rest.partition("\t")
        return Check(status, int(seconds), name, why)

    def __str__(self) -> str:
        seconds = "" if self.status == "skipped" else f" ({self.seconds} s)"
        return f"- {self.status}: {self.name}{seconds}" + (f": {self.why}" if self.why else "")


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] == "--help":
        print(__doc__)
        return 0 if sys.argv[1:] == ["--help"] else 2
    folder = Path(sys.argv[1])
    checks = [Check.of(line) for line in (folder / "checks.txt").read_text().splitlines()] + wrong_figures(folder)
    passed, failed, skipped = ([check for check in checks if check.status == status] for status in ("passed", "failed", "skipped"))
    print("# dsgd on a GPU\n")
    print((folder / "info.txt").read_text())
    print(f"**{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped**\n")
    if (folder / "running").exists():
        print(f"This run is not complete; the last check was: {(folder / 'running').read_text().strip()}\n")
    print("\n".join(map(str, failed + skipped)))
    print("\n## Tests\n")
    for check in checks:
        if check.status == "skipped":
            continue
        print(check)
        log = folder / f"{check.name.replace(' ', '_')}.log"
        if check.status == "failed" and log.exists():
            print("\n".join(["", "```", *log.read_text(errors="replace").splitlines()[-40:], "```", ""]))
    print("\n## Measurements\n")
    print("\n".join(measurements(folder)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
