"""Starts kernels of Jupyter in sandboxes: a kernel provisioner.

A kernel spec names it, and what it is to have:

    {"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Sandboxed",
     "language": "python", "metadata": {"kernel_provisioner": {"provisioner_name": "sandbox-provisioner",
     "config": {"base": "debian", "requires": ["ipykernel"], "memory_bytes": 1073741824}}}}

The kernel and Jupyter talk over the machine's loopback device, so the sandbox shares the machine's network, and starts with
an interpreter of its own. Who wants a kernel without the network starts both in one sandbox.
"""

import asyncio
import os
import shutil
import signal
import tempfile

from jupyter_client.provisioning import KernelProvisionerBase
from traitlets import Int, List, Unicode

from sandbox_client import Daemon, Refused, exit_code


class SandboxProvisioner(KernelProvisionerBase):
    base = Unicode(config=True)
    interpreter = Unicode("/usr/bin/python3", config=True)
    requires = List(Unicode(), default_value=["ipykernel"], config=True)
    memory_bytes = Int(1 << 30, config=True)
    run_dir = Unicode(None, allow_none=True, config=True)

    id = None
    code = None
    directory = None

    @property
    def has_process(self):
        return self.id is not None

    async def _ask(self, *arguments):
        return await asyncio.to_thread(Daemon(self.run_dir).ask, *arguments)

    async def poll(self):
        if self.id is None:
            return 0
        try:
            seen = await self._ask("GET", f"/v1/sandboxes/{self.id}")
        except Refused:
            return 1
        return exit_code(seen["sandbox"])

    async def wait(self):
        while (code := await self.poll()) is None:
            await asyncio.sleep(0.1)
        await self.cleanup()
        return code

    async def send_signal(self, signum):
        if signum == signal.SIGINT:
            # From within: a kernel is process 1 of its sandbox, and has a handler for this one.
            stop = ["/bin/sh", "-c", "kill -INT 1"]
            await self._ask("POST", f"/v1/sandboxes/{self.id}/exec", {"command": stop, "timeout_ms": 10000})
        elif signum != 0:
            await self.kill()

    async def kill(self, restart=False):
        if self.id is not None:
            await self._ask("DELETE", f"/v1/sandboxes/{self.id}")

    async def terminate(self, restart=False):
        await self.kill(restart)

    async def launch_kernel(self, cmd, **kwargs):
        # The file says where to listen, and has the key.
        self.directory = tempfile.mkdtemp(prefix="sandbox-kernel-")
        os.chmod(self.directory, 0o755)
        connection = os.path.join(self.directory, "connection.json")
        shutil.copyfile(self.parent.connection_file, connection)
        os.chmod(connection, 0o644)
        os.chmod(self.directory, 0o711)
        command = ["-m", "ipykernel_launcher", "-f", "/code/connection.json"]
        text = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
        request = {
            "base": self.base,
            "command": ["-c", text, "ipykernel_launcher", *command[2:]],
            "python": {"interpreter": self.interpreter},
            "environment": {"HOME": "/tmp", "IPYTHONDIR": "/tmp/ipython"},
            "code": self.directory,
            "network": "host",
            "limits": {"memory_bytes": self.memory_bytes},
        }
        made = await self._ask("POST", "/v1/sandboxes", {"request": request, "requires": self.requires})
        self.id = made["sandbox"]["id"]
        return self.connection_info

    async def pre_launch(self, **kwargs):
        manager = self.parent
        manager.cache_ports = False
        manager.write_connection_file()
        self.connection_info = manager.get_connection_info()
        return await super().pre_launch(cmd=[], **kwargs)

    async def cleanup(self, restart=False):
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = None
        self.id = None
