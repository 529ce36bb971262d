//! Forks of a Zygote that have an address of their own: what they reach, and what not even their packages do.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::{Command, Stdio as ProcessStdio};
use std::sync::Arc;

use rig::python::{script, store, zygote};
use rig::{PATIENCE, Rig, python};
use sandbox::{ExitStatus, Neighbours, Network, Request, Sandbox, Stdio};

/// How many attempts `network_attacks.py` makes.
const ATTEMPTS: usize = 25;

const PORT: u16 = 4711;

fn on_bridge(mut request: Request) -> Request {
    request.network = Network::Veth;
    request
}

fn gateway(rig: &Rig) -> Ipv4Addr {
    rig.config.bridge.as_ref().unwrap().subnet.gateway()
}

/// Starts a program that was forked from a Zygote.
fn forked(rig: &Rig, request: Request) -> Arc<Sandbox> {
    let sandbox = rig.start(on_bridge(request));
    assert_eq!(sandbox.ancestry().len(), 1, "it is a fork");
    sandbox
}

fn ends_well(sandbox: &Sandbox) -> String {
    let exit = sandbox.wait(PATIENCE).unwrap();
    let [out, err] = sandbox.written().unwrap();
    let said = String::from_utf8_lossy(&[out.bytes, err.bytes].concat()).into_owned();
    assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
    said
}

/// A sandbox that listens and says nothing by itself.
fn neighbour(rig: &Rig) -> Arc<Sandbox> {
    let listen = "
import socket
tcp = socket.create_server(('', 4711))
print('up', flush=True)
while True: tcp.accept()[0].sendall(b'reached')";
    let sandbox = rig.start(on_bridge(python(listen)));
    Rig::wait_until("it listens", || {
        sandbox.written().unwrap()[0].bytes.starts_with(b"up")
    });
    sandbox
}

