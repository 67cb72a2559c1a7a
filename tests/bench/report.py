"""Writes what was measured as Markdown and as a plot."""

import csv
import dataclasses
import os
import pathlib
import platform
import statistics
import subprocess
import time

import plot

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#ff7f0e",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#17becf",
    "#7f7f7f",
    "#bcbd22",
)
BUSY = 0.5  # one-minute load average from which on numbers are not worth keeping
BULK = 1 << 20  # bytes from which on the rate decides, and not the latency of a message


@dataclasses.dataclass
class Conditions:
    began: float  # seconds since 1970
    seconds: float
    load_before: tuple  # load averages
    rounds: int
    build: str
    version: str
    settings: list


@dataclasses.dataclass
class Sample:
    """One figure: the median over rounds, and the lowest and highest round."""

    rounds: dict  # round: microseconds

    @property
    def median(self):
        return statistics.median(self.rounds.values())

    def __str__(self):
        low, high = min(self.rounds.values()), max(self.rounds.values())
        return f"{number(self.median)} ({number(low)}–{number(high)})"


def number(value):
    """Three significant digits, all of a large number; thousands in groups."""
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def size_name(size):
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):g} {unit}"
    return f"{size:g} B"


def samples(rows, *keys):
    """{values of `keys`: Sample}, in the order in which they first came."""
    found = {}
    for row in rows:
        key = tuple(int(row[k]) if k in ("workers", "bytes", "threads") else row[k] for k in keys)
        found.setdefault(key, Sample({})).rounds[row["round"]] = float(row["median_us"])
    return found


def table(head, lines):
    return [
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]


def first_word(path, key):
    """Value of a "key : value" line of a file in /proc."""
    for line in pathlib.Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + (
        ", with local changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    )


def conditions_section(c):
    def loads(values):
        return ", ".join(f"{value:.2f}" for value in values)

    memory = int(first_word("/proc/meminfo", "MemTotal").split()[0]) / 2**20
    lines = [
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(c.began))),
        ("source", commit()),
        ("dsgd", c.version),
        ("build", c.build),
        ("processor", f"{first_word('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores"),
        ("memory", f"{memory:.1f} GiB"),
        ("system", f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}"),
        ("load average before (1, 5, 15 min)", loads(c.load_before)),
        ("load average after (made by the run itself)", loads(os.getloadavg())),
        ("rounds", f"{c.rounds}, in {c.seconds:.0f} s"),
        ("pinning", "none"),
        ("settings", " ".join(c.settings) or "defaults"),
    ]
    out = ["# Benchmarks", ""]
    if c.load_before[0] > BUSY:
        out += ["**The machine was not idle when this run began: these numbers say little.**", ""]
    return out + table(("", ""), lines)


def label(transport, algorithm):
    names = {"tcp": "TCP", "unix": "Unix sockets", "gloo": "Gloo over TCP"}
    return f"{names[transport]}, {algorithm}"


def recorded(workers, sizes):
    """{series: {bytes: microseconds}} of other runs on another day."""
    found = {}
    with open(HERE / "recorded.csv", newline="") as file:
        for row in csv.DictReader(file):
            if int(row["workers"]) == workers and int(row["bytes"]) in sizes:
                found.setdefault(row["series"], {})[int(row["bytes"])] = float(row["us"])
    return found


def of_limit(measured, limits, transport, workers, size):
    """The fastest all-reduce's distance to raw sockets, round by round: the time for which raw sockets would need to move
    as many bytes over this machine's loopback, in percent of ours."""
    if size < BULK:
        return "–"
    best = min(
        (s for (w, t, _, b), s in measured.items() if (w, t, b) == (workers, transport, size)),
        key=lambda s: s.median,
    )
    raw = limits[f"{transport}_both_ways", 2, size]
    ratios = [(workers - 1) * raw.rounds[r] / best.rounds[r] for r in best.rounds]
    return f"{100 * statistics.median(ratios):.0f} % ({100 * min(ratios):.0f}–{100 * max(ratios):.0f})"


