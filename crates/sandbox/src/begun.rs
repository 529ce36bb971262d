//! A process from the request for it to its program.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rawio::child::{Birth, OnItsWay, StartError, Started, Step, Steps, Told};
use rawio::pidfd::PidFd;

use crate::error::{Result, SandboxError, step};
use crate::process;
use crate::starters::Starters;

/// How long a process may take to reach its program, which may have to be read from a slow disk.
const PATIENCE: Duration = Duration::from_secs(30);

/// Steps, and what they are called where one fails.
pub(crate) type NamedSteps<'a> = Vec<(&'static str, Step<'a>)>;

/// The steps of a new process, for the thread that starts it. It owns no descriptors: that thread has a table of its
/// own, where their numbers would mean others.
pub(crate) trait Plan: Send + 'static {
    /// New namespaces, as `CLONE_NEW*`.
    fn namespaces(&self) -> i32;

    /// Returns the steps, with their names, of a process that has these descriptors; `None` if they are too few.
    fn steps<'a>(&'a self, descriptors: &'a [BorrowedFd<'a>]) -> Option<NamedSteps<'a>>;
}

/// The way of a process to its program.
#[derive(Debug)]
pub(crate) struct Way {
    told: Told,
    names: Vec<&'static str>,
}

impl Way {
    /// Waits until the process executes its program. If it does not, it is ended.
    pub(crate) fn arrived(self, process: &PidFd) -> Result<()> {
        let arrived = self.told.arrived(process, PATIENCE);
        arrived.map_err(|error| named(&self.names, error))
    }
}

/// A process that somebody is to take. It is ended if nobody does: who asked for it may have lost patience.
struct Untaken(u32);

impl Untaken {
    fn take(self) -> Result<Started> {
        let pid = self.0;
        let process = PidFd::open(pid).map_err(step("opening a process"))?;
        std::mem::forget(self);
        Ok(Started { pid, process })
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        match PidFd::open(self.0) {
            Ok(process) => process::end(&process),
            Err(error) => {
                log::warn!("opening the process {}: {error}; it is ended", self.0);
                process::end_child(self.0);
            }
        }
    }
}

/// Has a thread of a base start a process, in the control group whose directory is `birth`, by the steps that a plan
/// makes of `descriptors`, and waits until it executes its program. The steps wait for nobody.
pub(crate) fn start_on(
    starters: &Starters,
    plan: impl Plan,
    birth: BorrowedFd<'_>,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Started> {
    let all = [&[birth], descriptors].concat();
    let way = Arc::new(OnItsWay::default());
    let theirs = Arc::clone(&way);
    let started = starters.run(
        &all,
        PATIENCE,
        move || way.kill(),
        move |descriptors| {
            let (birth, names, steps) = planned(&plan, descriptors)?;
            let pid = Steps(&steps).start_sharing(birth, &theirs);
            pid.map(Untaken).map_err(|error| named(&names, error))
        },
    );
    started??.take()
}

/// Has a thread of a base start a process that waits for us on its way to its program.
pub(crate) fn begin(
    starters: &Starters,
    plan: impl Plan,
    birth: BorrowedFd<'_>,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(Started, Way)> {
    let (told, tell) = Told::pipe().map_err(step("making a pipe"))?;
    let all = [&[tell.as_fd(), birth], descriptors].concat();
    let begun = starters.run(
        &all,
        PATIENCE,
        || (),
        move |descriptors| {
            let (tell, descriptors) = descriptors.split_first().ok_or_else(lost)?;
            let (birth, names, steps) = planned(&plan, descriptors)?;
            let pid = Steps(&steps).begin(birth, *tell);
            let pid = pid.map_err(SandboxError::Start);
            pid.map(|pid| (Untaken(pid), names))
        },
    );
    let (untaken, names) = begun??;
    Ok((untaken.take()?, Way { told, names }))
}

type Planned<'a> = (Birth<'a>, Vec<&'static str>, Vec<Step<'a>>);

/// What a plan makes of descriptors, of which the first is the directory of a control group.
fn planned<'a>(plan: &'a impl Plan, descriptors: &'a [BorrowedFd<'a>]) -> Result<Planned<'a>> {
    let (birth, rest) = descriptors.split_first().ok_or_else(lost)?;
    let (names, steps) = plan.steps(rest).ok_or_else(lost)?.into_iter().unzip();
    let birth = Birth {
        namespaces: u64::from(plan.namespaces().cast_unsigned()),
        cgroup: Some(*birth),
    };
    Ok((birth, names, steps))
}

fn lost() -> SandboxError {
    SandboxError::Invalid("descriptors were lost: too many are open".to_owned())
}

fn named(names: &[&'static str], error: StartError) -> SandboxError {
    match error {
        StartError::Step { index, source } => {
            step(names.get(index).copied().unwrap_or("a step"))(source)
        }
        other => SandboxError::Start(other),
    }
}

/// Starts a process by steps that have names, on the calling thread, and calls `born` when it is born. It is a copy of this
/// one: others in its sandbox are of the same user, and must not find our memory in it.
pub(crate) fn start(
    steps: &[(&'static str, Step<'_>)],
    birth: Birth<'_>,
    born: impl FnOnce(),
) -> Result<Started> {
    let (names, steps): (Vec<_>, Vec<_>) = steps.iter().cloned().unzip();
    let started = Steps(&steps).start(birth, PATIENCE, |_| {
        born();
        Ok(())
    });
    started.map_err(|error| named(&names, error))
}
