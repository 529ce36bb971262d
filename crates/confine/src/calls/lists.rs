//! Which system calls, and why.

use nix::libc::{self, *};

/// Calls that are needed, or refused, for one reason.
pub(crate) struct Group {
    /// The reason.
    #[cfg_attr(not(test), expect(dead_code, reason = "for who reads the list"))]
    pub(crate) why: &'static str,
    pub(crate) calls: &'static [Call],
}

/// A system call.
pub(crate) struct Call {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for who reads a test's failure")
    )]
    pub(crate) name: &'static str,
    pub(crate) number: i64,
    /// The allowed arguments; empty for any.
    pub(crate) only: &'static [Argument],
}

/// An argument of a call, of which the lower 32 bits count.
#[derive(Clone, Copy)]
pub(crate) struct Argument {
    /// Its index, from 0.
    pub(crate) index: u8,
    pub(crate) is: Is,
}

/// What an argument is to be.
#[derive(Clone, Copy)]
pub(crate) enum Is {
    Exactly(u64),
    /// All of these bits are set.
    With(u64),
    /// None of these bits is set.
    Without(u64),
    /// The number of this process.
    ThisProcess,
    /// All of these bits are set, and it is not this.
    WithBut(u64, u64),
    /// None of these.
    NoneOf(&'static [u64]),
    /// A unix socket of this kind; the kind is the argument behind this one.
    Unix(u64),
}

/// Returns the number of an `ioctl`, whose type differs from one C library to another.
const fn request(number: libc::Ioctl) -> u64 {
    let number: u64 = number as _;
    number
}

/// The number of `kexec_file_load(2)`, which libc lacks there, by libc's name for it.
#[cfg(all(target_arch = "aarch64", target_env = "musl"))]
#[expect(non_upper_case_globals, reason = "as libc has it elsewhere")]
const SYS_kexec_file_load: i64 = 294;

/// Makes a group: `why` and the calls by their names, some followed by `if` and arguments.
macro_rules! group {
    ($why:literal: $($name:ident $(if $($index:literal $is:expr),+)?;)+) => {
        Group {
            why: $why,
            calls: &[$(Call {
                name: stringify!($name),
                number: $name,
                only: &[$($(Argument { index: $index, is: $is }),+)?],
            }),+],
        }
    };
}

const REQUESTS: Group = group! {
    "requests of the kernel, and pages pushed into its cache":
    SYS_read; SYS_write; SYS_readv; SYS_writev;
};

const FILES: Group = group! {
    "the source and the boot image: finding, reading, seeking":
    SYS_openat; SYS_openat2; SYS_close; SYS_close_range; SYS_fstat; SYS_newfstatat;
    SYS_statx; SYS_statfs; SYS_fstatfs; SYS_pread64; SYS_pwrite64; SYS_preadv2; SYS_lseek;
    SYS_readahead; SYS_fadvise64; SYS_getdents64; SYS_readlinkat; SYS_faccessat; SYS_faccessat2;
    SYS_getxattr; SYS_lgetxattr; SYS_fgetxattr; SYS_listxattr; SYS_llistxattr;
    SYS_flistxattr; GETXATTRAT; LISTXATTRAT; CACHESTAT; SYS_flock; SYS_fcntl;
};

const DIRECTORY: Group = group! {
    "the run directory and a trace: sockets, records, logs":
    SYS_unlinkat; SYS_mkdirat; SYS_renameat; SYS_renameat2; SYS_ftruncate; SYS_fsync;
    SYS_fdatasync; SYS_getcwd; SYS_chdir; SYS_umask;
};

const COMMANDS: Group = group! {
    "commands, over unix sockets that listen already; with a datagram any name could be sent to":
    SYS_socketpair if 0 Is::Unix(SOCK_STREAM), 0 Is::Unix(SOCK_SEQPACKET);
    SYS_accept4; SYS_shutdown; SYS_getsockopt; SYS_setsockopt;
    SYS_getsockname; SYS_getpeername; SYS_sendto if 4 Is::Exactly(0); SYS_sendmsg;
    SYS_recvfrom; SYS_recvmsg;
};

const WAITING: Group = group! {
    "waiting":
    SYS_ppoll; SYS_eventfd2; SYS_pipe2; SYS_dup; SYS_dup3; SYS_nanosleep;
    SYS_clock_nanosleep; SYS_clock_gettime; SYS_clock_getres; SYS_gettimeofday;
    SYS_restart_syscall;
};

const DEVICES: Group = group! {
    "whether a descriptor is a terminal, and that it shall not wait":
    SYS_ioctl if 1 Is::Exactly(request(libc::TCGETS)), 1 Is::Exactly(request(libc::FIONBIO)),
        1 Is::Exactly(request(libc::FIOCLEX)), 1 Is::Exactly(FUSE_BACKING_OPEN),
        1 Is::Exactly(FUSE_BACKING_CLOSE);
};

const MEMORY: Group = group! {
    "memory, none of it executable":
    SYS_mmap if 2 Is::Without(PROT_EXEC); SYS_mprotect if 2 Is::Without(PROT_EXEC);
    SYS_munmap; SYS_mremap; SYS_brk; SYS_madvise; SYS_mincore; SYS_mlock; SYS_mlock2; SYS_munlock;
    SYS_membarrier;
};

const THREADS: Group = group! {
    "threads, but no processes":
    SYS_clone if 0 Is::With(CLONE_THREAD); SYS_futex; SYS_futex_waitv; SYS_set_robust_list;
    SYS_rseq; SYS_set_tid_address; SYS_sched_yield; SYS_sched_getaffinity; SYS_exit;
    SYS_exit_group; SYS_gettid; SYS_getpid; SYS_sigaltstack; SYS_rt_sigaction;
    SYS_rt_sigprocmask; SYS_rt_sigreturn; SYS_rt_sigtimedwait;
    SYS_tgkill if 0 Is::ThisProcess; SYS_kill if 0 Is::ThisProcess;
    SYS_prctl if 0 Is::Exactly(PR_SET_NAME), 0 Is::Exactly(PR_SET_VMA);
};

const SELF: Group = group! {
    "what the process learns of itself and of the machine":
    SYS_getuid; SYS_geteuid; SYS_getgid; SYS_getegid; SYS_uname; SYS_sysinfo;
    SYS_getrandom; SYS_getrusage; SYS_prlimit64;
};

#[cfg(target_arch = "x86_64")]
const OLDER: Group = group! {
    "the older forms of some of these, which libc prefers on this processor":
    SYS_open; SYS_stat; SYS_lstat; SYS_access; SYS_readlink; SYS_poll; SYS_dup2;
};

#[cfg(target_arch = "x86_64")]
const OLDER_DIRECTORY: Group = group! {
    "the older forms for directories":
    SYS_unlink; SYS_mkdir; SYS_rmdir; SYS_rename;
};

const MOUNTS: Group = group! {
    "one mount to its place, and away":
    SYS_move_mount; SYS_umount2;
};

/// The calls of serving.
pub(crate) const SERVE: &[&Group] = &[
    &REQUESTS,
    &FILES,
    &DIRECTORY,
    &COMMANDS,
    &WAITING,
    &DEVICES,
    &MEMORY,
    &THREADS,
    &SELF,
    #[cfg(target_arch = "x86_64")]
    &OLDER,
    #[cfg(target_arch = "x86_64")]
    &OLDER_DIRECTORY,
];

/// The calls of mounting for other processes: finding a place, and receiving requests.
pub(crate) const MOUNT: &[&Group] = &[
    &MOUNTS,
    &REQUESTS,
    &FILES,
    &COMMANDS,
    &WAITING,
    &MEMORY,
    &THREADS,
    &SELF,
    #[cfg(target_arch = "x86_64")]
    &OLDER,
];

/// The calls of a program of the system that reads one file and writes another, and of its start. Landlock says which files.
pub(crate) const CONVERT: &[&Group] = &[
    &REQUESTS,
    &FILES,
    &WAITING,
    &SELF,
    &group! {
        "the program and its libraries, loaded by it and by nobody of ours":
        SYS_execve; SYS_mmap; SYS_mprotect; SYS_munmap; SYS_mremap; SYS_brk; SYS_madvise; SYS_mincore;
        SYS_membarrier; SYS_get_mempolicy; SYS_set_mempolicy;
    },
    &group! {
        "its threads, and its start, which libc makes by a process that shares all memory and waits":
        SYS_clone if 0 Is::With(CLONE_THREAD), 0 Is::With(CLONE_VFORK);
        SYS_wait4; SYS_waitid; SYS_futex; SYS_futex_waitv; SYS_set_robust_list;
        SYS_rseq; SYS_set_tid_address; SYS_sched_yield; SYS_sched_getaffinity; SYS_exit;
        SYS_exit_group; SYS_gettid; SYS_getpid; SYS_getppid; SYS_sigaltstack; SYS_rt_sigaction;
        SYS_rt_sigprocmask; SYS_rt_sigreturn; SYS_rt_sigtimedwait; SYS_rt_sigsuspend;
    },
    &group! {
        "its name, the steps of its clock, and what it learns of itself":
        SYS_prctl if 0 Is::Exactly(PR_SET_NAME), 0 Is::Exactly(PR_SET_VMA), 0 Is::Exactly(PR_SET_TIMERSLACK),
            0 Is::Exactly(PR_GET_DUMPABLE);
    },
    &group! {
        "what it waits for":
        SYS_epoll_create1; SYS_epoll_ctl; SYS_epoll_pwait; SYS_signalfd4; SYS_timerfd_create;
        SYS_timerfd_settime;
    },
    &group! {
        "the file that it writes: its length, holes, and what is on the disk":
        SYS_preadv; SYS_pwritev; SYS_pwritev2; SYS_ftruncate; SYS_fallocate; SYS_fsync; SYS_fdatasync;
        SYS_sync_file_range; SYS_copy_file_range; SYS_getcwd;
    },
    &group! {
        "whether a descriptor is a terminal, and that it shall not wait":
        SYS_ioctl if 1 Is::Exactly(request(libc::TCGETS)), 1 Is::Exactly(request(libc::TIOCGWINSZ)),
            1 Is::Exactly(request(libc::FIONBIO)), 1 Is::Exactly(request(libc::FIOCLEX));
    },
    #[cfg(target_arch = "x86_64")]
    &group! {
        "the older forms of some of these, which libc prefers on this processor":
        SYS_open; SYS_stat; SYS_lstat; SYS_access; SYS_readlink; SYS_poll; SYS_dup2; SYS_pipe;
        SYS_epoll_wait; SYS_arch_prctl;
    },
];

/// The calls of connecting to a block service, in addition to using it.
pub(crate) const CONNECT: Group = group! {
    "connections to the service, which are made again when they are lost":
    SYS_socket if 0 Is::Exactly(AF_INET), 0 Is::Exactly(AF_INET6), 0 Is::Exactly(AF_VSOCK);
    SYS_connect; SYS_sendmmsg; SYS_recvmmsg;
};

/// The calls of using a block service, in addition to serving.
pub(crate) const ASK: &[&Group] = &[
    &group! {
        "its runtime":
        SYS_epoll_create1; SYS_epoll_ctl; SYS_epoll_pwait;
    },
    &group! {
        "its cache, a log of segments":
        SYS_fallocate; SYS_sync_file_range;
    },
    #[cfg(target_arch = "x86_64")]
    &group! {
        "the older form of one of these, which libc prefers on this processor":
        SYS_epoll_wait;
    },
];

/// The calls of using a block service that listens in the file system.
pub(crate) const CALL: Group = group! {
    "a connection to a service on this machine":
    SYS_socket if 0 Is::Unix(SOCK_STREAM);
};

/// Calls that libc tries before it resolves a host name, and can do without.
pub(crate) const NAME_CACHE: Group = group! {
    "whoever listens at a name on this machine could be called":
    SYS_socket if 0 Is::Exactly(AF_UNIX);
};

/// Sockets of any kind.
pub(crate) const ANY_SOCKET: Group = group! {
    "it uses those that it is given":
    SYS_socket;
};

/// Pairs that can send to names.
pub(crate) const DATAGRAM_PAIR: Group = group! {
    "with a datagram any name could be sent to":
    SYS_socketpair if 0 Is::Unix(SOCK_DGRAM);
};

/// Calls that are refused so that an older one is made instead, whose arguments can be checked.
pub(crate) const REPLACED: Group = group! {
    "its flags are in memory, which no filter sees":
    SYS_clone3;
};

/// Changes of files that the process has not opened, which Landlock does not govern.
pub(crate) const MODES: Group = group! {
    "modes, owners and attributes of files by their names":
    SYS_fchmodat; FCHMODAT2; SYS_fchownat; SYS_setxattr; SYS_lsetxattr; SYS_removexattr;
    SYS_lremovexattr; SETXATTRAT; REMOVEXATTRAT;
};

/// Changes of files that the process has opened, if only to read them: what others could then write to or execute as their
/// owner. The directory of a store for a group has the bit that hands on the group.
pub(crate) const WIDER_MODES: Group = group! {
    "modes that let others write, or be somebody else, and other owners":
    SYS_fchmod if 1 Is::With(0o4000), 1 Is::With(0o020), 1 Is::With(0o002), 1 Is::WithBut(0o2000, 0o2750);
    SYS_fchown if 1 Is::NoneOf(&[0xffff_ffff]);
};

/// The older forms of these.
#[cfg(target_arch = "x86_64")]
pub(crate) const OLDER_MODES: Group = group! {
    "the same":
    SYS_chmod; SYS_chown; SYS_lchown;
};

/// What only an intruder does, wherever.
pub(crate) const NEVER: Group = group! {
    "other processes, another root or user, the kernel itself, keys and clocks":
    SYS_ptrace; SYS_process_vm_readv; SYS_process_vm_writev; SYS_pidfd_getfd; SYS_pivot_root;
    SYS_chroot; SYS_unshare; SYS_open_by_handle_at; SYS_swapon; SYS_swapoff; SYS_quotactl;
    SYS_init_module; SYS_finit_module; SYS_delete_module; SYS_kexec_load; SYS_kexec_file_load;
    SYS_bpf; SYS_perf_event_open; SYS_userfaultfd; SYS_keyctl; SYS_add_key; SYS_request_key;
    SYS_reboot; SYS_syslog; SYS_acct; SYS_setuid; SYS_setgid; SYS_setresuid; SYS_setresgid; SYS_setreuid; SYS_setregid;
    SYS_setgroups; SYS_sethostname; SYS_setdomainname; SYS_settimeofday; SYS_clock_settime;
    SYS_clock_adjtime; SYS_adjtimex; SYS_personality;
};

/// What only an intruder does where no ublk device is served. Programs of others try it, and can do without.
pub(crate) const RINGS: Group = group! {
    "no filter sees the calls that are made by a ring":
    SYS_io_uring_setup; SYS_io_uring_enter; SYS_io_uring_register;
};

/// What only an intruder does where rings were made before.
pub(crate) const NEW_RINGS: Group = group! {
    "another ring would do what its owner's may not":
    SYS_io_uring_setup; SYS_io_uring_register;
};

/// What an intruder does where nothing is mounted, entered or copied.
pub(crate) const ENGINE: Group = group! {
    "mounts, namespaces, devices and the rights of this process":
    SYS_mount; SYS_fsopen; SYS_fspick; SYS_fsconfig; SYS_fsmount; SYS_open_tree; SYS_move_mount;
    SYS_mount_setattr; SYS_setns; SYS_mknodat; SYS_name_to_handle_at; SYS_capset;
    SYS_landlock_create_ruleset;
};

/// What an intruder does where nothing is executed.
pub(crate) const PROGRAMS: Group = group! {
    "another program":
    SYS_execve; SYS_execveat;
};

// The same numbers on all processors; libc does not have them yet.
const CACHESTAT: i64 = 451;
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const GETXATTRAT: i64 = 464;
const LISTXATTRAT: i64 = 465;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
pub(crate) const AF_UNIX: u64 = libc::AF_UNIX.unsigned_abs() as u64;
const AF_INET: u64 = libc::AF_INET.unsigned_abs() as u64;
const AF_INET6: u64 = libc::AF_INET6.unsigned_abs() as u64;
const AF_VSOCK: u64 = libc::AF_VSOCK.unsigned_abs() as u64;
const SOCK_STREAM: u64 = libc::SOCK_STREAM.unsigned_abs() as u64;
const SOCK_DGRAM: u64 = libc::SOCK_DGRAM.unsigned_abs() as u64;
const SOCK_SEQPACKET: u64 = libc::SOCK_SEQPACKET.unsigned_abs() as u64;
/// The bits of a socket's kind; others are flags (`SOCK_TYPE_MASK` of the kernel's linux/net.h).
pub(crate) const SOCK_KIND: u64 = 0xf;
const PROT_EXEC: u64 = libc::PROT_EXEC.unsigned_abs() as u64;
const CLONE_VFORK: u64 = libc::CLONE_VFORK.unsigned_abs() as u64;
const PR_SET_TIMERSLACK: u64 = libc::PR_SET_TIMERSLACK.unsigned_abs() as u64;
const PR_GET_DUMPABLE: u64 = libc::PR_GET_DUMPABLE.unsigned_abs() as u64;
const CLONE_THREAD: u64 = libc::CLONE_THREAD.unsigned_abs() as u64;
const PR_SET_NAME: u64 = libc::PR_SET_NAME.unsigned_abs() as u64;
const PR_SET_VMA: u64 = libc::PR_SET_VMA.unsigned_abs() as u64;
/// `_IOW(229, 1, struct fuse_backing_map)` and `_IOW(229, 2, uint32_t)` of linux/fuse.h.
const FUSE_BACKING_OPEN: u64 = 0x4010_e501;
const FUSE_BACKING_CLOSE: u64 = 0x4004_e502;

/// What no program of a sandbox ever needs.
pub(crate) const GUEST_KILLED: Group = group! {
    "the kernel itself and its machine, and files by handles instead of paths":
    SYS_init_module; SYS_finit_module; SYS_delete_module; SYS_kexec_load; SYS_kexec_file_load;
    SYS_reboot; SYS_swapon; SYS_swapoff; SYS_open_by_handle_at; SYS_acct; SYS_quotactl;
};

/// Calls that neither the program of a sandbox nor its starter needs.
pub(crate) const GUEST_REFUSED_ALWAYS: Group = group! {
    "large parts of the kernel that have been ways out, other processes, keys, clocks, terminals":
    SYS_bpf; SYS_perf_event_open; SYS_userfaultfd; SYS_io_uring_setup; SYS_io_uring_enter;
    SYS_io_uring_register; SYS_keyctl; SYS_add_key; SYS_request_key; SYS_syslog;
    SYS_settimeofday; SYS_clock_settime; SYS_clock_adjtime; SYS_adjtimex; SYS_ptrace;
    SYS_process_vm_readv; SYS_process_vm_writev; SYS_kcmp; SYS_pidfd_getfd; SYS_vhangup;
    SYS_fanotify_init; SYS_move_pages; SYS_migrate_pages; SYS_mbind; SYS_set_mempolicy;
    SYS_name_to_handle_at; SYS_quotactl_fd;
    SYS_ioctl if 1 Is::Exactly(request(libc::TIOCSTI)), 1 Is::Exactly(TIOCLINUX);
    // Any other has its module loaded, and so is code that nobody here uses.
    SYS_socket if 0 Is::NoneOf(&[AF_UNIX, AF_INET, AF_INET6, AF_NETLINK]),
        2 Is::Exactly(IPPROTO_SCTP), 2 Is::Exactly(IPPROTO_DCCP);
    SYS_socketpair if 0 Is::NoneOf(&[AF_UNIX]);
    // The machine has a fixed number of these for all.
    SYS_io_setup;
};

/// What a program of a sandbox does not need.
pub(crate) const GUEST_REFUSED: Group = group! {
    "mounts, other roots, namespaces, other names of the machine":
    SYS_mount; SYS_umount2; SYS_pivot_root; SYS_chroot; SYS_fsopen; SYS_fspick; SYS_fsconfig;
    SYS_fsmount; SYS_open_tree; OPEN_TREE_ATTR; SYS_move_mount; SYS_mount_setattr; SYS_setns;
    SYS_sethostname; SYS_setdomainname;
    SYS_unshare if 0 Is::With(CLONE_NEWUSER), 0 Is::With(CLONE_NEWNS), 0 Is::With(CLONE_NEWNET),
        0 Is::With(CLONE_NEWPID), 0 Is::With(CLONE_NEWIPC), 0 Is::With(CLONE_NEWUTS),
        0 Is::With(CLONE_NEWCGROUP), 0 Is::With(CLONE_NEWTIME);
    SYS_clone if 0 Is::With(CLONE_NEWUSER), 0 Is::With(CLONE_NEWNS), 0 Is::With(CLONE_NEWNET),
        0 Is::With(CLONE_NEWPID), 0 Is::With(CLONE_NEWIPC), 0 Is::With(CLONE_NEWUTS),
        0 Is::With(CLONE_NEWCGROUP);
};

const fn flag(bit: i32) -> u64 {
    bit.unsigned_abs() as u64
}

const CLONE_NEWUSER: u64 = flag(libc::CLONE_NEWUSER);
const CLONE_NEWNS: u64 = flag(libc::CLONE_NEWNS);
const CLONE_NEWNET: u64 = flag(libc::CLONE_NEWNET);
const CLONE_NEWPID: u64 = flag(libc::CLONE_NEWPID);
const CLONE_NEWIPC: u64 = flag(libc::CLONE_NEWIPC);
const CLONE_NEWUTS: u64 = flag(libc::CLONE_NEWUTS);
const CLONE_NEWCGROUP: u64 = flag(libc::CLONE_NEWCGROUP);
/// `unshare(2)` only: `clone(2)` has its signal in this bit.
const CLONE_NEWTIME: u64 = 0x80;
const TIOCLINUX: u64 = 0x541c;
const AF_NETLINK: u64 = flag(libc::AF_NETLINK);
const IPPROTO_SCTP: u64 = flag(libc::IPPROTO_SCTP);
const IPPROTO_DCCP: u64 = flag(libc::IPPROTO_DCCP);