def allreduce_section(measured, limits, sizes):
    out = [
        "## All-reduce",
        "",
        "float32 sums in place over loopback, µs: median over the rounds of each round's median (lowest–highest round).",
        "*busbw* is bytes / time × 2(N−1)/N of the fastest line. *Of raw sockets*: the time in which a bare pair of sockets",
        "moves as many bytes as the N workers do together, both ways at once, in percent of our fastest time over the same",
        "sockets, taken round by round, from 1 MiB on. The lines in italics come from other runs, on another day, on two",
        "virtual cores with AVX-512: **only ratios within one run count**, so they give the order of magnitude and no more.",
        "",
        "![size against time](allreduce.svg)",
        "",
    ]
    for workers in sorted({key[0] for key in measured}):
        lines = []
        for transport, algorithm in dict.fromkeys((t, a) for w, t, a, _ in measured if w == workers):
            lines.append(
                [label(transport, algorithm)]
                + [str(measured[workers, transport, algorithm, s]) for s in sizes]
            )
        best = [
            min(s.median for (w, t, _, b), s in measured.items() if (w, b) == (workers, size) and t != "gloo")
            for size in sizes
        ]
        lines.append(
            ["busbw of the fastest, GB/s"]
            + [number(s * 2 * (workers - 1) / workers / us * 1e-3) for s, us in zip(sizes, best)]
        )
        for transport, name in (("tcp", "TCP"), ("unix", "Unix sockets")):
            lines.append(
                [f"{name}: of raw sockets"]
                + [of_limit(measured, limits, transport, workers, s) for s in sizes]
            )
        for series, values in recorded(workers, sizes).items():
            lines.append([f"*{series}*"] + [f"*{number(values[s])}*" if s in values else "–" for s in sizes])
        out += [f"### {workers} workers", ""] + table(["µs", *map(size_name, sizes)], lines)
    return out


def limits_section(limits, sizes):
    lines = []
    for name, threads in dict.fromkeys((n, t) for n, t, _ in limits):
        counted = 1 if "way" in name else threads
        cells = []
        for size in sizes:
            sample = limits[name, threads, size]
            cells.append(f"{number(sample.median)} µs, {number(counted * size / sample.median * 1e-3)} GB/s")
        lines.append([f"{name.replace('_', ' ')}, {threads} thread{'s' if threads > 1 else ''}"] + cells)
    return [
        "## Limits of this machine, in the same run",
        "",
        "One process. Memory: `bytes` per thread, GB/s of all threads together (bytes copied; bytes added). Sockets: bare",
        "TCP over loopback and Unix sockets between two threads, GB/s of each direction.",
        "",
        *table(["", *map(size_name, sizes)], lines),
    ]


def step_section(steps):
    workers = sorted({key[1] for key in steps})
    lines = [
        [language, *(str(steps[language, n]) for n in workers)]
        for language in dict.fromkeys(key[0] for key in steps)
    ]
    return [
        "## A step besides its gradients",
        "",
        "`dsgd_step` on four float32 parameters (9 610 elements) with sgd and constant gradients, strategy `allreduce` over",
        "TCP; µs on rank 0, median over rounds (lowest–highest round).",
        "",
        *table(["", *(f"{n} worker{'s' if n > 1 else ''}" for n in workers)], lines),
    ]


def draw(measured, limits, sizes):
    panels = []
    for workers in sorted({key[0] for key in measured}):
        lines, colours = [], iter(COLOURS * 2)
        for transport, algorithm in dict.fromkeys((t, a) for w, t, a, _ in measured if w == workers):
            points = [(s, measured[workers, transport, algorithm, s].median) for s in sizes]
            lines.append(plot.Line(label(transport, algorithm), points, next(colours)))
        for series, values in recorded(workers, sizes).items():
            lines.append(plot.Line(f"{series} (another run)", sorted(values.items()), next(colours), "6 4"))
        raw = [(s, (workers - 1) * limits["tcp_both_ways", 2, s].median) for s in sizes]
        lines.append(plot.Line("raw TCP, as many bytes", raw, "#000", "1 4"))
        panels.append(plot.Panel(f"All-reduce, {workers} workers: µs by bytes", lines))
    return plot.svg("All-reduce: size against time", panels, lambda x: size_name(x).replace("iB", ""), number)


def write(folder, tables, conditions):
    """Writes report.md and allreduce.svg from the rows of measure.py."""
    measured = samples(tables["allreduce"], "workers", "transport", "algorithm", "bytes")
    limits = samples(tables["limits"], "limit", "threads", "bytes")
    steps = samples(tables["step"], "language", "workers")
    sizes = sorted({key[3] for key in measured})
    sections = [
        conditions_section(conditions),
        allreduce_section(measured, limits, sizes),
        step_section(steps),
        limits_section(limits, sizes),
    ]
    (folder / "allreduce.svg").write_text(draw(measured, limits, sizes))
    (folder / "report.md").write_text(
        "\n".join(line for section in sections for line in section).rstrip() + "\n"
    )
