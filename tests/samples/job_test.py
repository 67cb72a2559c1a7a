#!/usr/bin/env python3
"""Jobs of samples/job on the CPU: what they print, draw and write, and that they fail where they must.

--chaos runs with workers in all languages and allreduce, and with ps. With ps all workers are in C, or in all languages if the
environment variable TEST_ALL_CASES is set.

job_test.py --source DIR --build DIR --python PROGRAM LANGUAGE...      languages that are built, of c, java, go and python, in
                                                                       this order; a Python that has NumPy
"""

import argparse
import fcntl
import json
import math
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import xml.etree.ElementTree

from checks import Jobs, expect, failed, link, run

ALL = ["c", "java", "go", "python"]
EPOCHS, FEW_EPOCHS = 40, 12  # by default, as help.txt says; enough to learn much
SVG = "{http://www.w3.org/2000/svg}"

# The work of stand-ins for the C trainer. `dsgd run` starts them with their rank in the environment.
EPOCH = """echo '{"epoch": %d, "loss": 0.25, "accuracy": 98.5, "samples_per_second": 100.0}'\n"""
DONE = """echo '{"done": true, "rank": '$DSGD_RANK', "language": "c", "accuracy": 98.5, "digest": "'%s'"}'\n"""


def write_trainer(trainer, lines):
    trainer.write_text("#!/bin/sh\n" + lines)
    trainer.chmod(0o755)


def trains(jobs, languages):
    """With each strategy, the default one by default."""
    all_languages = [] if languages == ALL else ["--languages", ",".join(languages)]
    all_cases = os.environ.get("TEST_ALL_CASES")
    epochs, enough = (EPOCHS, 97) if all_cases else (FEW_EPOCHS, 95)
    number = [] if all_cases else ["--epochs", str(epochs)]
    for strategy, workers, words in (("allreduce", 4, []), ("ps", 4, ["--strategy", "ps"]),
                                     ("simple", 2, ["--strategy", "simple", "--workers", "2"])):
        output, report = jobs.run(*words, *number, *all_languages)
        if not report:
            continue
        in_turn = [languages[rank % len(languages)] for rank in range(workers)]
        report_is_complete(report, strategy, in_turn, enough)
        output_shows(report, output, epochs)
        curves_are_drawn(jobs.plot, epochs, strategy)
    output, report = jobs.run("--languages", "c", "--workers", "1")
    if report:
        expect(f" epoch  {EPOCHS}/{EPOCHS} " in output, f"{EPOCHS} epochs by default", output)
        expect(report["workers"][0]["accuracy"] >= 97, "one worker learns", output)


def report_is_complete(report, strategy, languages, enough):
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
    expect(all(enough <= worker["accuracy"] <= 100 for worker in workers), f"{what} has accuracies in per cent, of {enough} on", report)
    expect(all(re.fullmatch("[0-9a-f]{16}", worker["digest"]) for worker in workers), f"{what} has digests", report)
    expect(len({worker["digest"] for worker in workers}) == 1, f"{what} has equal digests", report)


def output_shows(report, output, epochs):
    """What the report has, for people."""
    strategy = report["strategy"]
    for worker in report["workers"]:
        rank, language = worker["rank"], worker["language"]
        last = rf"^rank {rank} {language} +cpu +epoch +{epochs}/{epochs} +loss 0\.\d+ +test accuracy +[\d.]+ % +\d+ samples/s$"
        expect(len(re.findall(last, output, re.MULTILINE)) == 1, f"{strategy}: the last epoch of rank {rank} is shown", output)
        row = rf"^ +{rank} +{language} +{worker['accuracy']:.2f} % +{worker['digest']}$"
        expect(len(re.findall(row, output, re.MULTILINE)) == 1, f"{strategy}: the table has rank {rank}", output)
    expect("rank language accuracy digest of values\n" in output, f"{strategy}: the table has its head", output)
    expect(re.search(r"^All workers hold the same bits after [\d.]+ s$", output, re.MULTILINE), f"{strategy}: the end", output)
    expect("\033" not in output, f"{strategy}: nothing is redrawn where there is no terminal", output)


