#!/usr/bin/env python3
"""Jobs of samples/job on the CPU: what they print, draw and write, and that they fail where they must.

job_test.py --source DIR --build DIR --python PROGRAM LANGUAGE...      languages that are built, of c, java, go and python, in
                                                                       this order; a Python that has NumPy
"""

import argparse
import json
import math
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from checks import Jobs, expect, failed, link, run

ALL = ["c", "java", "go", "python"]
EPOCHS = 40  # as help.txt says
SVG = "{http://www.w3.org/2000/svg}"

# What stand-ins for the C trainer do. `dsgd run` starts them with their rank in the environment.
EPOCH = """echo '{"epoch": %d, "loss": 0.25, "accuracy": 98.5, "samples_per_second": 100.0}'\n"""
DONE = """echo '{"done": true, "rank": '$DSGD_RANK', "language": "c", "accuracy": 98.5, "digest": "'%s'"}'\n"""


def trains(jobs, languages):
    """With default options, and with the other strategies."""
    all_languages = [] if languages == ALL else ["--languages", ",".join(languages)]
    for strategy, workers, words in (("allreduce", 4, []), ("ps", 4, ["--strategy", "ps"]),
                                     ("simple", 2, ["--strategy", "simple", "--workers", "2"])):
        output, report = jobs.run(*words, *all_languages)
        if not report:
            continue
        in_turn = [languages[rank % len(languages)] for rank in range(workers)]
        report_is_complete(report, strategy, in_turn)
        output_shows(report, output)
        curves_are_drawn(jobs.plot, EPOCHS, strategy)


def report_is_complete(report, strategy, languages):
    what = f"{strategy}: the report"
    expect(set(report) == {"strategy", "seconds", "samples_per_second", "workers"}, f"{what} has its keys", report)
    expect(report["strategy"] == strategy, f"{what} names the strategy", report)
    expect(all(0 < report[key] < math.inf for key in ("seconds", "samples_per_second")), f"{what} has times", report)
    workers = report["workers"]
    keys = {"rank", "language", "device", "accuracy", "digest"}
    expect(all(set(worker) == keys for worker in workers), f"{what} has the workers' keys", report)
    expect([worker["rank"] for worker in workers] == list(range(len(languages))), f"{what} has all ranks in order", report)
    expect([worker["language"] for worker in workers] == languages, f"{what} has the languages in turn", report)
    expect(all(worker["device"] == "cpu" for worker in workers), f"{what} has all workers on the CPU", report)
    expect(all(97 <= worker["accuracy"] <= 100 for worker in workers), f"{what} has accuracies in per cent, of 97 on", report)
    expect(all(re.fullmatch("[0-9a-f]{16}", worker["digest"]) for worker in workers), f"{what} has digests", report)
    expect(len({worker["digest"] for worker in workers}) == 1, f"{what} has equal digests", report)


def output_shows(report, output):
    """What the report has, for people."""
    strategy = report["strategy"]
    for worker in report["workers"]:
        rank, language = worker["rank"], worker["language"]
        last = rf"^rank {rank} {language} +cpu +epoch +{EPOCHS}/{EPOCHS} +loss 0\.\d+ +test accuracy +[\d.]+ % +\d+ samples/s$"
        expect(len(re.findall(last, output, re.MULTILINE)) == 1, f"{strategy}: the last epoch of rank {rank} is shown", output)
        row = rf"^ +{rank} +{language} +{worker['accuracy']:.2f} % +{worker['digest']}$"
        expect(len(re.findall(row, output, re.MULTILINE)) == 1, f"{strategy}: the table has rank {rank}", output)
    expect("rank  language  test accuracy  digest of the parameters\n" in output, f"{strategy}: the table has its head", output)
    expect(re.search(r"^All workers hold the same bits after [\d.]+ s$", output, re.MULTILINE), f"{strategy}: the end", output)
    expect("\033" not in output, f"{strategy}: nothing is redrawn where there is no terminal", output)


def curves_are_drawn(plot, epochs, what):
    """A panel is a label and a curve after it. Losses fall and accuracies rise; in an SVG, y grows downwards."""
    text = plot.read_text()
    try:
        root = xml.etree.ElementTree.fromstring(text)
    except xml.etree.ElementTree.ParseError as wrong:
        expect(False, f"{what}: the plot is XML: {wrong}", text)
        return
    expect(root.tag == f"{SVG}svg", f"{what}: the plot is an SVG", text)
    width, height = (float(length) for length in root.get("viewBox", "0 0 0 0").split()[2:])
    curves, label = {}, ""
    for element in root.iter():
        if element.get("class") == "label":
            label = element.text
        if element.tag == f"{SVG}polyline":
            curves[label] = [[float(number) for number in point.split(",")] for point in element.get("points").split()]
    for word, falls in (("loss", True), ("accuracy", False)):
        points = [curve for label, curve in curves.items() if word in label]
        expect(len(points) == 1 and len(points[0]) == epochs, f"{what}: the plot has the {word} of each epoch", text)
        if not points or len(points[0]) < 2:
            continue
        expect(all(0 <= x <= width and 0 <= y <= height for x, y in points[0]), f"{what}: the {word} is within the plot", text)
        expect((points[0][-1][1] > points[0][0][1]) == falls, f"{what}: the {word} {'falls' if falls else 'rises'}", text)


