//! A Zygote that is forked from a Zygote: it has the packages of the first, and imports more.
//!
//! Its imports must not affect the first Zygote, whose children did not request them. So it is root of a
//! user namespace of its own, with users of its own, and all inherited descriptors are closed.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rawio::child::Started;
use rawio::pidfd::PidFd;

use super::protocol::{Control, Derived, ForkRequest};
use super::users::Users;
use super::{Conversation, IMPORT_PATIENCE, Spares, Zygote, ZygoteSpec};
use crate::cache::Hits;
use crate::cgroup::{Group, Lent, Pool};
use crate::error::{Result, SandboxError, step};
use crate::launch::Mounts;
use crate::packages::{Packages, paths_of};
use crate::record::new_id;
use crate::request::Request;
use crate::stdio::null_stdio;

/// Forks a Zygote from `parent`, in a group of its own, and waits until it has imported. An error
/// returns the group.
pub(crate) fn derive(
    parent: &Zygote,
    spec: ZygoteSpec,
    users: Arc<Users>,
    lent: Arc<Lent>,
    mut group: Group,
    pool: &Pool,
) -> std::result::Result<Zygote, Box<(SandboxError, Group)>> {
    match begin(parent, &spec, *users, &mut group, pool) {
        Ok((id, started, control, own_ms)) => {
            let mut ancestry = parent.ancestry.clone();
            ancestry.push(Zygote::describe(&id, &spec.packages));
            Ok(Zygote {
                id,
                ancestry,
                parent: Some(parent.id.clone()),
                import_ms: parent.import_ms + own_ms,
                own_ms,
                spec,
                forks: AtomicU64::new(0),
                hits: Mutex::new(Hits::default()),
                users,
                started,
                control: Mutex::new(Conversation { control, last: 0 }),
                group: Mutex::new(Some(group)),
                spares: Spares::default(),
                lent,
            })
        }
        Err(error) => Err(Box::new((error, group))),
    }
}

fn begin(
    parent: &Zygote,
    spec: &ZygoteSpec,
    users: Users,
    group: &mut Group,
    pool: &Pool,
) -> Result<(String, Started, Control, f64)> {
    let mut request = Request::new(&spec.base, &[&spec.interpreter]);
    request.limits.memory_bytes = spec.memory_bytes;
    if parent.spec.store.is_none() {
        request.packages.clone_from(&spec.store);
    }
    let mounts = Mounts::of(&request)?;
    group.limit(&request.limits)?;
    let (go, mut tell) = io::pipe().map_err(step("making a pipe"))?;
    let (control, theirs) = Control::pair().map_err(step("making a socket"))?;
    // It can only be born in a group of its parent's, and is moved before it does anything.
    let cradle = parent.take_group(pool)?;
    let born: Result<Started> = (|| {
        let stdio = null_stdio()?;
        let groups = group.legacy();
        let mut descriptors: Vec<BorrowedFd<'_>> = stdio.iter().map(|fd| fd.as_fd()).collect();
        descriptors.extend([go.as_fd(), cradle.lent_birth()?]);
        descriptors.extend(&groups);
        descriptors.push(theirs.as_fd());
        let mut fork = fork_request(parent, spec, users, groups.len());
        for (mount, place) in mounts.places() {
            descriptors.push(mount);
            fork.places.push(place.to_str().unwrap_or_default());
        }
        let process = parent.ask(fork, &descriptors)?;
        let pid = process.number().ok().flatten().unwrap_or(0);
        Ok(Started { pid, process })
    })();
    let moved = born.as_ref().ok().map(|started| {
        let checked = check_users(started, users).map_err(|problem| parent.fault(problem));
        checked.and_then(|()| group.adopt(started.pid))
    });
    drop(theirs);
    // Which ends what was not moved. The process that the Zygote has named may be anybody's.
    parent.lent.put_back(cradle, pool);
    let started = born?;
    if let Some(Err(error)) = moved {
        crate::process::exit_status(&started.process, 0);
        return Err(error);
    }
    let id = format!("z{}", new_id()?);
    // That nobody reads is found when nobody answers.
    let _gone = tell.write_all(&[0]);
    let imported = control.receive(IMPORT_PATIENCE);
    let problem = match imported {
        Ok((answer, _)) => match answer.error {
            None => {
                return Ok((
                    id,
                    started,
                    control,
                    answer.times.values().sum::<f64>() + 0.0,
                ));
            }
            Some(error) => error,
        },
        Err(error) => error.to_string(),
    };
    let zygote = format!("{id} of {:?}", spec.packages);
    let problem = format!("has not imported: {problem}");
    Err(end(
        &started.process,
        SandboxError::Zygote { zygote, problem },
    ))
}

fn fork_request<'a>(
    parent: &Zygote,
    spec: &'a ZygoteSpec,
    users: Users,
    groups: usize,
) -> ForkRequest<'a> {
    let more: Packages = spec
        .packages
        .difference(&parent.spec.packages)
        .cloned()
        .collect();
    ForkRequest {
        dir: "/tmp",
        groups,
        zygote: Some(Derived {
            users: [users.first - parent.users.first, users.count()],
            paths: paths_of(&more),
            learned: spec.learned.as_deref().unwrap_or_default(),
        }),
        ..ForkRequest::default()
    }
}

/// Ends a process that is not to be.
fn end(process: &PidFd, error: SandboxError) -> SandboxError {
    crate::process::end(process);
    error
}

/// Reads from the kernel which users a process has. The Zygote that says so is not believed.
fn check_users(started: &Started, users: Users) -> std::result::Result<(), String> {
    for name in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{name}", started.pid);
        let table = fs::read_to_string(&path)
            .map_err(|error| format!("has a child without {name}: {error}"))?;
        let numbers: Vec<u32> = table
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        if numbers != [0, users.first, users.count()] {
            return Err(format!(
                "has a child with other users than its own: {}",
                table.trim()
            ));
        }
    }
    Ok(())
}
