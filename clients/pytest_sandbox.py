"""Runs each test of pytest in a sandbox of its own, forked from a Zygote that has pytest and the packages.

    sandbox package add --base debian pytest numpy
    pytest -p pytest_sandbox --sandbox-base debian --sandbox-require pytest --sandbox-require numpy

The directory of the tests is read-only in the sandbox, at /code; a test may write to /tmp. A test that ends its
process, leaks threads or changes a module does it for itself only.
"""

import pytest

from sandbox_client import Daemon, exit_code

RUN = """
import os, sys
sys.path.insert(0, "/code")
sys.dont_write_bytecode = True
import pytest
sys.exit(pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:pytest_sandbox", "--rootdir=/code", *sys.argv[1:]]))
"""


def pytest_addoption(parser):
    group = parser.getgroup("sandbox")
    group.addoption("--sandbox-base", help="the base of the sandboxes; without it tests run as always")
    group.addoption("--sandbox-require", action="append", default=[], help="what was added by `sandbox package add`")
    group.addoption("--sandbox-interpreter", default="/usr/bin/python3")
    group.addoption("--sandbox-timeout", type=float, default=60, help="seconds that a test may take")
    group.addoption("--sandbox-run-dir", default=None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    config = item.config
    if not config.getoption("--sandbox-base"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    code, said, seconds = run(config, item)
    call = pytest.CallInfo.from_call(lambda: None, when="call")
    report = pytest.TestReport.from_item_and_call(item, call)
    report.duration = seconds
    last = said.strip().splitlines()[-1:] or [""]
    if code == 0 and " skipped" in last[0] and " passed" not in last[0]:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], "Skipped: in its sandbox")
    elif code != 0:
        report.outcome = "failed"
        report.longrepr = said
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def run(config, item):
    """Runs a test in a sandbox. Returns its exit code, what it wrote, and how long it took."""
    import time

    daemon = Daemon(config.getoption("--sandbox-run-dir"))
    seconds = config.getoption("--sandbox-timeout")
    request = {
        "base": config.getoption("--sandbox-base"),
        "command": ["-c", RUN, item.nodeid],
        "python": {"interpreter": config.getoption("--sandbox-interpreter")},
        "code": str(config.rootpath),
        "timeout_ms": int(seconds * 1000),
    }
    began = time.monotonic()
    id = daemon.start(request, config.getoption("--sandbox-require"))
    while True:
        sandbox, output = daemon.wait(id, 60)
        code = exit_code(sandbox)
        if code is not None:
            break
    said = output["stdout"] + output["stderr"]
    if code == 124:
        said += f"\nthe test took longer than {seconds} s\n"
    return code, said, time.monotonic() - began
