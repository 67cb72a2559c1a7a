#!/usr/bin/env python3
"""Jobs of samples/job with the C trainer on GPUs of the fake runtime, beside trainers on the CPU.

device_test.py --source DIR --build DIR --fake DIR [LANGUAGE...]      languages beside C that are built, of java and go
"""

import argparse
import itertools
import pathlib
import re
import sys
import tempfile

from checks import Jobs, expect, failed, link, run


def trainers(options, work):
    """A build folder, as samples/job sees it, whose digits_cuda has the fake runtime."""
    links = {"bin/digits_cuda": options.fake / "bin/digits_cuda", "java": options.build / "java",
             "lib/libdsgd_jni.so": options.build / "lib/libdsgd_jni.so"}
    for program in ("dsgd", "digits_c", "digits_go"):
        links[f"bin/{program}"] = options.build / "bin" / program
    link(work, links)
    return work


def trains_beside_the_cpu(jobs, languages):
    """All hold the same bits, which the job itself checks."""
    all_languages = ["c", *languages]
    for strategy, devices in (("allreduce", "cuda:0,cuda:1"), ("ps", "cuda:0"), ("simple", "cuda:1,cuda:1")):
        output, report = jobs.run("--languages", ",".join(all_languages), "--workers", str(len(all_languages)), "--device", devices,
                                  "--strategy", strategy, "--epochs", "20", "--seed", "4")
        if not report:
            continue
        for worker in report["workers"]:
            language, device = worker["language"], worker["device"]
            expect(device == (devices if language == "c" else "cpu"), f"the report has {language} on {device}", output)
            expect(f"rank {worker['rank']} {language:<6}  {device:<{len(devices)}}  epoch  20/20" in output,
                   f"the output shows {language} on {device}", output)
            expect(worker["accuracy"] >= 97, f"{language} has {worker['accuracy']} %", output)


def streams_are_followed(jobs):
    """The bits are the same, however slow the work in streams is, and on which GPUs."""
    digests = set()
    for device, delays in (("cuda:0,cuda:1", "0,0"), ("cuda:0,cuda:1", "1000,0"), ("cuda:0,cuda:1", "0,100"), ("cuda:1,cuda:1", "0,50")):
        _, report = jobs.run("--languages", "c", "--workers", "1", "--device", device, "--epochs", "1", FAKE_CUDA_DELAYS=delays)
        digests.add(report["workers"][0]["digest"] if report else None)
    expect(len(digests) == 1, f"delays change nothing: {digests}")


def replicas_share_the_batch(jobs):
    """The loss is that of one replica with the whole batch, but for rounding, also where the shares are not equal."""
    losses = []
    for device in ("cpu", "cuda:0,cuda:0,cuda:1"):
        output, _ = jobs.run("--languages", "c", "--workers", "1", "--device", device, "--epochs", "2", "--batch", "4",
                             "--optimizer-options", "lr=0.01")  # small: with large steps rounding would grow
        losses += [float(loss) for loss in re.findall(r"epoch +2/2  loss (\S+)", output)]
    expect(len(losses) == 2 and abs(losses[0] - losses[1]) <= 0.0001, f"losses are equal: {losses}")


def devices_come_from_the_configuration(options):
    """A GPU for each worker, where the trainers name none; and what to do if it is none."""
    def job(status, *words):
        command = ["--", options.fake / "bin/digits_cuda", "--data", options.source / "samples/data/digits.csv", "--epochs", "1"]
        ended, output = run(options.build / "bin/dsgd", "run", *words, *command)
        expect(ended == status, f"dsgd run {' '.join(words)} ends with {ended}", output)
        return output

    for rank, devices in itertools.product((0, 1), ("cuda:0,cuda:1", "auto")):
        output = job(0, "-n", "2", "--set", f"devices={devices}", "--set", "devices_per_worker=1")
        expect(re.search(rf'^\[{rank}\] .*"rank": {rank}, .*"device": "cuda:{rank}"', output, re.MULTILINE), f"rank {rank} has cuda:{rank}", output)
    output = job(2, "-n", "1", "--set", "devices=cpu")
    expect("`devices` gives this worker cpu, and a GPU is needed" in output, "a worker without a GPU says so", output)
    ended, output = run(options.build / "bin/digits_c", "--data", options.source / "samples/data/digits.csv", "--epochs", "1",
                        DSGD_DEVICES="cuda:0,cuda:1")
    expect(ended == 0 and "digits: devices = 'cuda:0,cuda:1' is unused" in output, "devices for nobody are a warning", output)


def gpu_jobs_are_checked(options):
    """tests/gpu/job.py, which checks jobs on real GPUs."""
    dsgd, data = options.build / "bin/dsgd", options.source / "samples/data/digits.csv"
    on_gpu, on_cpu = options.fake / "bin/digits_cuda", options.build / "bin/digits_c"

    def job(workers, status, message, *words):
        ended, output = run(sys.executable, options.source / "tests/gpu/job.py", str(workers), dsgd, "run", *words)
        expect(ended == status and message in output, f"{message or 'all is well'}: status {ended}", output)

    def mixed(epochs):
        return ["-n", "1", "--", on_gpu, "--data", data, "--epochs", epochs, ":", "-n", "1", "--", on_cpu, "--data", data, "--epochs",
                epochs]

    job(2, 0, "", *mixed("20"))
    job(3, 1, "2 of 3 workers", *mixed("20"))
    job(2, 1, "less than 97 %", *mixed("1"))
    job(2, 1, "the workers' bits differ", "-n", "1", "--", "echo", '{"done": true, "digest": "a", "accuracy": 99}', ":", "-n", "1",
        "--", "echo", '{"done": true, "digest": "b", "accuracy": 99}')
    job(1, 1, "ended with status", "-n", "1", "--", on_gpu, "--data", data, "--device", "cuda:9")
    job(1, 1, "other bits", "-n", "1", "--", "sh", "-c", """echo '{"done": true, "accuracy": 99, "digest": "'$$'"}'""")


def says_what_is_wrong(options):
    """The program that users have, without the fake runtime."""
    for device, status, message in (("cuda:0", 1, "no NVIDIA driver on this machine"), ("cpu", 2, "a GPU is needed; give --device cuda:0"),
                                    ("cuda:0,", 1, "is not a list of devices"), ("cuda:x", 1, "'cuda:x'")):
        ended, output = run(options.build / "bin/digits_cuda", "--data", options.source / "samples/data/digits.csv", "--epochs", "1",
                            "--device", device)
        there = device == "cuda:0" and ended == 0 and '"done": true' in output  # on a machine with a GPU
        expect(there or (ended == status and message in output), f"--device {device}: {output.strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "build", "fake"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("languages", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        jobs = Jobs(options.build / "bin/digits_job", options.source, trainers(options, work / "build"), work)
        trains_beside_the_cpu(jobs, options.languages or ["c"])
        streams_are_followed(jobs)
        replicas_share_the_batch(jobs)
    devices_come_from_the_configuration(options)
    gpu_jobs_are_checked(options)
    says_what_is_wrong(options)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