#[test]
fn privileged_a_fork_has_an_address_and_reaches_the_machine_and_nobody_else() {
    let rig = Rig::on_bridge(Neighbours::Apart);
    let packages = store(&[]);
    zygote(&rig, &[], packages.path());
    let neighbour = neighbour(&rig);
    let listener = TcpListener::bind((gateway(&rig), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let ask = format!(
        "import socket; own = socket.create_connection(('{}', {port})); print(own.recv(4).decode())
socket.create_server(('', 80)); print([name for _, name in socket.if_nameindex()])",
        gateway(&rig)
    );
    let sandbox = forked(&rig, script(&ask, &[], None));
    let (mut stream, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), sandbox.address().unwrap());
    stream.write_all(b"well").unwrap();
    assert_eq!(ends_well(&sandbox), "well\n['lo', 'eth0']\n");
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut attacks = script(include_str!("network_attacks.py"), &[], None);
    attacks.command.extend([
        neighbour.address().unwrap().to_string(),
        gateway(&rig).to_string(),
        local.local_addr().unwrap().port().to_string(),
        PORT.to_string(),
    ]);
    let said = ends_well(&forked(&rig, attacks));
    let bad: Vec<_> = said
        .lines()
        .filter(|line| !line.ends_with(": refused"))
        .collect();
    assert_eq!(bad, ["done"], "{said}");
    assert_eq!(said.lines().count() - 1, ATTEMPTS, "{said}");
    assert_eq!(rig.sandboxes().zygote_counts().replaced, 0);
}

/// A port of a fork goes with it, its address is used again, and it is as new for who has it next.
#[test]
fn privileged_ports_of_forks_are_removed_and_used_again() {
    let mut rig = Rig::on_bridge(Neighbours::Apart);
    let packages = store(&[]);
    zygote(&rig, &[], packages.path());
    // The bridge, and eight ports.
    let is_full = |rig: &Rig| rig.devices().len() == 9;
    Rig::wait_until("ports are ready", || is_full(&rig));
    let text = "
print([line.split(':')[0].strip() for line in open('/proc/self/net/dev').readlines()[2:]])
print(len(open('/proc/self/net/arp').readlines()) - 1)";
    // More than there are addresses.
    for _ in 0..40 {
        let said = ends_well(&forked(&rig, script(text, &[], None)));
        assert_eq!(said, "['lo', 'eth0']\n0\n");
    }
    Rig::wait_until("the former ports are gone", || is_full(&rig));
    // One that goes on when its program ends, with its address.
    let listen = "import socket\nserver = socket.create_server(('', 4711))
while True: server.accept()[0].sendall(b'here')";
    let sandbox = forked(&rig, script(listen, &[], None));
    let (id, address) = (sandbox.id().to_owned(), sandbox.address().unwrap());
    drop(sandbox);
    rig.close();
    rig.reopen();
    assert_eq!(rig.sandboxes().get(&id).unwrap().address(), Some(address));
    let mut said = String::new();
    Rig::wait_until("it answers", || {
        let stream = std::net::TcpStream::connect_timeout(&(address, PORT).into(), PATIENCE);
        stream.is_ok_and(|mut stream| stream.read_to_string(&mut said).is_ok())
    });
    assert_eq!(said, "here");
    rig.sandboxes().end_all(PATIENCE).unwrap();
    rig.close();
    assert_eq!(rig.devices(), [""; 0]);
    rig.reopen();
}

/// Keeps the rights that its Zygote has in the network of a program, and attacks with them, while the program waits.
const EVIL: &str = "
import fcntl, os, socket, struct, time

busy = False
def device(number, data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, number, b'eth0'.ljust(16, b'\\0') + data)
def address(text):
    return struct.pack('=HH4s8x', socket.AF_INET, 0, socket.inet_aton(text))
def send(to, text):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.sendto(text, to)
def netlink(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as own:
        own.send(struct.pack('=IHHII', 16 + len(body), kind, flags, 1, 0) + body)
        code = struct.unpack_from('=i', own.recv(4096), 16)[0]
        if code: raise OSError(-code, os.strerror(-code))
def metadata():
    deadline = time.monotonic() + 30
    while True:
        try:
            netlink(25, 5, struct.pack('=BBBBBBBBI', 2, 16, 0, 0, 254, 0, 255, 0, 0)
                + struct.pack('=HH4s', 8, 1, socket.inet_aton('169.254.0.0')))
            break
        except ProcessLookupError: # the route comes after the address
            if time.monotonic() > deadline: raise
    send(('169.254.169.254', 80), b'metadata')
def raw(neighbour, gateway):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as own:
        udp = struct.pack('!HHHH', 4711, 4711, 8 + 3, 0) + b'raw'
        ip = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
            socket.inet_aton(neighbour), socket.inet_aton(gateway))
        own.sendto(ip + udp, (gateway, 0))
def attack():
    global busy
    if busy: return
    busy = True
    if os.fork(): return
    done = []
    try:
        neighbour, gateway = open('/packages/evil==1/targets').read().split()
        deadline = time.monotonic() + 30
        while True:
            try:
                own = socket.inet_ntoa(device(0x8915, bytes(16))[20:24]); break  # SIOCGIFADDR
            except OSError:
                if time.monotonic() > deadline: raise
        mac = device(0x8927, bytes(16))[18:24]
        def hardware(bytes_of_it):
            device(0x8924, struct.pack('=H6s8x', 1, bytes_of_it))
        tries = [
            ('raw', lambda: raw(neighbour, gateway)),
            ('metadata', metadata),
            ('address', lambda: (device(0x8916, address(neighbour)), send((gateway, 4711), b'address'))),
            ('hardware', lambda: (hardware(b'\\2\\x73' + socket.inet_aton(neighbour)), send((gateway, 4711), b'hardware'))),
            ('restore', lambda: (hardware(mac), device(0x8916, address(own)), device(0x891c, address('255.255.255.224')))),
        ]
        for name, act in tries:
            try: act(); done.append(name)
            except OSError as error: done.append(f'{name}: {error}')
    finally:
        with open('/tmp/new', 'w') as said: said.write(' '.join(done))
        os.rename('/tmp/new', '/tmp/attacked')
        os._exit(0)
os.register_at_fork(after_in_child=attack)
";

/// Prints who sends frames to a bridge, until its input ends: hardware address, address, and address of the receiver.
const CAPTURE: &str = "
import select, socket, sys
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
frames.bind((sys.argv[1], 0))
print('up', flush=True)
seen, ends = set(), False
while True:
    ready = select.select([frames, sys.stdin], [], [], 0 if ends else None)[0]
    if frames not in ready:
        if ends: break
        ends = True
        continue
    frame = frames.recv(2048)
    source = {'0800': 26, '0806': 28}.get(frame[12:14].hex())
    if source:
        to = source + (4 if source == 26 else 10)
        ip = lambda at: socket.inet_ntoa(frame[at:at + 4])
        seen.add(f'{frame[6:12].hex()} {ip(source)} {ip(to)}')
for line in sorted(seen): print(line)";

/// Its Zygote's packages have all rights in the network of a fork. What they send as others does not arrive.
#[test]
fn privileged_a_package_with_rights_passes_for_nobody_else() {
    let rig = Rig::on_bridge(Neighbours::Apart);
    let packages = store(&[("evil==1", EVIL)]);
    let neighbour = neighbour(&rig);
    let other = neighbour.address().unwrap();
    let targets = packages.path().join("evil==1/targets");
    std::fs::write(targets, format!("{other} {}", gateway(&rig))).unwrap();
    zygote(&rig, &["evil==1"], packages.path());
    let bridge = &rig.config.bridge.as_ref().unwrap().name;
    let mut capture = Command::new("python3")
        .args(["-c", CAPTURE, bridge])
        .stdin(ProcessStdio::piped())
        .stdout(ProcessStdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(capture.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    let listener = UdpSocket::bind((gateway(&rig), 0)).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = format!(
        "import evil, os, socket, time
deadline = time.monotonic() + 60
while not os.path.exists('/tmp/attacked') and time.monotonic() < deadline: time.sleep(0.01)
print(open('/tmp/attacked').read())
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'last', ('{}', {port}))",
        gateway(&rig)
    );
    let sandbox = forked(&rig, script(&text, &["evil==1"], Some(packages.path())));
    let own = sandbox.address().unwrap();
    // It had the rights.
    assert_eq!(
        ends_well(&sandbox),
        "raw metadata address hardware restore\n"
    );
    // What is its own arrives, behind all that it has sent before.
    let mut bytes = [0; 16];
    let (len, from) = listener.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..len], from.ip()), (&b"last"[..], own.into()));
    drop(capture.stdin.take());
    let mut seen: BTreeSet<String> = lines.map(Result::unwrap).collect();
    assert!(capture.wait().unwrap().success());
    let of = |address: Ipv4Addr| {
        let [a, b, c, d] = address.octets();
        format!("0273{a:02x}{b:02x}{c:02x}{d:02x} {address}")
    };
    let machine = gateway(&rig);
    seen.retain(|sender| !sender.starts_with(&of(machine)));
    let expected = format!("{} {machine}", of(own));
    assert_eq!(seen, BTreeSet::from([expected]));
}

