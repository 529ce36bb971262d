//! Recording boots that drift: with `--auto`, blocks that a boot had to read from its source are
//! merged into the boot image, and the mount is served from that (docs/adr/0009).
//!
//! The worker reports the requests of its mount, a separate process makes a boot image of them, and
//! the worker exchanges the images while it serves. If a step fails, the update is lost; the mount
//! stays as it is.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rawio::pidfd::PidFd;

use super::assignment::Service;
use super::drift::{Boots, Served};
use super::owned::Owned;
use super::owner::{Owner, own_program};
use super::probe::ask_all;
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::Worker;
use crate::lesson::{DESCRIPTORS, Lesson};
use host::caught::{caught_or, caught_round};
use node_api::boot_choice::BootChoice;
use node_api::control::NodeControl as _;
use node_api::status::MountStatus;

/// How often mounts are looked at: counters of each, from their workers.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long workers may take to tell.
const TELL: Duration = Duration::from_secs(2);
/// How long a worker may take to write down what a mount was asked for.
const TRACE: Duration = Duration::from_secs(30);
/// How long the boot image may take: what is missing is read from a disk that may be busy.
const LESSON: Duration = Duration::from_secs(600);
/// The longest account of a lesson, in bytes.
const ACCOUNT_MAX: u64 = 64 << 10;

/// Starts to watch the boots of all mounts with `--auto`, on a thread that ends with the node.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(owner: Weak<Owner>) -> anyhow::Result<()> {
    let watch = move || {
        let mut known = HashMap::new();
        while let Some(owner) = owner.upgrade() {
            caught_round("looking at boots", || look(&owner, &mut known));
            drop(owner);
            std::thread::sleep(LOOK_EVERY);
        }
    };
    std::thread::Builder::new()
        .name("learn".to_owned())
        .spawn(watch)
        .map(drop)
        .context("starting the thread that learns from boots")
}

fn look(owner: &Owner, known: &mut HashMap<String, Boots>) {
    let mut mounts = owner.all();
    mounts.retain(|mount| mount.spec().auto && !mount.is_leaving());
    known.retain(|key, _| mounts.iter().any(|mount| mount.key == *key));
    let served_by = |mount: &Arc<Owned>| match mount.assigned.service() {
        Service::By(worker) if worker.answers() => Some(worker),
        _ => None,
    };
    let mut workers: Vec<Arc<Worker>> = mounts.iter().filter_map(served_by).collect();
    workers.sort_by_key(|worker| worker.process.pid);
    workers.dedup_by_key(|worker| worker.process.pid);
    if workers.is_empty() {
        return;
    }
    let (heard, _) = ask_all(&workers, TELL);
    for mount in mounts {
        let Some(status) = heard.mounts.get(&mount.key) else {
            continue;
        };
        let (served, now) = (served(status), Instant::now());
        let boots = known
            .entry(mount.key.clone())
            .or_insert_with(|| Boots::new(served, now));
        if !boots.look(served, now) {
            continue;
        }
        // Whatever comes of it, the same boot is not learned from again.
        boots.learned(now);
        match caught_or(|| learn(owner, &mount)) {
            Ok(Some(lesson)) => log::info!(
                "{}: added {} blocks of a boot that differed from its recording",
                mount.id,
                lesson.new_blocks
            ),
            Ok(None) => {}
            Err(error) => log::warn!(
                "{}: cannot learn from this boot: {error:#}",
                mount.spec().mountpoint.display()
            ),
        }
    }
}

fn served(status: &MountStatus) -> Served {
    let told = status.served.clone().unwrap_or_default();
    Served {
        requests: told.requests.values().sum(),
        fallthrough_bytes: told.fallthrough_bytes,
        boot_bytes: status.boot.as_ref().map_or(0, |boot| boot.blocks * 4096),
        worker: status.pid,
    }
}

/// Learns from what a mount was asked for since the last lesson; `None` if nothing was new.
fn learn(owner: &Owner, mount: &Owned) -> anyhow::Result<Option<Lesson>> {
    let Service::By(worker) = mount.assigned.service() else {
        bail!("its worker is being replaced");
    };
    let trace = memory_file("trace")?;
    let question = WorkerRequest::Heard {
        id: mount.key.clone(),
    };
    match worker.ask_with(&question, &[trace.as_fd()], TRACE)?.0 {
        WorkerResponse::Done => {}
        WorkerResponse::Refused { why, .. } => bail!("{why}"),
        other => bail!("unexpected response of a worker: {other:?}"),
    }
    let lesson = teach(mount, &trace)?;
    if lesson.image.is_none() {
        return Ok(None);
    }
    // It has the name of the one before, or is the newest of its source.
    let boot = match mount.spec().boot {
        BootChoice::None => BootChoice::Auto,
        boot => boot,
    };
    owner.swap(&mount.id, boot)?;
    Ok(Some(lesson))
}

/// Has a process of its own make the boot image, and waits for it.
fn teach(mount: &Owned, trace: &OwnedFd) -> anyhow::Result<Lesson> {
    let spec = mount.spec();
    let account = memory_file("account")?;
    let arguments: Vec<OsString> = vec![
        "learn".into(),
        "--store".into(),
        spec.store.into(),
        "--boot".into(),
        String::from(spec.boot).into(),
    ];
    let files = mount.source_and_names();
    let (source, names) = files.context("its source is not on a disk, or the mount has ended")?;
    let pid = rawio::inherit::start(
        &own_program(),
        &arguments,
        std::env::vars_os(),
        &[source.as_fd(), names, trace.as_fd(), account.as_fd()],
        &DESCRIPTORS.join(":"),
    )
    .context("starting the process that learns")?;
    let ended = wait(pid)?;
    ensure!(
        matches!(ended, WaitStatus::Exited(_, 0)),
        "the process that learns failed: its message is above"
    );
    let mut account = File::from(account);
    let mut json = Vec::new();
    account
        .rewind()
        .and_then(|()| account.take(ACCOUNT_MAX).read_to_end(&mut json))
        .context("reading what was learned")?;
    serde_json::from_slice(&json).context("decoding what was learned")
}

fn memory_file(name: &str) -> anyhow::Result<OwnedFd> {
    memfd_create(name, MFdFlags::MFD_CLOEXEC).context("making a file in memory")
}

/// Waits until a child has ended; one that takes too long is killed.
fn wait(pid: u32) -> anyhow::Result<WaitStatus> {
    let handle = PidFd::open(pid).context("watching the process that learns")?;
    let mut end = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    let patience = PollTimeout::try_from(LESSON).unwrap_or(PollTimeout::MAX);
    if poll(&mut end, patience).unwrap_or(0) == 0 {
        handle
            .signal(Signal::SIGKILL)
            .context("ending the process that learns")?;
        log::warn!(
            "learning took over {} s, and is cancelled",
            LESSON.as_secs()
        );
    }
    let pid = Pid::from_raw(i32::try_from(pid).context("a process id")?);
    waitpid(pid, None).context("waiting for the process that learns")
}
