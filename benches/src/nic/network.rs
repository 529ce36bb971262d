//! Hosts that are network namespaces: each has its addresses and ports for itself.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sched::{CloneFlags, setns, unshare};

use crate::process::run_ok;

/// `ip` and `tc` are done at once.
const DEADLINE: Duration = Duration::from_secs(30);

/// A network namespace. It has no name, and is gone when nobody uses it any more, however the rig
/// ends.
#[derive(Debug)]
pub struct Network {
    file: File,
}

/// One end of a link: a device, and the address it has.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The network that the device is in.
    pub network: &'a Network,
    /// What the device is called there.
    pub device: &'a str,
    /// Its address, with the length of the prefix, if it is to have one.
    pub address: Option<&'a str>,
}

impl Network {
    /// Makes one in which only loopback is up.
    ///
    /// # Errors
    /// If the kernel refuses, as it does without root.
    pub fn new() -> anyhow::Result<Self> {
        let make = || -> anyhow::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
            rawio::net::raise_loopback().context("raising loopback")?;
            File::open("/proc/thread-self/ns/net").context("opening a network namespace")
        };
        // A thread of its own: it does not come back.
        let file = thread::spawn(make).join();
        let file = file.unwrap_or_else(|_| bail!("the thread that makes a network panicked"))?;
        Ok(Self { file })
    }

    /// Returns a program that will run in it.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display()));
        command.arg(program);
        command
    }

    /// Returns a command that will run as `command` would, in it.
    #[must_use]
    pub fn around(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", self.path().display()));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Runs `work` on a thread that is in it. What `work` starts is in it, too.
    ///
    /// # Errors
    /// If it cannot be entered, and those of `work`.
    pub fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let enter_and_work = || {
            setns(&self.file, CloneFlags::CLONE_NEWNET).context("entering a network namespace")?;
            work()
        };
        thread::scope(|scope| {
            let done = scope.spawn(enter_and_work).join();
            done.unwrap_or_else(|_| bail!("a thread in a network panicked"))
        })
    }

    /// Has packets passed on from one of its devices to another.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forward(&self) -> anyhow::Result<()> {
        self.inside(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("turning forwarding on")
        })
    }

    /// Runs `ip` or `tc` in it.
    ///
    /// # Errors
    /// If it fails.
    pub fn set(&self, line: &str) -> anyhow::Result<()> {
        let mut words = line.split(' ');
        let mut command = self.command(words.next().unwrap_or_default());
        command.args(words);
        run_ok(command, DEADLINE).map(drop)
    }

    /// Sends everything that has no other way to `gateway`.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn default_route(&self, gateway: IpAddr) -> anyhow::Result<()> {
        self.set(&format!("ip route add default via {gateway}"))
    }

    fn path(&self) -> PathBuf {
        let (pid, fd) = (std::process::id(), self.file.as_raw_fd());
        PathBuf::from(format!("/proc/{pid}/fd/{fd}"))
    }
}

/// Connects two networks.
///
/// # Errors
/// If the kernel refuses.
pub fn link(one: End<'_>, other: End<'_>) -> anyhow::Result<()> {
    let (a, b) = (one.device, other.device);
    let there = other.network.path();
    one.network.set(&format!(
        "ip link add {a} type veth peer name {b} netns {}",
        there.display()
    ))?;
    for end in [one, other] {
        if let Some(address) = end.address {
            end.network
                .set(&format!("ip address add {address} dev {}", end.device))?;
        }
        end.network.set(&format!("ip link set {} up", end.device))?;
    }
    Ok(())
}

#[cfg(all(test, feature = "privileged"))]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn privileged_networks_are_apart_until_they_are_linked() {
        let (one, other) = (Network::new().unwrap(), Network::new().unwrap());
        let listen = || Ok(TcpListener::bind("0.0.0.0:4000")?);
        let listener = one.inside(listen).unwrap();
        assert!(
            other
                .inside(|| Ok(TcpStream::connect("10.77.0.1:4000")?))
                .is_err()
        );
        let end = |network, device, address| End {
            network,
            device,
            address: Some(address),
        };
        link(
            end(&one, "left", "10.77.0.1/24"),
            end(&other, "right", "10.77.0.2/24"),
        )
        .unwrap();
        let mut stream = other
            .inside(|| Ok(TcpStream::connect("10.77.0.1:4000")?))
            .unwrap();
        stream.write_all(b"over").unwrap();
        drop(stream);
        let mut read = String::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_string(&mut read)
            .unwrap();
        assert_eq!(read, "over");
    }
}
