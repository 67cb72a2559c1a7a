"""The report of tests/gpu/run: what passed, and the measurements as medians over the rounds.

report.py RESULTS_FOLDER     reads info.txt, checks.txt (STATUS SECONDS NAME per line) and *.csv; writes Markdown to stdout
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Dict, List, Tuple

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
        for line in path.read_text().splitlines():
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


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] == "--help":
        print(__doc__)
        return 0 if sys.argv[1:] == ["--help"] else 2
    folder = Path(sys.argv[1])
    checks = [line.split(maxsplit=2) for line in (folder / "checks.txt").read_text().splitlines()]
    failed = [name for status, _, name in checks if status == "failed"]
    print("# dsgd on a GPU\n")
    print((folder / "info.txt").read_text())
    print("## Tests\n")
    for status, seconds, name in checks:
        print(f"- {status}: {name} ({seconds} s)")
        if status == "failed":
            log = (folder / f"{name.replace(' ', '_')}.log").read_text(errors="replace").splitlines()
            print("\n".join(["", "```", *log[-40:], "```", ""]))
    print("\n## Measurements\n")
    print("\n".join(measurements(folder)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
