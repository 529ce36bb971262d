"""A client of `sandbox serve`, for programs in Python: docs/sandboxes.md has the requests.

>>> daemon = Daemon()
>>> made = daemon.ask("POST", "/v1/sandboxes", {"request": {"base": "debian", "command": ["/usr/bin/id"]}, "wait_ms": 5000})
>>> made["output"]["stdout"]
"""

import http.client
import json
import os
import socket


class Refused(Exception):
    """The daemon did not do what it was asked."""

    def __init__(self, status, body):
        super().__init__(body.get("message", f"HTTP {status}"))
        self.status, self.code = status, body.get("code")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("sandbox", timeout=180)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Daemon:
    """The daemon of a directory."""

    def __init__(self, run_dir=None):
        run_dir = run_dir or os.environ.get("SANDBOX_RUN_DIR", "/run/sandbox")
        self.socket = os.path.join(run_dir, "api.sock")

    def ask(self, method, path, body=None):
        """Sends a request, and returns the body of the answer."""
        connection = _Connection(self.socket)
        try:
            text = b"" if body is None else json.dumps(body).encode()
            connection.request(method, path, text)
            answer = connection.getresponse()
            body = json.loads(answer.read() or b"null")
        finally:
            connection.close()
        if answer.status >= 300:
            raise Refused(answer.status, body or {})
        return body

    def start(self, request, requires=()):
        """Starts a sandbox, and returns its id."""
        made = self.ask("POST", "/v1/sandboxes", {"request": request, "requires": list(requires)})
        return made["sandbox"]["id"]

    def wait(self, id, seconds):
        """Waits for the end of a sandbox. Returns what is known of it, and its output."""
        seen = self.ask("GET", f"/v1/sandboxes/{id}?wait_ms={int(min(seconds, 60) * 1000)}")
        return seen["sandbox"], seen["output"]

    def kill(self, id):
        self.ask("DELETE", f"/v1/sandboxes/{id}")


def exit_code(sandbox):
    """What a shell would say of a sandbox that has ended; None if it has not."""
    phase = sandbox["phase"]
    if not isinstance(phase, dict):
        return None
    exit = phase["ended"]
    if exit["cause"] == "timeout":
        return 124
    status = exit["status"]
    if not isinstance(status, dict):
        return 125
    return status["code"] if "code" in status else 128 + status["signal"]
