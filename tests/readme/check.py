#!/usr/bin/env python3
"""Takes the programs out of README.md, capi/elastic.md and dsgd.h, and runs each: those of README.md and dsgd.h with README.md's
commands, alone and as two workers.

check.py --source DIR --build DIR --work DIR LANGUAGE...
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys


FILES = {"c": "line.c", "header": "line.c", "python": "line.py", "java": "Line.java", "go": "main.go"}
FIRST_WORDS = {"c": "cc ", "header": "cc ", "python": "PYTHONPATH=", "java": "javac ", "go": "go "}


def commands_of(readme, language):
    """The line of README.md that compiles and runs a program: the commands before the last one, and the last one."""
    block = re.search(r"^```sh\nCLONE=.*\n((?:.*\n)*?)```$", readme, re.MULTILINE)
    lines = [line for line in block[1].splitlines() if line.startswith(FIRST_WORDS[language])] if block else []
    if len(lines) != 1:
        sys.exit(f"README.md has {len(lines)} lines of commands for '{language}', not one")
    *steps, last = re.sub(r"\s+# .*", "", lines[0]).split(" && ")
    return steps, last


def installed(options, work):
    """Installs the build into a prefix. Returns the environment that has it as the system would have /usr/local."""
    prefix, tools, clone = work / "prefix", work / "tools", work / "clone"
    subprocess.run(["cmake", "--install", options.build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    clone.mkdir()
    (clone / "build").symlink_to(options.build)
    (clone / "bindings").symlink_to(options.source / "bindings")
    tools.mkdir()
    for name, wanted in {"cc": options.cc, "go": options.go}.items():
        if program := shutil.which(wanted):
            strict = "-Wall -Wextra -Werror" if name == "cc" else ""
            (tools / name).write_text(f'#!/bin/sh\nexec "{program}" {strict} "$@"\n')
            (tools / name).chmod(0o755)
    path = [str(tools), str(prefix / "bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    library = next(prefix.glob("lib*/**/libdsgd.so")).parent
    return dict(os.environ, PATH=":".join(path), CLONE=str(clone), PREFIX=str(prefix), LD_LIBRARY_PATH=str(library),
                PKG_CONFIG_PATH=str(library / "pkgconfig"), JDK_JAVAC_OPTIONS="-Xlint:all -Werror",
                GOPROXY="off", GOTOOLCHAIN="local", GOFLAGS="-mod=mod", CGO_LDFLAGS=f"-Wl,-rpath,{library}")


def program_of(header):
    """The program in the first comment of dsgd.h: its lines begin with " *   "."""
    comment = header.read_text().split("*/")[0]
    body = re.search(r"^ \*   #include <dsgd/dsgd.h>\n(?: \*(?:   .*)?\n)*? \*   }\n", comment, re.MULTILINE)
    return re.sub(r"^ \*(   )?", "", body[0], flags=re.MULTILINE) if body else None


def tls_commands(readme):
    """The commands of README.md that make certificates and set the variables for them."""
    block = re.search(r"^```sh\n(openssl (?:.*\n)*?)```$", readme, re.MULTILINE)
    return block[1] if block else sys.exit("README.md has no commands that make certificates")


def elastic_program_is_right(options):
    """Three workers run elastic.py. The third one is killed after half a second, and another one joins in its place."""
    page = (options.source / "capi/elastic.md").read_text()
    program = re.search(r"^```python elastic.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if not program:
        sys.exit("capi/elastic.md has no program elastic.py")
    work = options.work / "elastic"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "elastic.py").write_text(program[1])
    environment = installed(options, work)
    environment["PYTHONPATH"] = str(options.build / "python")
    worker = f"""if [ $DSGD_RANK = 2 ] && mkdir first 2>/dev/null; then timeout -s KILL 0.5 {sys.executable} elastic.py; exit $?; fi
                 exec {sys.executable} elastic.py"""
    run = subprocess.run(["dsgd", "run", "-n", "3", "--restarts", "3", "--set", "min_workers=1", "--", "sh", "-c", worker],
                         cwd=work, env=environment, capture_output=True, text=True, timeout=120)
    good = run.returncode == 0 and run.stdout.count("y = 2.00 x + 1.00\n") >= 2
    print(f"elastic: {'ok' if good else 'FAILED'}")
    if not good:
        print(f"status {run.returncode}\n{run.stdout}{run.stderr}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--go", default="go")
    parser.add_argument("languages", nargs="+", choices=["header", "c", "python", "java", "go"])
    options = parser.parse_args()
    readme = (options.source / "README.md").read_text()
    programs = dict(re.findall(r"^```(c|python|java|go)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL))
    header = program_of(options.source / "capi/include/dsgd/dsgd.h")
    if header:
        programs["header"] = header
    failed = 0
    if "python" in options.languages:
        failed += not elastic_program_is_right(options)
    for language in options.languages:
        if language not in programs:
            sys.exit(f"there is no program for '{language}' in README.md or dsgd.h")
        work = options.work / language
        shutil.rmtree(work, ignore_errors=True)
        folder = work / "line"
        folder.mkdir(parents=True)
        (folder / FILES[language]).write_text(programs[language])
        environment = installed(options, work)
        steps, last = commands_of(readme, language)
        for step in steps:
            subprocess.run(step, shell=True, cwd=folder, env=environment, check=True)
        # With prefixes, for then `dsgd run` writes whole lines; without, two workers' lines may mix.
        variants = {"1 worker": (1, []), "2 workers": (2, ["dsgd", "run", "-n", "2", "--"])}
        if language == "c":
            run_all = "set -e\n" + tls_commands(readme) + 'exec dsgd run -n 2 -- "$@"'
            variants["2 workers with TLS"] = (2, ["sh", "-c", run_all, "sh"])
        for name, (workers, prefix) in variants.items():
            run = subprocess.run([*prefix, "sh", "-c", last], cwd=folder, env=environment, capture_output=True, text=True,
                                 timeout=120)
            good = run.returncode == 0 and run.stdout.count("y = 2.00 x + 1.00\n") == workers
            print(f"{language}, {name}: {'ok' if good else 'FAILED'}")
            if not good:
                failed += 1
                print(f"status {run.returncode}\n{run.stdout}{run.stderr}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
