#!/usr/bin/env python3
"""The experiment of SOCK with its three caches: 100 handlers that import one large package.

    scripts/bench-handlers.py SANDBOX [REQUESTS]

SANDBOX is the program. Needs root, Debian's python3 with pip, and an index of packages that pip finds. Each side takes
its turn; between two requests there is a pause. "without" is an interpreter of its own for each request in the same sandbox.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../clients"))
from sandbox_client import Daemon, Refused

PACKAGE = "django==4.2.16"
MODULES = ["django", "django.http", "django.template", "django.db.models", "django.forms", "django.views.generic"]
IMPORT = f"import {', '.join(MODULES)}\n"


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500
    index = subprocess.run(["pip", "config", "get", "global.index-url"], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        run = os.path.join(directory, "run")
        serve = subprocess.Popen([program, "--run-dir", run, "serve", "--cgroup", "bench-handlers",
                                  "--packages", os.path.join(directory, "packages")], stderr=subprocess.DEVNULL)
        try:
            measure(Daemon(run), program, run, directory, index, count)
        finally:
            serve.terminate()
            serve.wait()


def measure(daemon, program, run, directory, index, count):
    while not os.path.exists(daemon.socket):
        time.sleep(0.01)
    daemon.ask("POST", "/v1/bases", {"name": "host", "root": "/", "hide": ["work"]})
    began = time.monotonic()
    command = [program, "--run-dir", run, "package", "add", "--base", "host", PACKAGE]
    subprocess.run(command + (["--index", index] if index else []), check=True)
    print(f"installed in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"again, as it was resolved: {1000 * (time.monotonic() - began):.1f} ms")
    for number in range(100):
        code = os.path.join(directory, f"code{number}")
        os.mkdir(code)
        os.chmod(code, 0o755)
        with open(os.path.join(code, "handler.py"), "w") as file:
            file.write(IMPORT + f"\ndef handle(event): return [{number}, event]\n")
        daemon.ask("POST", "/v1/handlers", {
            "name": f"h{number}", "base": "host", "interpreter": "/usr/bin/python3", "code": code,
            "requires": [PACKAGE], "instances_max": 2, "queue_max": 4, "timeout_ms": 30000})
    # A request without any cache: what a handler does, in a sandbox with an interpreter of its own. One with the
    # machine's network gets no Zygote.
    fresh = {"request": {"base": "host", "command": ["-c", IMPORT], "python": {"interpreter": "/usr/bin/python3"},
                         "network": "host"}, "requires": [PACKAGE], "wait_ms": 60000}
    sides = {"without Zygotes": [], "all caches": []}
    for turn in range(count):
        if turn % 5 == 0:
            began = time.monotonic()
            made = daemon.ask("POST", "/v1/sandboxes", fresh)
            sides["without Zygotes"].append(time.monotonic() - began)
            assert made["sandbox"]["phase"]["ended"]["status"] == {"code": 0}, made
        number = random.randrange(100)
        began = time.monotonic()
        answer = daemon.ask("POST", f"/v1/handlers/h{number}/call", turn)
        sides["all caches"].append(time.monotonic() - began)
        assert answer == [number, turn], answer
        time.sleep(0.1)
    for side, times in sides.items():
        times.sort()
        p99 = times[int(len(times) * 0.99) - 1]
        print(f"{side}: p50 {1000 * statistics.median(times):.2f} ms, p99 {1000 * p99:.2f} ms, {len(times)} samples")
    stats = daemon.ask("GET", "/v1/stats")
    handlers = stats["handlers"]
    mean = lambda kind, of: handlers[kind] / max(1, handlers[of]) / 1000
    print(f"hit: {handlers['hits']}, mean {mean('hit_micros', 'hits'):.2f} ms; "
          f"start from a Zygote: {handlers['starts']}, mean {mean('start_micros', 'starts'):.2f} ms")
    print(f"zygotes: {stats['zygotes']}; kept: {handlers['kept_bytes'] >> 20} MiB; load {open('/proc/loadavg').read().split()[0]}")
    for number in range(100):
        try:
            daemon.ask("DELETE", f"/v1/handlers/h{number}")
        except Refused:
            pass


main()
