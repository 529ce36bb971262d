//! Numbers of system calls, by name and by processor.

/// The architecture that numbers of calls belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    /// 32-bit pointers with the registers of `x86_64`.
    X32,
    X86,
    Aarch64,
    Arm,
}

/// The bit that distinguishes calls of x32 from those of `x86_64`, and the calls that have other numbers besides.
pub(crate) const X32_BIT: u32 = 0x4000_0000;
const X32_OWN: &[&str] = &[
    "rt_sigaction",
    "rt_sigreturn",
    "ioctl",
    "readv",
    "writev",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "execve",
    "ptrace",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigqueueinfo",
    "sigaltstack",
    "timer_create",
    "mq_notify",
    "kexec_load",
    "waitid",
    "set_robust_list",
    "get_robust_list",
    "vmsplice",
    "move_pages",
    "preadv",
    "pwritev",
    "rt_tgsigqueueinfo",
    "recvmmsg",
    "sendmmsg",
    "process_vm_readv",
    "process_vm_writev",
    "setsockopt",
    "getsockopt",
    "io_setup",
    "io_submit",
    "execveat",
    "preadv2",
    "pwritev2",
];
/// The number of the first of these.
const X32_OWN_FIRST: u32 = 512;

/// Calls that 32-bit programs of x86 can make by `socketcall`, too, and by `ipc`.
const BY_SOCKETCALL: &[&str] = &[
    "accept",
    "accept4",
    "bind",
    "connect",
    "getpeername",
    "getsockname",
    "getsockopt",
    "listen",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "send",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "socketpair",
];
const BY_IPC: &[&str] = &[
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "shmat",
    "shmctl",
    "shmdt",
    "shmget",
];

impl Arch {
    /// The processor that this program is for.
    pub(crate) const NATIVE: Self = match cfg!(target_arch = "aarch64") {
        true => Self::Aarch64,
        false => Self::X86_64,
    };

    /// What the kernel calls it: `AUDIT_ARCH_*`.
    pub(crate) const fn audit_number(self) -> u32 {
        match self {
            Self::X86_64 | Self::X32 => 0xc000_003e,
            Self::X86 => 0x4000_0003,
            Self::Aarch64 => 0xc000_00b7,
            Self::Arm => 0x4000_0028,
        }
    }

    /// Returns the number of a call, if this processor has it.
    pub(crate) fn number(self, name: &str) -> Option<u32> {
        let number = match self {
            Self::X86_64 => name.parse::<syscalls::x86_64::Sysno>().ok()?.id(),
            Self::X32 => return x32_number(name),
            Self::X86 => name.parse::<syscalls::x86::Sysno>().ok()?.id(),
            Self::Aarch64 => name.parse::<syscalls::aarch64::Sysno>().ok()?.id(),
            Self::Arm => name.parse::<syscalls::arm::Sysno>().ok()?.id(),
        };
        u32::try_from(number).ok()
    }

    /// Returns the number of the multiplexing call (such as `socketcall`) that also does this one, if there is one.
    pub(crate) fn common_door(self, name: &str) -> Option<u32> {
        let door = match self {
            Self::X86 if BY_SOCKETCALL.contains(&name) => "socketcall",
            Self::X86 if BY_IPC.contains(&name) => "ipc",
            _ => return None,
        };
        self.number(door)
    }
}

fn x32_number(name: &str) -> Option<u32> {
    if let Some(place) = X32_OWN.iter().position(|own| *own == name) {
        return Some(X32_BIT | (X32_OWN_FIRST + u32::try_from(place).ok()?));
    }
    Arch::X86_64.number(name).map(|number| X32_BIT | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_numbers_of_their_processor() {
        assert_eq!(Arch::X86_64.number("read"), Some(0));
        assert_eq!(Arch::X86.number("read"), Some(3));
        assert_eq!(Arch::Aarch64.number("read"), Some(63));
        assert_eq!(Arch::X32.number("read"), Some(X32_BIT));
        assert_eq!(Arch::X32.number("execve"), Some(X32_BIT | 520));
        assert_eq!(Arch::X32.number("pwritev2"), Some(X32_BIT | 547));
        assert_eq!(Arch::X86.common_door("socket"), Some(102));
        assert_eq!(Arch::X86_64.number("nothing_of_the_kind"), None);
    }
}
