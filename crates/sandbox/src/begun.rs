//! A process from the request for it to its program.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rawio::child::{Birth, StartError, Started, Step, Steps, Told};
use rawio::pidfd::PidFd;

use crate::error::{Result, SandboxError, step};
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

/// Has a thread of a base start a process, in the control group whose directory is `birth`, by the steps that a plan
/// makes of `descriptors`.
pub(crate) fn begin(
    starters: &Starters,
    plan: impl Plan,
    birth: BorrowedFd<'_>,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(Started, Way)> {
    let (told, tell) = Told::pipe().map_err(step("making a pipe"))?;
    let all = [&[tell.as_fd(), birth], descriptors].concat();
    let begun = starters.run(&all, move |descriptors| {
        let lost = || SandboxError::Invalid("descriptors were lost: too many are open".to_owned());
        let [tell, birth, rest @ ..] = descriptors else {
            return Err(lost());
        };
        let steps = plan.steps(rest).ok_or_else(lost)?;
        let (names, steps): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let birth = Birth {
            namespaces: u64::from(plan.namespaces().cast_unsigned()),
            cgroup: Some(*birth),
        };
        let pid = Steps(&steps).begin(birth, *tell);
        Ok((pid.map_err(SandboxError::Start)?, names))
    });
    let (pid, names) = begun??;
    let process = PidFd::open(pid).map_err(step("opening a process"))?;
    Ok((Started { pid, process }, Way { told, names }))
}

fn named(names: &[&'static str], error: StartError) -> SandboxError {
    match error {
        StartError::Step { index, source } => {
            step(names.get(index).copied().unwrap_or("a step"))(source)
        }
        other => SandboxError::Start(other),
    }
}

/// Starts a process by steps that have names, on the calling thread.
pub(crate) fn start(steps: &[(&'static str, Step<'_>)], birth: Birth<'_>) -> Result<Started> {
    let (names, steps): (Vec<_>, Vec<_>) = steps.iter().cloned().unzip();
    let started = Steps(&steps).start(birth, PATIENCE, |_| Ok(()));
    started.map_err(|error| named(&names, error))
}
