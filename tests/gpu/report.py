"""The report of tests/gpu/run: what passed, and the measurements as medians over the rounds.

report.py RESULTS_FOLDER     reads info.txt, checks.txt (STATUS SECONDS NAME, a tab, WHY per line), *.csv, NAME.log of what failed, and
                             the file `running`, with a name, while there is one; writes Markdown to stdout
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

# What is wanted, as a part of the limit's bandwidth.
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
SECONDS = {"host CPU time of a step with 161 tensors": 50e-6}  # at most


def read_rows(folder: Path) -> Tuple[List[str], Dict[str, List[Tuple[float, float, str]]]]:
    notes, rows = [], defaultdict(list)
    for path in sorted(folder.glob("*.csv")):
        for line in path.read_text().split("\n")[:-1]:  # all but what was being written when the measurement was cut off
            if line.startswith("#"):
                notes.append(line[1:].strip())
            elif line and not line.startswith("name,"):
                name, seconds, nbytes, limit = line.split(",")
                rows[name].append((float(seconds), float(nbytes), limit))
    return notes, rows


def measurements(folder: Path) -> List[str]:
    notes, rows = read_rows(folder)
    if not rows:
        return ["Nothing was measured.", ""]
    lines = [*notes, "", "| | time, median (range) | GB/s | of its limit | goal |", "| --- | --- | --- | --- | --- |"]
    for name, values in rows.items():
        times = [seconds for seconds, _, _ in values]
        nbytes, limit = values[0][1], values[0][2]
        text = f"{statistics.median(times) * 1e6:.1f} µs ({min(times) * 1e6:.1f} to {max(times) * 1e6:.1f})"
        bandwidth = f"{nbytes / statistics.median(times) / 1e9:.0f}" if nbytes else ""
        part = ""
        if limit in rows:  # side by side, round by round
            ratios = [(b / s) / (lb / ls) for (s, b, _), (ls, lb, _) in zip(values, rows[limit])]
            part = f"{statistics.median(ratios):.0%} of {limit}"
        goal = f"≥ {GOALS[name]:.0%}" if name in GOALS else f"≤ {SECONDS[name] * 1e6:.0f} µs" if name in SECONDS else ""
        lines.append(f"| {name} | {text} | {bandwidth} | {part} | {goal} |")
    for ours, theirs in (("update sgd", "torch fused sgd"), ("update adamw", "torch fused adamw")):
        if ours in rows and theirs in rows:
            ratio = statistics.median(t[0] for t in rows[theirs]) / statistics.median(t[0] for t in rows[ours])
            lines += ["", f"`{ours}` is {ratio:.2f} × as fast as `{theirs}` (goal: ≥ 1.0 ×)."]
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
    checks = [Check.of(line) for line in (folder / "checks.txt").read_text().splitlines()]
    passed, failed, skipped = ([check for check in checks if check.status == status] for status in ("passed", "failed", "skipped"))
    print("# dsgd on a GPU\n")
    print((folder / "info.txt").read_text())
    print(f"**{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped**\n")
    if (folder / "running").exists():
        print(f"This run has not come to its end; it was at: {(folder / 'running').read_text().strip()}\n")
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
