//! Probes a port from inside another process's network namespace: so no port of a container has to
//! be published, and a container without a network can be probed, too.

use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};
use rawio::net::raise_loopback;

use crate::until::{Until, http_answers, port_answers};

/// More than a probe takes: a look-up of a name has its own deadlines.
const ANSWER: Duration = Duration::from_secs(30);

/// A thread in a network namespace.
#[derive(Debug)]
pub struct NetProbe {
    ask: Option<SyncSender<Until>>,
    answers: Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl NetProbe {
    /// Sends a thread into the network namespace of a process.
    ///
    /// # Errors
    /// If the process has ended, or the system refuses.
    pub fn enter(pid: u32) -> anyhow::Result<Self> {
        let doing = || format!("entering the network of process {pid}");
        let network = File::open(format!("/proc/{pid}/ns/net")).with_context(doing)?;
        let (ask, asked) = sync_channel::<Until>(1);
        let (tell, answers) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("net-probe".to_owned())
            .spawn(move || {
                // Only this thread moves: the rest of the process stays in the host's network.
                let inside = setns(&network, CloneFlags::CLONE_NEWNET).is_ok();
                // `ctr` leaves it down; elsewhere it is up already.
                if inside && let Err(error) = raise_loopback() {
                    log::warn!("the container's loopback device stays down: {error}");
                }
                if tell.send(inside).is_err() || !inside {
                    return;
                }
                while let Ok(until) = asked.recv() {
                    let answer = match &until {
                        Until::Tcp(port) => port_answers(*port),
                        Until::Http(url) => http_answers(url),
                        _ => false,
                    };
                    if tell.send(answer).is_err() {
                        return;
                    }
                }
            })
            .context("starting the thread that probes ports")?;
        let probe = Self {
            ask: Some(ask),
            answers,
            thread: Some(thread),
        };
        anyhow::ensure!(
            probe.answers.recv_timeout(ANSWER).unwrap_or(false),
            "{}: the system refuses",
            doing()
        );
        Ok(probe)
    }

    /// Returns whether the address in `until` responds in that network.
    pub fn answers(&self, until: &Until) -> bool {
        let asked = self.ask.as_ref().map(|ask| ask.send(until.clone()));
        matches!(asked, Some(Ok(()))) && self.answers.recv_timeout(ANSWER).unwrap_or(false)
    }
}

impl Drop for NetProbe {
    fn drop(&mut self) {
        self.ask = None; // the thread ends
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}
