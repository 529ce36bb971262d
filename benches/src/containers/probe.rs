//! A client that asks a program until it answers.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sched::{CloneFlags, setns};

use super::program::Program;
use crate::process::wait_for;

/// An answer that takes longer than this is asked for again.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// Enough for the beginning of every answer.
const ANSWER_MAX: usize = 64;

/// Asks `program` in the network of process `pid` until it answers, and returns when it did.
///
/// # Errors
/// If the process ends, or does not answer within `deadline`.
pub fn ask(program: Program, pid: u32, deadline: Duration) -> anyhow::Result<Instant> {
    // A thread of its own: it does not come back from the container's network.
    let asking = thread::Builder::new()
        .name("probe".to_owned())
        .spawn(move || ask_inside(program, pid, deadline))
        .context("starting the thread that asks")?;
    let answered = asking.join();
    answered.unwrap_or_else(|_| anyhow::bail!("the thread that asks panicked"))
}

fn ask_inside(program: Program, pid: u32, deadline: Duration) -> anyhow::Result<Instant> {
    let path = format!("/proc/{pid}/ns/net");
    let network = File::open(&path).with_context(|| format!("opening {path}"))?;
    setns(&network, CloneFlags::CLONE_NEWNET).context("entering the container's network")?;
    // `ctr` leaves it down; elsewhere it is up already.
    rawio::net::raise_loopback().context("raising the container's loopback device")?;
    let image = program.image();
    wait_for(&format!("answer of {image}"), deadline, || {
        ensure!(
            File::open(&path).is_ok(),
            "the container's process has ended: see docker logs"
        );
        Ok(answers(program).then(Instant::now))
    })
}

/// Asks once, in the network of this thread. Whatever goes wrong while a program starts means: not
/// yet.
pub fn answers(program: Program) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, program.port()));
    let answer = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_DEADLINE)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.write_all(program.question())?;
        let mut answer = vec![0; ANSWER_MAX];
        let len = stream.read(&mut answer)?;
        answer.truncate(len);
        Ok(answer)
    };
    answer().is_ok_and(|answer| program.is_ready(&answer))
}