/// A Zygote says which process its child is. One that is in a network of others gets no address.
#[test]
fn privileged_a_zygote_cannot_have_others_be_given_a_device() {
    let rig = Rig::on_bridge(Neighbours::Apart);
    let lie = "
import os, socket, sys
def send_fds(control, buffers, descriptors):
    if descriptors:
        descriptors = [os.pidfd_open(int(open('/packages/lies==1/victim').read()))]
    return socket.send_fds(control, buffers, descriptors)
sys.modules['__main__'].send_fds = send_fds";
    let packages = store(&[("lies==1", lie)]);
    let other = rig.start(python(
        "import os, socket, time
while not os.path.exists('/tmp/look'): time.sleep(0.01)
print([name for _, name in socket.if_nameindex()])",
    ));
    std::fs::write(
        packages.path().join("lies==1/victim"),
        other.pid().to_string(),
    )
    .unwrap();
    zygote(&rig, &["lies==1"], packages.path());
    let request = on_bridge(script(
        "print('fresh')",
        &["lies==1"],
        Some(packages.path()),
    ));
    let sandbox = rig.sandboxes().create(request, Stdio::Captured).unwrap();
    assert!(sandbox.ancestry().is_empty());
    assert_eq!(ends_well(&sandbox), "fresh\n");
    assert_eq!(rig.sandboxes().zygote_counts().replaced, 1);
    let null = || std::fs::File::open("/dev/null").unwrap().into();
    let touch = ["/bin/touch", "/tmp/look"].map(str::to_owned);
    let stdio = [null(), null(), null()];
    let mut touch = rig.sandboxes().exec(&other, &touch, stdio).unwrap();
    touch.wait(PATIENCE).unwrap();
    assert_eq!(ends_well(&other), "['lo']\n");
}
