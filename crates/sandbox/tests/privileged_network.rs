//! Sandboxes with a network of their own: what they reach, and what they do not.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;

use rig::{PATIENCE, Rig, host_base, python};
use sandbox::{BridgeConfig, ExitStatus, Neighbours, Network, Request, Sandbox, Sandboxes, Stdio};

const ATTACKS: &str = include_str!("network_attacks.py");

/// How many attempts the program makes, so that none is left out unseen.
const ATTEMPTS: usize = 25;

/// Where a sandbox listens that others try to reach.
const PORT: u16 = 4711;

/// Answers each connection with its address, and tells what else it receives.
const LISTEN: &str = "
import select, socket
tcp = socket.create_server(('', 4711))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('', 4711))
print('up', flush=True)
while True:
    for ready in select.select([tcp, udp], [], [])[0]:
        if ready is udp:
            print('datagram', udp.recvfrom(100), flush=True)
        else:
            with tcp.accept()[0] as peer:
                print('connection', peer.getpeername()[0], flush=True)
                peer.sendall(socket.inet_aton(peer.getsockname()[0]))";

fn on_bridge(mut request: Request) -> Request {
    request.network = Network::Veth;
    request
}

fn said(sandbox: &Sandbox) -> String {
    let [out, err] = sandbox.written().unwrap();
    String::from_utf8([out.bytes, err.bytes].concat()).unwrap()
}

/// Starts a sandbox that listens.
fn listener(rig: &Rig) -> (Arc<Sandbox>, Ipv4Addr) {
    let sandbox = rig.start(on_bridge(python(LISTEN)));
    Rig::wait_until("it listens", || said(&sandbox).starts_with("up"));
    let address = sandbox.address().unwrap();
    (sandbox, address)
}

/// Connects to a sandbox and returns what it says its address is.
fn reach(address: Ipv4Addr) -> Ipv4Addr {
    let mut stream = TcpStream::connect_timeout(&(address, PORT).into(), PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    bytes.into()
}

fn gateway(rig: &Rig) -> Ipv4Addr {
    rig.config.bridge.as_ref().unwrap().subnet.gateway()
}

#[test]
fn privileged_a_sandbox_and_the_machine_reach_each_other() {
    let rig = Rig::on_bridge(Neighbours::Apart);
    let (_sandbox, address) = listener(&rig);
    assert_eq!(reach(address), address);
    let listener = TcpListener::bind((gateway(&rig), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "import socket; own = socket.create_connection(('{}', {port})); print(own.recv(4).decode())",
        gateway(&rig)
    );
    let other = rig.start(on_bridge(python(&script)));
    let (mut stream, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), other.address().unwrap());
    stream.write_all(b"well").unwrap();
    assert_eq!(
        other.wait(PATIENCE).unwrap().status,
        ExitStatus::Code(0),
        "{}",
        said(&other)
    );
    assert_eq!(said(&other), "well\n");
}

#[test]
fn privileged_a_sandbox_reaches_no_neighbour_and_passes_for_none() {
    let rig = Rig::on_bridge(Neighbours::Apart);
    let (neighbour, address) = listener(&rig);
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let local_port = local.local_addr().unwrap().port().to_string();
    let arguments = [address.to_string(), gateway(&rig).to_string()];
    let command = [
        "/usr/bin/python3",
        "-I",
        "-c",
        ATTACKS,
        &arguments[0],
        &arguments[1],
        &local_port,
        &PORT.to_string(),
    ];
    let (exit, told) = rig.run(on_bridge(Request::new("host", &command)));
    assert_eq!(exit.status, ExitStatus::Code(0), "{told}");
    let attempts: Vec<&str> = told.lines().collect();
    let bad: Vec<_> = attempts
        .iter()
        .filter(|line| !line.ends_with(": refused"))
        .collect();
    assert_eq!(bad, [&"done"], "{told}");
    assert_eq!(attempts.len() - 1, ATTEMPTS, "{told}");
    // What comes from the machine does arrive, and it is all that does.
    let socket = UdpSocket::bind((gateway(&rig), 0)).unwrap();
    socket.send_to(b"last", (address, PORT)).unwrap();
    Rig::wait_until("the neighbour receives it", || {
        said(&neighbour).contains("last")
    });
    let received = said(&neighbour);
    let received: Vec<_> = received.lines().skip(1).collect();
    assert_eq!(received.len(), 1, "{received:?}");
}

#[test]
fn privileged_neighbours_reach_each_other_where_that_is_asked_for() {
    let rig = Rig::on_bridge(Neighbours::Reachable);
    let (neighbour, address) = listener(&rig);
    let script = format!(
        "import socket; print(socket.inet_ntoa(socket.create_connection(('{address}', {PORT})).recv(4)))"
    );
    let (exit, told) = rig.run(on_bridge(python(&script)));
    assert_eq!(exit.status, ExitStatus::Code(0), "{told}");
    assert_eq!(told, format!("{address}\n"));
    assert!(said(&neighbour).contains("connection"));
}

/// A connection that was closed keeps its port for a minute, and would keep it from the next sandbox.
#[test]
fn privileged_nothing_of_a_former_network_is_left_for_the_next() {
    let rig = Rig::on_bridge(Neighbours::Apart);
    let bind = "
import socket
own = socket.socket(); own.bind(('', 4711)); own.listen()
peer = socket.create_connection(('127.0.0.1', 4711)); own.accept()[0].close(); peer.recv(1)
print([line.split(':')[0].strip() for line in open('/proc/self/net/dev').readlines()[2:]])
print(len(open('/proc/self/net/arp').readlines()) - 1)";
    for _ in 0..3 {
        let (exit, told) = rig.run(python(bind));
        assert_eq!(
            (exit.status, told.as_str()),
            (ExitStatus::Code(0), "['lo']\n0\n")
        );
    }
    // As many as are made in advance, and some more.
    for _ in 0..20 {
        let (exit, told) = rig.run(on_bridge(python(bind)));
        let expected = "['lo', 'eth0']\n0\n";
        assert_eq!(
            (exit.status, told.as_str()),
            (ExitStatus::Code(0), expected)
        );
    }
}

/// Devices are made in advance and removed after the end, so there are always some, and never more.
#[test]
fn privileged_a_thousand_networks_leave_no_device_and_no_namespace() {
    let mut rig = Rig::on_bridge(Neighbours::Apart);
    // The bridge, and eight ports.
    let is_full = || rig.devices().len() == 9;
    Rig::wait_until("ports are ready", is_full);
    let before = namespaces_open();
    for _ in 0..1000 {
        let request = on_bridge(Request::new("host", &["/bin/true"]));
        let sandbox = rig.sandboxes().create(request, Stdio::Null).unwrap();
        sandbox.wait(PATIENCE).unwrap();
        assert!(rig.devices().len() <= 30);
    }
    Rig::wait_until("the former ports are gone", is_full);
    // Other tests of this program have some.
    let spread = namespaces_open().abs_diff(before);
    assert!(spread < 300, "{spread} more than {before}");
    rig.close();
    assert_eq!(rig.devices(), [""; 0]);
    rig.reopen();
}

/// The network namespaces that this program has descriptors of.
fn namespaces_open() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("net:["))
        .count()
}

