//! Detecting the end of a first boot from outside: the container belongs to the user, so nothing in
//! it is changed, and no connections are made to it.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use engine::Containerd;

use super::SNAPSHOTTER;
use host::run_dir::process_start;
use recording::until::Until;

/// The state of a socket that is listened on, as `/proc/PID/net/tcp` writes it (TCP_LISTEN).
const LISTENS: &str = "0A";

/// What ends a first boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing was read for so long.
    Quiet(Duration),
    /// So long after the first byte was read.
    After(Duration),
    /// Its first process ended.
    Exit,
    /// A process in its network listens on this port.
    Tcp(u16),
}

impl TryFrom<&Until> for Ending {
    type Error = anyhow::Error;

    fn try_from(until: &Until) -> anyhow::Result<Self> {
        match until {
            Until::Quiet(time) => Ok(Self::Quiet(*time)),
            Until::After(time) => Ok(Self::After(*time)),
            Until::Exit => Ok(Self::Exit),
            Until::Tcp(port) => Ok(Self::Tcp(*port)),
            other => bail!(
                "{other} is not supported for first boots: use quiet:SECS, after:SECS, exit or \
                 tcp:PORT"
            ),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quiet(time) => write!(f, "quiet:{}", time.as_secs_f64()),
            Self::After(time) => write!(f, "after:{}", time.as_secs_f64()),
            Self::Exit => f.write_str("exit"),
            Self::Tcp(port) => write!(f, "tcp:{port}"),
        }
    }
}

/// Watches one container.
#[derive(Debug)]
pub(super) struct Watcher<'a> {
    containerd: &'a Path,
    /// `namespace/number/name`, as containerd names a snapshot; a container's is called like it.
    key: &'a str,
    client: Option<Containerd>,
    first: Option<Process>,
}

/// A process, distinguished from a later one with the same number.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: u32,
    /// `None` if it had ended when it was found.
    started: Option<u64>,
}

impl Process {
    fn of(pid: u32) -> Self {
        let started = process_start(pid).ok();
        Self { pid, started }
    }

    fn has_ended(self) -> bool {
        self.started.is_none() || process_start(self.pid).ok() != self.started
    }
}

impl<'a> Watcher<'a> {
    pub(super) const fn new(containerd: &'a Path, key: &'a str) -> Self {
        Self {
            containerd,
            key,
            client: None,
            first: None,
        }
    }

    /// Returns whether the boot is over: it read first at `first_read` and had its last request at
    /// `last_event`, both `None` before the first byte was read. A container that was created and not
    /// started is silent, too, and its runtime takes some time to start its first process.
    pub(super) fn sees_end(
        &mut self,
        ending: Ending,
        first_read: Option<Instant>,
        last_event: Option<Instant>,
    ) -> bool {
        match ending {
            Ending::Quiet(time) => last_event.is_some_and(|last| last.elapsed() >= time),
            Ending::After(time) => first_read.is_some_and(|first| first.elapsed() >= time),
            Ending::Exit => self.first().is_some_and(Process::has_ended),
            Ending::Tcp(port) => self.first().is_some_and(|first| listens(first.pid, port)),
        }
    }

    /// Returns whether the container has, or had, a first process.
    pub(super) fn has_started(&mut self) -> bool {
        self.first().is_some()
    }

    /// Returns the first process of the container; containerd is asked until it knows.
    fn first(&mut self) -> Option<Process> {
        if self.first.is_none() {
            match self.ask() {
                Ok(pid) => self.first = pid.map(Process::of),
                Err(error) => log::debug!("looking for the container of {}: {error:#}", self.key),
            }
        }
        self.first
    }

    fn ask(&mut self) -> anyhow::Result<Option<u32>> {
        let mut parts = self.key.splitn(3, '/');
        let (namespace, name) = (parts.next().unwrap_or_default(), parts.nth(1));
        let client = match &self.client {
            Some(client) => client,
            None => {
                let client = Containerd::connect(self.containerd, namespace, SNAPSHOTTER)?;
                self.client.insert(client)
            }
        };
        Ok(client.pid(name.unwrap_or_default())?)
    }
}

/// Returns whether somebody in the network of a process listens on a port.
fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"));
        table.is_ok_and(|table| is_listening(&table, port))
    })
}

/// Looks for a port in the text of `/proc/PID/net/tcp`: the second field is the local address, with
/// the port in hexadecimal digits behind a colon, and the fourth the state.
fn is_listening(table: &str, port: u16) -> bool {
    let port = format!("{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        local.is_some_and(|(_, found)| found == port) && fields.nth(1) == Some(LISTENS)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_can_be_seen_from_outside_ends_a_first_boot() {
        for text in ["quiet:0.5", "after:2", "exit", "tcp:80"] {
            let ending = Ending::try_from(&text.parse().unwrap()).unwrap();
            assert_eq!(ending.to_string(), text);
        }
        for text in ["healthy", "line:x", "http://x/", "docker:healthy"] {
            let why = Ending::try_from(&text.parse().unwrap()).unwrap_err();
            assert!(why.to_string().contains("quiet:SECS"), "{why}");
        }
    }

    #[test]
    fn a_port_that_is_listened_on_is_seen() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            assert!(listens(std::process::id(), port), "{address}");
            drop(listener);
            assert!(!listens(std::process::id(), port), "{address}");
        }
        assert!(!is_listening("", 80));
    }

    #[test]
    fn a_process_that_is_gone_has_ended() {
        assert!(!Process::of(std::process::id()).has_ended());
        assert!(Process::of(u32::MAX).has_ended());
    }
}
