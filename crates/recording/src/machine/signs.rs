//! What a machine shows of itself when it is ready, and where that is looked for.

use std::fmt;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rawio::unix_socket::connect_within;

/// How long one look for the banner of SSH may take. QEMU takes the connection before the guest does.
const BANNER_PATIENCE: Duration = Duration::from_millis(200);

/// How long QEMU may take to have room for a connection, at one look.
const ACCEPTED: Duration = Duration::from_millis(200);

/// How often the guest agent is called; it answers the first call that it receives.
const CALL_EVERY: Duration = Duration::from_millis(500);

/// Longest message of QEMU or the guest agent that is understood.
const MESSAGE_MAX: usize = 64 << 10;

/// What a virtual machine shows when it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineSign {
    /// The SSH server of the guest greets.
    Ssh,
    /// QEMU sends this event, such as `NIC_RX_FILTER_CHANGED`.
    QmpEvent(String),
    /// The guest agent responds.
    GuestAgent,
}

impl fmt::Display for MachineSign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssh => f.write_str("the guest's SSH server to greet"),
            Self::QmpEvent(event) => write!(f, "QEMU's event {event}"),
            Self::GuestAgent => f.write_str("the guest agent to answer"),
        }
    }
}

/// Looks for the signs of one boot.
#[derive(Debug)]
pub(crate) struct Signs {
    ssh: Option<u16>,
    qmp: PathBuf,
    agent: PathBuf,
    /// The connection to QEMU or the agent, once it is established.
    talk: Mutex<Option<Talk>>,
}

#[derive(Debug)]
struct Talk {
    stream: UnixStream,
    heard: Vec<u8>,
    called: Option<Instant>,
}

impl Signs {
    pub(crate) const fn new(qmp: PathBuf, agent: PathBuf, ssh: Option<u16>) -> Self {
        Self {
            ssh,
            qmp,
            agent,
            talk: Mutex::new(None),
        }
    }

    /// Returns whether a sign is seen. It waits for no more than a moment.
    pub(crate) fn seen(&self, sign: &MachineSign) -> bool {
        match sign {
            MachineSign::Ssh => self.ssh.is_some_and(greets),
            MachineSign::QmpEvent(event) => self.talks(&self.qmp, |talk| {
                talk.begin(b"{\"execute\":\"qmp_capabilities\"}\n");
                talk.hears(|message| message["event"] == event.as_str())
            }),
            MachineSign::GuestAgent => self.talks(&self.agent, |talk| {
                talk.call(b"{\"execute\":\"guest-ping\"}\n");
                talk.hears(|message| message.get("return").is_some())
            }),
        }
    }

    /// Goes on with the conversation at a socket, which it begins if it can.
    fn talks(&self, path: &Path, go_on: impl FnOnce(&mut Talk) -> bool) -> bool {
        let mut talk = self.talk.lock();
        if talk.is_none() {
            *talk = Talk::with(path);
        }
        talk.as_mut().is_some_and(go_on)
    }
}

impl Talk {
    /// Connects; `None` if no process listens yet.
    fn with(path: &Path) -> Option<Self> {
        let stream = connect_within(path, ACCEPTED).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            heard: Vec::new(),
            called: None,
        })
    }

    /// Says something once.
    fn begin(&mut self, words: &[u8]) {
        if self.called.is_none() {
            self.called = Some(Instant::now());
            let _said = self.stream.write_all(words);
        }
    }

    /// Says something every now and then. What does not fit into the socket is not needed.
    fn call(&mut self, words: &[u8]) {
        if self.called.is_none_or(|last| last.elapsed() >= CALL_EVERY) {
            self.called = Some(Instant::now());
            let _said = self.stream.write_all(words);
        }
    }

    /// Returns whether one of the messages that came is the one.
    fn hears(&mut self, wanted: impl Fn(&serde_json::Value) -> bool) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => self.heard.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            }
            if self.heard.len() > MESSAGE_MAX {
                break;
            }
        }
        let mut found = false;
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            // The agent may begin with a byte that flushes its parser.
            let line = line.strip_prefix(b"\xff").unwrap_or(&line);
            found |= serde_json::from_slice(line).is_ok_and(|message| wanted(&message));
        }
        if self.heard.len() > MESSAGE_MAX {
            self.heard.clear();
        }
        found
    }
}

/// Returns whether an SSH server greets at a port of this machine.
fn greets(port: u16) -> bool {
    let greeting = || -> std::io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, BANNER_PATIENCE)?;
        stream.set_read_timeout(Some(BANNER_PATIENCE))?;
        let mut banner = [0; 4];
        stream.read_exact(&mut banner)?;
        Ok(&banner == b"SSH-")
    };
    greeting().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn signs(dir: &std::path::Path) -> Signs {
        Signs::new(dir.join("qmp"), dir.join("agent"), None)
    }

    #[test]
    fn an_event_of_qemu_is_seen_once_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let signs = signs(dir.path());
        let sign = MachineSign::QmpEvent("RESUME".to_owned());
        assert!(!signs.seen(&sign), "nobody listens");
        let listener = UnixListener::bind(dir.path().join("qmp")).unwrap();
        assert!(!signs.seen(&sign));
        let (mut qemu, _) = listener.accept().unwrap();
        let mut asked = [0; 31];
        qemu.read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"{\"execute\":\"qmp_capabilities\"}\n");
        qemu.write_all(b"{\"return\":{}}\n{\"event\":\"STOP\"}\n{\"event\":\"RES")
            .unwrap();
        assert!(!signs.seen(&sign));
        qemu.write_all(b"UME\"}\n").unwrap();
        assert!(signs.seen(&sign));
    }

    #[test]
    fn the_agent_answers_a_call() {
        let dir = tempfile::tempdir().unwrap();
        let signs = signs(dir.path());
        let listener = UnixListener::bind(dir.path().join("agent")).unwrap();
        assert!(!signs.seen(&MachineSign::GuestAgent));
        let (mut agent, _) = listener.accept().unwrap();
        agent.write_all(b"\xff{\"return\": {}}\n").unwrap();
        assert!(signs.seen(&MachineSign::GuestAgent));
    }

    #[test]
    fn only_ssh_greets_as_ssh() {
        for (banner, is_ssh) in [
            ("SSH-2.0-x\r\n", true),
            ("220 mail\r\n", false),
            ("", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(banner.as_bytes()).unwrap();
            });
            assert_eq!(greets(port), is_ssh, "{banner:?}");
            server.join().unwrap();
        }
    }
}
