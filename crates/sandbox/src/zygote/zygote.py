"""A Python interpreter that has imported already, and becomes a sandbox's program by a fork.

It is started by yolofs' crate `sandbox` as root of a user namespace that gives it no rights outside.
Descriptor 3 is a SEQPACKET socket; docs/zygote-protocol.md describes what goes over it. The child of a
fork gives up all rights before it runs anything of its request.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types

CONTROL = 3
MESSAGE_MAX = 128 << 10
DESCRIPTORS_MAX = 16

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
OF_PROGRAMS = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
# A Zygote's children would end with a namespace of processes of its own.
OF_ZYGOTES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET
CLONE_PIDFD, CLONE_PARENT = 0x00001000, 0x00008000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x00200000, 0x01000000
CLONE_INTO_CGROUP = 0x200000000
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_GET_TID_ADDRESS = 4, 22, 24, 40
# The same numbers on all processors.
SYS_MOVE_MOUNT, SYS_CLONE3 = 429, 435
MOVE_MOUNT_F_EMPTY_PATH, AT_FDCWD = 4, -100
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8

# As they are before any package is imported: one that changes them does not change what we do.
dumps, loads, send_fds, recv_fds = json.dumps, json.loads, socket.send_fds, socket.recv_fds

# With the lock of the interpreter held: the child must find it as the parent had it.
libc = ctypes.PyDLL(None, use_errno=True)
python = ctypes.pythonapi


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def load(names, paths, learned):
    """Imports what is to be ready, and returns how long each package took, in milliseconds."""
    sys.path[:0] = paths
    times = {}
    for name in names:
        importlib.import_module(name)
    for path in paths:
        began = time.monotonic()
        for module in pkgutil.iter_modules([path]):
            try:
                importlib.import_module(module.name)
            except ImportError:
                pass  # what it wants is not there, or not here: its program will see
        times[os.path.basename(path)] = (time.monotonic() - began) * 1000
    began = time.monotonic()
    for name in learned:
        try:
            importlib.import_module(name)
        except BaseException:
            pass  # it takes what its program has set up: that will see
    times["learned"] = (time.monotonic() - began) * 1000
    return times


def address_of_thread_number():
    """Where libc keeps the number of this thread, which the kernel can write in the child."""
    address = ctypes.c_ulong()
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) < 0:
        return 0
    return address.value


def fork_to(thread_number, group, namespaces):
    """Forks into new namespaces and a control group. The child's parent is our own parent, which waits for it. Returns
    0 in the child, and in the parent its number and a descriptor of it."""
    pidfd = ctypes.c_int(-1)
    flags = CLONE_PIDFD | CLONE_PARENT | CLONE_INTO_CGROUP | namespaces
    if thread_number:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    arguments = struct.pack("=11Q", flags, ctypes.addressof(pidfd), thread_number,
                            0, 0, 0, 0, 0, 0, 0, group)
    python.PyOS_BeforeFork()
    result = libc.syscall(SYS_CLONE3, arguments, len(arguments))
    if result == 0:
        python.PyOS_AfterFork_Child()
        return 0, None
    failure = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if result < 0:
        raise OSError(failure, os.strerror(failure))
    return result, pidfd.value


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def new_network():
    """Moves this process to a network namespace of its own. The child that was born in the one before
    keeps that for itself."""
    check(libc.unshare(CLONE_NEWNET))
    raise_loopback()


def attach(mounts, places):
    for mount, place in zip(mounts, places):
        check(libc.syscall(SYS_MOVE_MOUNT, mount, b"", AT_FDCWD, place.encode(), MOVE_MOUNT_F_EMPTY_PATH))


def settle(groups):
    """Takes a place of its own, whatever it will run."""
    for group in groups:
        os.write(group, b"0")
    os.setsid()
    socket.sethostname("sandbox")
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    check(libc.mount(b"proc", b"/proc", b"proc", flags, b"subset=pid"))


def confine(request, mounts, last_filter):
    """Gives up all rights."""
    options = b"mode=1777,size=%d,nr_inodes=65536" % request["tmp_bytes"]
    check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options))
    attach(mounts, request["places"])
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    user = request["user"]
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # As after the start of a program: what /proc has of this process is its own again.
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
    os.chdir(request["dir"])
    instructions = ctypes.create_string_buffer(last_filter, len(last_filter))
    program = struct.pack("@HP", len(last_filter) // 8, ctypes.addressof(instructions))
    check(libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0))


def renew(request):
    """Renews what must not be the same in two children of one interpreter."""
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    # `random` seeds itself anew after a fork, and OpenSSL when the number of its process has changed.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "logging" in sys.modules:
        logging = sys.modules["logging"]
        for reference in list(logging._handlerList):
            handler = reference()
            # It opens its file when there is something to write.
            if isinstance(handler, logging.FileHandler):
                handler.stream = None
    signal.set_wakeup_fd(-1)


def place(stdio):
    """Has the standard descriptors be those of the request, and closes all others."""
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 16)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def run(command, paths):
    """Runs what `python3 COMMAND` would, and returns the exit code."""
    wanted = ["" if command[0] == "-c" else os.path.dirname(command[0])]
    wanted += [path for path in os.environ.get("PYTHONPATH", "").split(":") if path] + paths
    sys.path[:] = wanted + [path for path in sys.path if path not in wanted]
    try:
        if command[0] == "-c":
            sys.argv = ["-c"] + command[2:]
            main = types.ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(compile(command[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    return code & 0xFF


def wait_for_request(own, ready):
    """What a child does that was forked in advance. Returns the request, and the descriptors with it."""
    # It must be seen when the Zygote has ended.
    os.close(CONTROL)
    os.write(ready, b"\0")
    os.close(ready)
    message, descriptors, flags, _ = recv_fds(own, MESSAGE_MAX, DESCRIPTORS_MAX)
    if not message or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        os._exit(0)
    return loads(message), descriptors


def become(request, descriptors, last_filter):
    """What the child of a fork does, to its end."""
    count = request["groups"]
    # Behind the group that it was born in.
    groups, mounts = descriptors[5:5 + count], descriptors[5 + count:]
    code = 1
    try:
        ready = descriptors[3]
        try:
            settle(groups)
            if request["spare"]:
                request, descriptors = wait_for_request(socket.socket(fileno=mounts[0]), ready)
                ready, mounts = descriptors[3], descriptors[4:]
            confine(request, mounts, last_filter)
            renew(request)
            # It is given an address meanwhile.
            if request["waits"] and os.read(descriptors[-1], 1) != b"\0":
                os._exit(1)
        except BaseException as error:
            os.write(ready, repr(error).encode()[:4096])
            os._exit(1)
        stdio = descriptors[:3]
        os.write(ready, b"\0")
        place(stdio)
        code = run(request["command"], request["paths"])
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120  # as the interpreter itself
    finally:
        os._exit(code)


def map_users(child, users):
    """Says which users the namespace of a child has. Those are ours."""
    for name in ("gid_map", "uid_map"):
        with open(f"/proc/{child}/{name}", "wb", buffering=0) as table:
            table.write(b"0 %d %d" % tuple(users))


def become_zygote(control, request, descriptors, last_filter):
    """What the child of a fork does that is to be a Zygote itself: it has what we have imported, and imports more."""
    count = request["groups"]
    go, groups, mine = descriptors[3], descriptors[5:5 + count], descriptors[5 + count]
    mounts = descriptors[6 + count:]
    code = 1
    try:
        control.close()
        # When its users are known, and it is in a control group that is its own.
        if os.read(go, 1) != b"\0":
            os._exit(1)
        # A new user namespace begins with all of them.
        empty_bounding_set()
        for group in groups:
            os.write(group, b"0")
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # Or it would not see its own children that are Zygotes: their memory still belongs to the
        # namespace that the first of us was executed in.
        check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
        os.setsid()
        options = b"mode=1777,size=16m"
        check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options))
        attach(mounts, request["places"])
        os.chdir("/tmp")
        # All that is ours is closed before anything runs that we have not.
        os.dup2(mine, CONTROL)
        os.closerange(CONTROL + 1, 1 << 16)
        code = import_and_serve(socket.socket(fileno=CONTROL), [], request["zygote"], last_filter)
    finally:
        os._exit(code)


def serve(control, last_filter):
    thread_number = address_of_thread_number()
    new_network()
    while True:
        message, descriptors, flags, _ = recv_fds(control, MESSAGE_MAX, DESCRIPTORS_MAX)
        if not message:
            return
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            os._exit(3)
        request = loads(message)
        derived = request.get("zygote")
        try:
            number, child = fork_to(thread_number, descriptors[4], OF_ZYGOTES if derived else OF_PROGRAMS)
            if number == 0:
                if derived:
                    become_zygote(control, request, descriptors, last_filter)
                become(request, descriptors, last_filter)
            if derived:
                map_users(number, derived["users"])
        except OSError as error:
            answer, sent = {"id": request["id"], "error": str(error)}, []
        else:
            answer, sent = {"id": request["id"]}, [child]
        send_fds(control, [dumps(answer).encode()], sent)
        for descriptor in descriptors + sent:
            os.close(descriptor)
        if sent and not derived:
            # When the child has most likely begun, so that it does not take turns with this on the
            # processor; or when the next one waits.
            select.select([control], [], [], 0.005)
            new_network()


def empty_bounding_set():
    """Has no program that is executed from now on get a capability. What we have ourselves stays."""
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1


def import_and_serve(control, modules, settings, last_filter):
    try:
        times = load(modules, settings["paths"], settings["learned"])
    except BaseException as error:
        control.send(dumps({"id": 0, "error": repr(error)[:4096]}).encode())
        return 1
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()]
        control.send(dumps({"id": 0, "error": f"its packages have started threads: {names}"}).encode())
        return 1
    gc.collect()
    gc.freeze()  # so that a collection in a child writes to no page that is shared
    control.send(dumps({"id": 0, "times": times}).encode())
    serve(control, last_filter)
    return 0


def main():
    empty_bounding_set()
    settings = loads(sys.argv[1])
    control = socket.socket(fileno=CONTROL)
    return import_and_serve(control, settings["modules"], settings, bytes.fromhex(settings["filter"]))


os._exit(main())
