"""What a program in a sandbox tries, to get out or at others. Prints a line for each attempt: its
name, and `refused` or what came of it. Arguments: a process outside, an abstract socket outside."""

import ctypes
import errno
import os
import resource
import socket
import stat
import sys

outside_pid, abstract_name = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
NEW = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}


def call(number, *arguments):
    """Makes a system call; an error is an exception."""
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def attempt(name, act, refusals=(errno.EPERM,)):
    try:
        came = act()
    except OSError as error:
        said = "refused" if error.errno in refusals else f"failed otherwise: {error}"
        print(name, said, sep=": ")
    else:
        print(name, f"POSSIBLE {came!r}", sep=": ")


def expect(name, holds, seen=None):
    print(name, "refused" if holds else f"POSSIBLE {seen!r}", sep=": ")


# Another root, other namespaces, mounts.
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("pivot_root", lambda: call(155, b"/tmp", b"/tmp"))
for kind, flag in NEW.items():
    attempt(f"unshare {kind}", lambda: must(libc.unshare(flag)))
    attempt(f"clone {kind}", lambda: call(56, flag | 17, 0, 0, 0, 0))
attempt("clone3", lambda: call(435, ctypes.byref(ctypes.create_string_buffer(88)), 88), (errno.ENOSYS,))
for kind in ("mnt", "net", "pid", "user"):
    fd = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
    attempt(f"setns {kind}", lambda: must(libc.setns(fd, 0)))
    os.close(fd)
attempt("mount", lambda: must(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
attempt("umount", lambda: must(libc.umount2(b"/tmp", 2)))
attempt("remount", lambda: must(libc.mount(None, b"/", None, 32 | 4096, None)))
for name, number in {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
                     "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467}.items():
    attempt(name, lambda: call(number, 0, 0, 0, 0, 0))
up = os.stat("/..")
expect("leave by ..", (up.st_dev, up.st_ino) == (os.stat("/").st_dev, os.stat("/").st_ino))
expect("leave by /proc", os.listdir("/proc/self/root/") == os.listdir("/"))
attempt("write to the base", lambda: open("/usr/bin/own", "w"), (errno.EROFS, errno.EACCES))
attempt("write to the root", lambda: open("/own", "w"), (errno.EROFS, errno.EACCES))
attempt("write to /dev", lambda: open("/dev/own", "w"), (errno.EROFS, errno.EACCES))
attempt("write to /proc/sys", lambda: open("/proc/sys/kernel/core_pattern", "w"), (errno.ENOENT,))
attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w"), (errno.ENOENT,))
attempt("kcore", lambda: open("/proc/kcore", "rb"), (errno.ENOENT,))
attempt("sysfs", lambda: os.listdir("/sys/kernel"), (errno.ENOENT,))
attempt("shadow", lambda: open("/etc/shadow"), (errno.EACCES, errno.ENOENT))

# Control groups.
attempt("control groups", lambda: os.listdir("/sys/fs/cgroup"), (errno.ENOENT,))
attempt("mount control groups", lambda: must(libc.mount(b"none", b"/tmp", b"cgroup2", 0, None)))

# Other processes.
mine = {os.getpid(), os.getppid(), 1}
seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
expect("see other processes", seen <= mine, seen)
attempt("signal outside", lambda: os.kill(outside_pid, 0), (errno.ESRCH,))
attempt("open outside", lambda: os.pidfd_open(outside_pid), (errno.ESRCH,))
attempt("go before others", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("signal all", lambda: os.kill(-1, 0), (errno.ESRCH, errno.EPERM))
attempt("ptrace", lambda: call(101, 16, 1, 0, 0))
attempt("process_vm_readv", lambda: call(310, 1, 0, 0, 0, 0, 0))
attempt("pidfd_getfd", lambda: call(438, 0, 0, 0))
oom = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
attempt("better chances with the OOM killer", lambda: os.write(oom, b"-1000"), (errno.EACCES, errno.EPERM))
os.close(oom)

# Descriptors that were left open.
fds = set(os.listdir("/proc/self/fd"))
leaked = []
for fd in sorted(fds - {"0", "1", "2"}):
    try:
        leaked.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
    except OSError:
        pass  # the one that listed them
expect("leaked descriptors", not leaked, leaked)

# Users and rights.
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    expect(name, int(status[name], 16) == 0, status[name])
expect("new privileges", status["NoNewPrivs"] == "1")
expect("unfiltered calls", status["Seccomp"] == "2")
expect("be root", 0 not in os.getresuid() + os.getresgid() and not os.getgroups(), os.getresuid())
attempt("setuid", lambda: os.setuid(0))
attempt("setgid", lambda: os.setgid(0))
attempt("setgroups", lambda: os.setgroups([0]))
try:
    resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20))
    expect("more processes", False)
except ValueError:
    expect("more processes", True)
attempt("a device", lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
attempt("sethostname", lambda: socket.sethostname("x"))

# Parts of the kernel that nobody needs.
for name, number in {"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
                     "keyctl": 250, "add_key": 248, "fanotify_init": 300, "syslog": 103,
                     "quotactl_fd": 443}.items():
    attempt(name, lambda: call(number, 0, 0, 0, 0, 0))
# The machine has so many for all.
attempt("all contexts of AIO", lambda: call(206, 60000, ctypes.byref(ctypes.c_ulong())))
attempt("TIOCSTI", lambda: call(16, 0, 0x5412, b"x"))
attempt("x32", lambda: call(0x40000000 | 39), (errno.ENOSYS,))

# Networks.
def reach_abstract():
    with socket.socket(socket.AF_UNIX) as own:
        own.connect("\0" + abstract_name)


attempt("an abstract socket", reach_abstract, (errno.ECONNREFUSED, errno.EPERM))
# The kernel would load a module for each that it has none for.
for name, family in {"packet": 17, "vsock": 40, "alg": 38, "x25": 9, "key": 15, "rds": 21, "pppox": 24, "can": 29,
                     "tipc": 30, "bluetooth": 31, "rxrpc": 33, "phonet": 35, "caif": 37, "nfc": 39, "kcm": 41,
                     "qipcrtr": 42, "smc": 43, "xdp": 44, "mctp": 45}.items():
    attempt(name, lambda: socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_SEQPACKET))
attempt("pair of tipc", lambda: socket.socketpair(30, socket.SOCK_SEQPACKET))
attempt("sctp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132))
attempt("dccp", lambda: socket.socket(socket.AF_INET, 6, 33))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
print("done")