#[test]
fn privileged_addresses_are_used_again_and_never_twice() {
    let mut rig = Rig::on_bridge(Neighbours::Apart);
    rig.close();
    let first = Ipv4Addr::from_bits(gateway(&rig).to_bits() - 1);
    let small = format!("{first}/29");
    rig.config.bridge.as_mut().unwrap().subnet = small.parse().unwrap();
    rig.reopen();
    let sleep = || on_bridge(Request::new("host", &["/bin/sleep", "1000"]));
    let mut alive: Vec<_> = (0..5).map(|_| rig.start(sleep())).collect();
    let mut addresses: Vec<_> = alive.iter().map(|one| one.address().unwrap()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 5);
    let create = || rig.sandboxes().create(sleep(), Stdio::Null);
    let error = create().unwrap_err().to_string();
    assert!(
        error.contains("all addresses of") && error.contains("end sandboxes"),
        "{error}"
    );
    for _ in 0..20 {
        let ended = alive.remove(0);
        ended.kill().unwrap();
        ended.wait(PATIENCE).unwrap();
        let next = create().unwrap();
        assert_eq!(next.address(), ended.address(), "the only one that is free");
        alive.push(next);
    }
}

#[test]
fn privileged_a_sandbox_keeps_its_network_when_its_program_ends() {
    let mut rig = Rig::on_bridge(Neighbours::Apart);
    let (one, address) = listener(&rig);
    let id = one.id().to_owned();
    drop(one);
    rig.close();
    // The bridge and the one port that is in use.
    assert_eq!(rig.devices().len(), 2, "{:?}", rig.devices());
    assert_eq!(reach(address), address);
    rig.reopen();
    assert_eq!(reach(address), address);
    let found = rig.sandboxes().get(&id).unwrap();
    assert_eq!(found.address(), Some(address));
    for _ in 0..28 {
        let (other, _) = rig.run(on_bridge(Request::new("host", &["/bin/true"])));
        assert_eq!(other.status, ExitStatus::Code(0));
    }
    assert_eq!(reach(address), address);
    // Settings that would cut it off are refused.
    rig.close();
    let mut other = rig.config.clone();
    other.bridge.as_mut().unwrap().subnet = "10.63.0.0/24".parse().unwrap();
    let error = Sandboxes::open(other.clone()).unwrap_err().to_string();
    assert!(error.contains("with other settings"), "{error}");
    assert_eq!(reach(address), address);
    // One that does without bridges leaves it, and it goes with its last sandbox.
    other.bridge = None;
    let without = Sandboxes::open(other.clone()).unwrap();
    assert_eq!(reach(address), address);
    without.add_base(&host_base()).unwrap();
    let request = on_bridge(Request::new("host", &["/bin/true"]));
    let error = without.create(request, Stdio::Null).unwrap_err();
    assert!(error.to_string().contains("`subnet`"), "{error}");
    without.end_all(PATIENCE).unwrap();
    drop(without);
    drop(Sandboxes::open(other).unwrap());
    assert_eq!(rig.devices(), [""; 0]);
    rig.reopen();
}

#[test]
fn privileged_a_device_of_others_is_left_alone() {
    let mut rig = Rig::on_bridge(Neighbours::Apart);
    rig.close();
    let name = rig.config.bridge.clone().unwrap().name;
    let ip = |arguments: &[&str]| {
        let done = Command::new("ip").args(arguments).status().unwrap();
        assert!(done.success(), "{arguments:?}");
    };
    ip(&["link", "add", &name, "type", "bridge"]);
    let error = Sandboxes::open(rig.config.clone()).unwrap_err().to_string();
    assert!(
        error.contains("of another program") && error.contains("`bridge`"),
        "{error}"
    );
    assert_eq!(rig.devices(), [name.as_str()]);
    ip(&["link", "del", &name]);
    for wrong in ["", "longer-than-that", "UPPER", "1", "a/b"] {
        let mut config = rig.config.clone();
        let bridge = config.bridge.take().unwrap();
        config.bridge = Some(BridgeConfig {
            name: wrong.to_owned(),
            ..bridge
        });
        let error = Sandboxes::open(config).unwrap_err().to_string();
        assert!(error.contains("is no name for a bridge"), "{error}");
    }
    rig.reopen();
}