def outlives_kills(jobs, languages):
    """--chaos: each worker is killed once, and another one joins in its place."""
    in_c = ["--languages", "c", "--epochs", "20"]
    in_all = ["--languages", ",".join(languages)]
    for strategy, words in (("allreduce", in_all), ("ps", in_all if os.environ.get("TEST_ALL_CASES") else in_c)):
        output, report = jobs.run("--chaos", "--strategy", strategy, *words)
        if not report:
            continue
        case = f"--chaos, {strategy}"
        for what in ("killed: worker ", "joined in place of a killed one: worker ", "; it is started again"):
            expect(output.count(what) == len(report["workers"]), f"{case}: '{what}' once for each worker", output)
        expect(len({worker["digest"] for worker in report["workers"]}) == 1, f"{case}: equal digests", output)
        expect(all(worker["accuracy"] >= 97 for worker in report["workers"]), f"{case}: accuracies of 97 % on", output)
        drawn = [element.get("class") for element in xml.etree.ElementTree.fromstring(jobs.plot.read_text()).iter()]
        drawn = [drawn.count(event) for event in ("killed", "joined")]
        expect(drawn == [2 * len(report["workers"])] * 2, f"{case}: both panels of the plot have all kills and joins", str(drawn))


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


def on_terminal(*command, columns=200, rows=100, term="xterm", interrupt_after=()):
    """A program's exit status, and all that it sends to its terminal. Types Ctrl-C once the output contains all texts of interrupt_after."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    program = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env=dict(os.environ, TERM=term))
    os.close(its)
    output = b""
    try:
        while read := os.read(ours, 65536):
            output += read
            if interrupt_after and all(text in output.decode(errors="replace") for text in interrupt_after):
                os.write(ours, b"\003")
                interrupt_after = ()
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


def fits(build, source, work):
    """Lines on terminals of several widths and heights, with stand-ins for the trainers."""
    trainer = build / "bin/digits_c"
    go = work / "go"
    command = [build / "bin/digits_job", "--build", build, "--source", source, "--languages", "c", "--epochs", "2"]
    whole = r"rank 1 c       cpu  epoch   2/2  loss 0\.2500  test accuracy  98\.50 %       100 samples/s"
    write_trainer(trainer, EPOCH % 1 + EPOCH % 2 + DONE % "a")
    for columns, last in ((200, whole), (80, whole[:whole.index("       100")]),
                          (40, r"rank 1 c       epoch   2/2  98\.50 %")):
        status, output = on_terminal(*command, "--workers", "2", columns=columns)
        expect(status == 0, f"a job on {columns} columns ends well", output)
        lines = screen(output, columns)
        expect(any(re.fullmatch(last, line) for line in lines), f"a worker's line on {columns} columns", "\n".join(lines))
        workers = [line for line in re.split(r"\r\n|\033\[\??\d*[A-Za-z]", output) if line.startswith("rank ") and "epoch" in line]
        expect(all(len(line) <= columns for line in workers), f"lines fit {columns} columns", "\n".join(workers))

    status, output = on_terminal(*command, "--workers", "9", rows=6, columns=80)
    lines = screen(output)
    expect(status == 0 and sum(line.startswith("rank ") and "epoch" in line for line in lines) == 4, "four workers on six rows",
           "\n".join(lines))
    expect(any(line == "and 5 more: epoch 2/2" for line in lines), "the last row sums up the others", "\n".join(lines))

    # Before the first report: the trainers wait for a line that this test writes when it has seen the dashes.
    os.mkfifo(go)
    write_trainer(trainer, f"read line <{go}\n" + EPOCH % 2 + DONE % "a")
    seen = "rank 0 c       cpu  epoch   \u2013/2  loss      \u2013  test accuracy      \u2013 %"
    writer = subprocess.Popen(["sh", "-c", f"echo >{go}"], stdin=subprocess.DEVNULL)
    status, output = on_terminal(*command, "--workers", "1", columns=80)
    writer.wait()
    expect(status == 0 and seen in output, "dashes before the first report", output)

    write_trainer(trainer, EPOCH % 2 + DONE % "a")
    status, output = on_terminal(*command, "--workers", "1", term="dumb")
    expect("\033" not in output, "TERM=dumb: nothing is redrawn", output)

    # Ctrl-C.
    plot = build / "digits.svg"
    plot.unlink(missing_ok=True)
    write_trainer(trainer, EPOCH % 1 + "trap 'echo Traceback; exit 1' INT\nsleep 100 &\nwait\n")
    status, output = on_terminal(*command, "--workers", "2",
                                 interrupt_after=[f"rank {rank} c       cpu  epoch   1/2" for rank in range(2)])
    # The terminal writes ^C where the cursor stands, which may be in front of any row.
    lines = [line.removeprefix("^C") for line in screen(output, 200)]
    last = [line for line in lines if line and not line.startswith("rank ")]
    expect(status == 130 and last == [f"Interrupted after epoch 1; plot: {plot}"], "Ctrl-C ends with one line", f"{status}\n{output}")
    expect("Traceback" not in output, "after Ctrl-C workers are not quoted", output)
    expect(plot.exists(), "Ctrl-C leaves a plot", output)


def is_quoted_at_once(build, source, work):
    """A worker waits until the job has shown what it said."""
    shown = work / "shown"
    os.mkfifo(shown)
    write_trainer(build / "bin/digits_c", f"echo out of tea\nread line <{shown}\n" + EPOCH % 2 + DONE % "a")
    program = subprocess.Popen([build / "bin/digits_job", "--build", build, "--source", source, "--languages", "c",
                                "--workers", "1", "--epochs", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = ""
    for line in program.stdout:
        output += line
        if line == "[0] out of tea\n":
            shown.write_text("\n")
    expect(program.wait() == 0, "what a worker says is shown while it runs", output)


def a_killed_trainer_is_told_once(options, work):
    """Real trainers. Those that survive say that it was lost, often before the launcher reports it."""
    build, trainer, pid = work / "killed", options.build.absolute() / "bin/digits_c", work / "pid"
    link(build, {f"bin/{program}": options.build / "bin" / program for program in ("dsgd", "digits_job")})
    os.mkfifo(pid)
    write_trainer(build / "bin/digits_c", f'[ $DSGD_RANK != 2 ] || echo $$ >{pid}\nexec {trainer} "$@"\n')
    for _ in range(3):
        program = subprocess.Popen([build / "bin/digits_job", "--build", build, "--source", options.source, "--languages", "c",
                                    "--epochs", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        victim = int(pid.read_text())
        output = ""
        for line in program.stdout:
            output += line
            if line.startswith("rank 2 ") and victim:
                os.kill(victim, signal.SIGKILL)
                victim = 0
        told = [line for line in output.splitlines() if not re.match(r"rank \d c .* epoch ", line)]
        expect(program.wait() == 137 and told == ["samples/run: the job failed with status 137: worker 2 failed first: "
                                                  f"{build}/bin/digits_c was killed by signal 9"],
               "a killed trainer is told once", output)


def workers_end_with_it(build, source, work):
    """Nothing is left when the program is killed, or when nobody reads its output any more."""
    command = [build / "bin/digits_job", "--build", build, "--source", source, "--languages", "c", "--workers", "2", "--epochs", "2"]
    alive = work / "alive"
    os.mkfifo(alive)
    write_trainer(build / "bin/digits_c", f"exec 9>{alive}\necho ready >&9\n" + "while :; do\n" + EPOCH % 1 + "sleep 0.1\ndone\n")
    for what in ("it is killed", "its output is closed"):
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with open(alive, "rb") as pipe:
            for _ in range(2):
                pipe.readline()
            if what == "it is killed":
                program.send_signal(signal.SIGKILL)
            program.stdout.close()
            pipe.read()  # ends when the last worker is gone
        expect(program.wait() != 0, f"when {what}, its workers end")


def progress_is_shown(source, work):
    script = f"set -o pipefail; (echo start; echo '[1/147] a  b'; exit 3) 2>&1 | {source}/.ci/progress {work}/log"
    for term, shown in (("xterm", "[1/147]"), ("dumb", "")):
        status, output = on_terminal("bash", "-c", script, term=term)
        expect(status == 3 and output.strip() == shown, f"progress with TERM={term}", f"{status}: {output}")
        expect((work / "log").read_text() == "start\n[1/147] a  b\n", "the log is whole")
    status, output = run("bash", "-c", script)
    expect(status == 3 and not output, "no progress without a terminal", output)


def seed_decides(jobs, languages):
    digests = []
    for seed, chosen in (("4", languages), ("4", languages), ("4", languages[:1]), ("5", languages[:1])):
        _, report = jobs.run("--languages", ",".join(chosen), "--epochs", "2", "--seed", seed)
        digests.append(report["workers"][0]["digest"] if report else None)
    expect(digests[0] == digests[1] and digests[0], f"the same seed gives the same bits twice: {digests}")
    expect(digests[2] != digests[3], f"another seed gives others: {digests}")


def failures_are_told(options, work):
    """With stand-ins for trainers, which are two workers."""
    build = work / "stand-ins"
    link(build, {f"bin/{program}": options.build / "bin" / program for program in ("dsgd", "digits_job")})
    command = [options.build / "bin/digits_job", "--build", build, "--source", options.source, "--languages", "c",
               "--workers", "2", "--epochs", "2"]
    ends = EPOCH % 1 + EPOCH % 2 + DONE
    good = ends % "0123456789abcdef"

    def job(lines, status, message, *words, start=run):
        write_trainer(build / "bin/digits_c", lines)
        ended, output = start(*command, *words)
        expect(ended == status and message in output, f"'{message}', status {status}", f"status {ended}\n{output}")
        return output

    job(good, 0, "All workers hold the same bits")  # without which what follows would fail for another reason
    expect((build / "digits.svg").exists(), "without --plot, the plot is in the build folder")

    status, output = run(*["1" if before == "--workers" else word for before, word in zip([None, *command], command)])
    expect(status == 0 and re.search(r"^Trained after [\d.]+ s$", output, re.MULTILINE), "one worker is compared with none", output)
    expect(", 1 worker, " in (build / "digits.svg").read_text(), "the plot of one worker says so")

    report = work / "unequal.json"
    output = job(ends % "${DSGD_RANK}123456789abcdef", 1, "The workers' bits DIFFER", "--report", report)
    expect("hold the same bits" not in output, "unequal bits are not called the same", output)
    digests = [worker["digest"] for worker in json.loads(report.read_text())["workers"]] if report.exists() else []
    expect(digests == ["0123456789abcdef", "1123456789abcdef"], f"the report has unequal digests, too: {digests}")
    job(EPOCH % 1, 1, "The workers' bits DIFFER")  # they are not known
    job(f"[ $DSGD_RANK = 0 ] || exit 0\n{good}", 1, "The workers' bits DIFFER")

    for rank in (0, 1):
        output = job(f"[ $DSGD_RANK = {rank} ] && {{ echo 'out of images' >&2; exit 3; }}\n{good}", 3, f"[{rank}] out of images")
        expect(sum("failed" in line for line in output.splitlines()) == 1 and f"the job failed with status 3: worker {rank} failed first" in output,
               "a failed worker is reported once", output)
        expect("the job failed with status 3" in output and "same bits" not in output, "a failed worker fails the job", output)

    # Rank 0 fails when rank 1 has said that it misses it.
    heard = work / "heard"
    os.mkfifo(heard)
    output = job(f"[ $DSGD_RANK = 1 ] || {{ read line <{heard}; echo 'out of images' >&2; exit 3; }}\n"
                 f"echo 'rank 0 was lost'; echo >{heard}\nexec sleep 100\n", 3, "worker 0 failed first")
    expect([line for line in output.splitlines() if line.startswith("[")] == ["[0] out of images"],
           "of a failure, only the worker that failed is quoted", output)

    for option in ("--report", "--plot"):
        for file in (work / "missing/file", "/dev/full"):  # one cannot be opened, the other not written
            job(good, 1, f"cannot write {file}", option, file)

    output = job(f"{EPOCH % 1}echo out of tea\n{EPOCH % 2}{DONE % 'a'}", 0, "All workers hold the same bits", start=on_terminal)
    lines = screen(output)
    expect(all(f"[{rank}] out of tea" in lines for rank in (0, 1)), "what a worker says stays on the terminal", "\n".join(lines))
    each_is_drawn_once(lines, 2, 2)
    is_quoted_at_once(build, options.source, work)
    fits(build, options.source, work)
    workers_end_with_it(build, options.source, work)
    progress_is_shown(options.source, work)


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
        outlives_kills(jobs, options.languages)
        is_redrawn(jobs)
        seed_decides(jobs, options.languages)
        failures_are_told(options, work)
        if "c" in options.languages:
            a_killed_trainer_is_told_once(options, work)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
