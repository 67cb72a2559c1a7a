#!/usr/bin/env python3
"""Takes the programs out of README.md and dsgd.h, compiles them, and runs each alone and as two workers.

check.py --source DIR --build DIR --work DIR LANGUAGE...
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys


def compile_program(language, text, options, work):
    """Writes and compiles a program; returns the command that runs it."""
    build, source = options.build, options.source
    environment = dict(os.environ)
    if language in ("c", "header"):
        file = work / "line.c"
        file.write_text(text)
        # No -std: as a user would call the compiler.
        subprocess.run([options.cc, "-Wall", "-Wextra", "-Werror", file, "-o", work / "line", f"-I{source}/capi/include",
                        f"-L{build}/lib", f"-Wl,-rpath,{build}/lib", "-ldsgd"], check=True)
        return [work / "line"], environment
    if language == "python":
        file = work / "line.py"
        file.write_text(text)
        environment["PYTHONPATH"] = str(build / "python")
        return [sys.executable, file], environment
    if language == "java":
        (work / "Line.java").write_text(text)
        jar = build / "java" / "dsgd.jar"
        subprocess.run(["javac", "-Xlint:all", "-Werror", "-cp", jar, "-d", work, work / "Line.java"], check=True)
        return ["java", f"-Ddsgd.library.path={build}/lib", "-cp", f"{jar}:{work}", "Line"], environment
    module = work / "line"
    module.mkdir()
    (module / "main.go").write_text(text)
    (module / "go.mod").write_text("module line\n\ngo 1.21\n\nrequire dsgd.io/dsgd v1.0.0\n\n"
                                   f"replace dsgd.io/dsgd => {source}/bindings/go\n")
    environment.update(PKG_CONFIG_PATH=str(build / "bindings/go/pkgconfig"), GOPROXY="off", GOTOOLCHAIN="local",
                       GOFLAGS="-mod=mod", CGO_LDFLAGS=f"-Wl,-rpath,{build}/lib")
    subprocess.run([options.go, "build", "-o", work / "line_go", "."], cwd=module, env=environment, check=True)
    return [work / "line_go"], environment


def program_of(header):
    """The program in the first comment of dsgd.h: its lines begin with " *   "."""
    comment = header.read_text().split("*/")[0]
    body = re.search(r"^ \*   #include <dsgd/dsgd.h>\n(?: \*(?:   .*)?\n)*? \*   }\n", comment, re.MULTILINE)
    return re.sub(r"^ \*(   )?", "", body[0], flags=re.MULTILINE) if body else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--go", default="go")
    parser.add_argument("languages", nargs="+", choices=["header", "c", "python", "java", "go"])
    options = parser.parse_args()
    options.cc = shutil.which(options.cc) or options.cc  # a wrapper named cc comes first in PATH
    programs = dict(re.findall(r"^```(c|python|java|go)\n(.*?)^```$", (options.source / "README.md").read_text(),
                               re.MULTILINE | re.DOTALL))
    header = program_of(options.source / "capi/include/dsgd/dsgd.h")
    if header:
        programs["header"] = header
    failed = 0
    for language in options.languages:
        if language not in programs:
            sys.exit(f"there is no program for '{language}' in README.md or dsgd.h")
        work = options.work / language
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        command, environment = compile_program(language, programs[language], options, work)
        # With prefixes, for then `dsgd run` writes whole lines; without, two workers' lines may mix.
        for prefix in ([], [options.build / "bin" / "dsgd", "run", "-n", "2", "--"]):
            run = subprocess.run([*prefix, *command], env=environment, capture_output=True, text=True, timeout=120)
            workers = 2 if prefix else 1
            good = run.returncode == 0 and run.stdout.count("y = 2.00 x + 1.00\n") == workers
            print(f"{language}, {workers} worker(s): {'ok' if good else 'FAILED'}")
            if not good:
                failed += 1
                print(f"status {run.returncode}\n{run.stdout}{run.stderr}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
