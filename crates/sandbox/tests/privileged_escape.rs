//! Nobody gets out: programs that try to, inside, and what comes of it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use rig::{PATIENCE, Rig, python, shell};
use sandbox::{Cause, ExitStatus, Neighbours, Network, Request};

const ATTACKS: &str = include_str!("attacks.py");

/// How many attempts the program makes, so that none is left out unseen.
const ATTEMPTS: usize = 98;

fn attack(network: Network) {
    let rig = match network {
        Network::Veth => Rig::on_bridge(Neighbours::Apart),
        Network::None | Network::Host => Rig::new(),
    };
    let name = format!("sandbox-test-{}-{network:?}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let outside = std::process::id().to_string();
    let command = ["/usr/bin/python3", "-I", "-c", ATTACKS, &outside, &name];
    let mut request = Request::new("host", &command);
    request.network = network;
    let (exit, said) = rig.run(request);
    assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
    refused(&said);
}

fn refused(said: &str) {
    let attempts: Vec<&str> = said.lines().collect();
    let bad: Vec<_> = attempts
        .iter()
        .filter(|line| !line.ends_with(": refused"))
        .collect();
    assert_eq!(bad, [&"done"], "{said}");
    assert_eq!(attempts.len() - 1, ATTEMPTS, "{said}");
}

#[test]
fn no_attempt_succeeds_without_a_network() {
    attack(Network::None);
}

#[test]
fn no_attempt_succeeds_on_the_bridge() {
    attack(Network::Veth);
}

#[test]
fn no_attempt_succeeds_on_the_hosts_network() {
    attack(Network::Host);
}

/// Calls that only an intruder makes end the program.
#[test]
fn what_only_an_intruder_does_ends_the_program() {
    let rig = Rig::new();
    let calls = [
        "304, 0, 0, 0",
        "175, 0, 0, 0",
        "313, 0, 0, 0",
        "246, 0, 0, 0, 0",
        "169, 0, 0, 0",
        "167, 0, 0",
    ];
    for call in calls {
        let script = format!("import ctypes; ctypes.CDLL(None).syscall({call}); print('alive')");
        let (exit, said) = rig.run(python(&script));
        let killed = ExitStatus::Signal(nix::libc::SIGSYS);
        assert_eq!((exit.status, said.as_str()), (killed, ""), "{call}");
    }
}

/// A program of 32 bits has other numbers for the same calls.
#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_32_bits_end_the_program() {
    let rig = Rig::new();
    // mov eax, 20 (getpid of 32 bits); int 0x80; ret
    let script = r"
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(b'\xb8\x14\x00\x00\x00\xcd\x80\xc3')
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())";
    let (exit, said) = rig.run(python(script));
    // SIGSEGV from a kernel that knows no such calls.
    let ended = [nix::libc::SIGSYS, nix::libc::SIGSEGV].map(ExitStatus::Signal);
    assert!(ended.contains(&exit.status), "{exit:?} {said}");
}

#[test]
fn sandboxes_have_nothing_in_common() {
    let rig = Rig::new();
    let make = "
import ctypes, os, socket, time
open('/tmp/secret', 'w').write('secret')
open('/dev/shm/secret', 'w').write('secret')
libc = ctypes.CDLL(None, use_errno=True)
assert libc.shmget(4711, 4096, 0o1666) >= 0
assert libc.msgget(4711, 0o1666) >= 0 and libc.semget(4711, 1, 0o1666) >= 0
assert libc.mq_open(b'/secret', os.O_CREAT | os.O_RDWR, 0o666, None) >= 0
own = socket.socket(socket.AF_UNIX); own.bind('\\0secret'); own.listen()
port = socket.create_server(('127.0.0.1', 4711))
print('up', os.getuid(), flush=True); time.sleep(1000)";
    let look = "
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def reach(family, address):
    try: socket.socket(family).connect(address); return True
    except OSError: return False
print(os.listdir('/tmp'), os.listdir('/dev/shm'), libc.shmget(4711, 4096, 0o666), libc.msgget(4711, 0o666),
    libc.semget(4711, 1, 0o666), libc.mq_open(b'/secret', os.O_RDWR),
    reach(socket.AF_UNIX, '\\0secret'), reach(socket.AF_INET, ('127.0.0.1', 4711)), os.getuid())";
    let one = rig.start(python(make));
    let said = || String::from_utf8(one.written().unwrap()[0].bytes.clone()).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while !said().starts_with("up") {
        assert!(
            std::time::Instant::now() < deadline,
            "{said:?}",
            said = one.written()
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let other = rig.python(look);
    let (seen, user) = other.trim().rsplit_once(' ').unwrap();
    assert_eq!(seen, "[] [] -1 -1 -1 -1 False False");
    assert_ne!(said().trim(), format!("up {user}"));
}

/// The kernel counts buffers of TCP apart from other memory, where limits are in version 1.
#[test]
fn buffers_of_sockets_are_memory_too() {
    let rig = Rig::new();
    let fill = "
import socket
server = socket.create_server(('127.0.0.1', 0), backlog=200)
kept, sent, piece = [], 0, b'x' * (1 << 20)
for _ in range(100):
    own = socket.create_connection(server.getsockname())
    kept += [own, server.accept()[0]]
    own.setblocking(False)
    try:
        while True: sent += own.send(piece)
    except BlockingIOError:
        pass
print(sent >> 20)";
    let mut request = python(fill);
    request.limits.memory_bytes = 64 << 20;
    let (exit, said) = rig.run(request);
    // Where they are counted together, the program may be killed for it.
    if exit.cause == Some(Cause::Memory) {
        return;
    }
    assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
    let mebibytes: u32 = said.trim().parse().unwrap();
    assert!(mebibytes <= 80, "{mebibytes} MiB");
}

/// What is used again is as new.
#[test]
fn nothing_of_a_former_sandbox_is_left_for_the_next() {
    let rig = Rig::new();
    let leave = "
import os, socket
open('/tmp/secret', 'w').write('secret')
own = socket.socket(socket.AF_UNIX); own.bind('\\0secret'); own.listen()
if os.fork() == 0:
    os.setsid()
    while True: pass";
    let look = "
import os, socket
try: socket.socket(socket.AF_UNIX).connect('\\0secret'); print('there')
except ConnectionRefusedError: print(os.listdir('/tmp'), [n for n in os.listdir('/proc') if n.isdigit()])";
    for _ in 0..3 {
        let (exit, _) = rig.run(python(leave));
        assert_eq!(exit.status, ExitStatus::Code(0));
        let groups = rig.groups().len();
        assert_eq!(rig.python(look), "[] ['1']\n");
        assert_eq!(rig.groups().len(), groups, "groups are used again");
    }
    // A limit of one is none of the next.
    let mut bounded = shell("true");
    bounded.limits.memory_bytes = 8 << 20;
    bounded.limits.cpu_millis = Some(100);
    assert_eq!(rig.run(bounded).0.status, ExitStatus::Code(0));
    assert_eq!(rig.python("print(len(b'x' * (64 << 20)))"), "67108864\n");
}