def on_terminal(*command):
    """A program's exit status, and all that it sends to its terminal."""
    ours, its = pty.openpty()
    program = subprocess.Popen(command, stdin=its, stdout=its, stderr=its)
    os.close(its)
    output = b""
    try:
        while read := os.read(ours, 65536):
            output += read
    except OSError:  # nobody has the terminal any more
        pass
    os.close(ours)
    return program.wait(), output.decode()


def screen(output, columns=80):
    """The lines that are seen in the end on a terminal with rows enough. It wraps lines, unless it is told not to."""
    lines, row, wraps = [""], 0, True
    for part in re.findall(r"\033\[\??\d*[A-Za-z]|\r\n|[^\033\r]+|.", output):
        if part == "\r\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part.endswith("A") and part.startswith("\033["):
            row -= int(part[2:-1])
        elif part == "\033[2K":
            lines[row] = ""
        elif part == "\033[J":
            lines[row:] = [""]
        elif part in ("\033[?7l", "\033[?7h"):
            wraps = part.endswith("h")
        else:
            lines[row] = part[:columns] + lines[row][len(part):]
            for begin in range(columns, len(part), columns) if wraps else ():
                row += 1
                lines += [""] * (row == len(lines))
                lines[row] = part[begin:begin + columns] + lines[row][len(part) - begin:]
    return lines


def each_is_drawn_once(lines, workers, epochs):
    seen = [line.split("  loss")[0] for line in lines if line.startswith("rank ") and "epoch" in line]
    expect(seen == [f"rank {rank} c       cpu  epoch   {epochs}/{epochs}" for rank in range(workers)],
           "a terminal shows each worker's last epoch, and nothing that was drawn before", "\n".join(lines))


def is_redrawn(jobs):
    status, output = on_terminal(*jobs.command, "--plot", jobs.plot, "--languages", "c", "--epochs", "3")
    expect(status == 0, "a job on a terminal ends well", output)
    expect(output.count("\033[4A") > 3, "a terminal's cursor goes up, to draw the lines of four workers again", output)
    each_is_drawn_once(screen(output), 4, 3)


def seed_decides(jobs, languages):
    digests = []
    for seed in ("4", "4", "5"):
        _, report = jobs.run("--languages", ",".join(languages), "--epochs", "2", "--seed", seed)
        digests.append(report["workers"][0]["digest"] if report else None)
    expect(digests[0] == digests[1] and digests[0], f"the same seed gives the same bits twice: {digests}")
    expect(digests[0] != digests[2], f"another seed gives others: {digests}")


def failures_are_told(options, work):
    """With stand-ins for trainers, which are two workers."""
    build = work / "stand-ins"
    link(build, {"bin/dsgd": options.build / "bin/dsgd"})
    command = [options.build / "bin/digits_job", "--build", build, "--source", options.source, "--languages", "c",
               "--workers", "2", "--epochs", "2"]
    ends = EPOCH % 1 + EPOCH % 2 + DONE
    good = ends % "0123456789abcdef"

    def job(lines, status, message, *words, start=run):
        trainer = build / "bin/digits_c"
        trainer.write_text("#!/bin/sh\n" + lines)
        trainer.chmod(0o755)
        ended, output = start(*command, *words)
        expect(ended == status and message in output, f"'{message}', status {status}", f"status {ended}\n{output}")
        return output

    job(good, 0, "All workers hold the same bits")  # without which what follows would fail for another reason
    expect((build / "digits.svg").exists(), "without --plot, the plot is in the build folder")

    report = work / "unequal.json"
    output = job(ends % "${DSGD_RANK}123456789abcdef", 1, "The workers' bits DIFFER", "--report", report)
    expect("hold the same bits" not in output, "unequal bits are not called the same", output)
    digests = [worker["digest"] for worker in json.loads(report.read_text())["workers"]] if report.exists() else []
    expect(digests == ["0123456789abcdef", "1123456789abcdef"], f"the report has unequal digests, too: {digests}")
    job(EPOCH % 1, 1, "The workers' bits DIFFER")  # they are not known
    job(f"[ $DSGD_RANK = 0 ] || exit 0\n{good}", 1, "The workers' bits DIFFER")

    for rank in (0, 1):
        output = job(f"[ $DSGD_RANK = {rank} ] && {{ echo 'out of images' >&2; exit 3; }}\n{good}", 3, f"[{rank}] out of images")
        expect("the job failed with status 3" in output and "same bits" not in output, "a failed worker fails the job", output)

    for option in ("--report", "--plot"):
        for file in (work / "missing/file", "/dev/full"):  # one cannot be opened, the other not written
            job(good, 1, f"cannot write {file}", option, file)

    output = job(f"{EPOCH % 1}echo out of tea\n{EPOCH % 2}{DONE % 'a'}", 0, "All workers hold the same bits", start=on_terminal)
    lines = screen(output)
    expect(all(f"[{rank}] out of tea" in lines for rank in (0, 1)), "what a worker says stays on the terminal", "\n".join(lines))
    each_is_drawn_once(lines, 2, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("languages", nargs="+", choices=ALL)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        jobs = Jobs(options.build / "bin/digits_job", options.source, options.build, work)
        jobs.command += ["--python", options.python]
        trains(jobs, options.languages)
        is_redrawn(jobs)
        seed_decides(jobs, options.languages)
        failures_are_told(options, work)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
