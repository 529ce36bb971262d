//! The processes that serve: starting them, finding them again, and which mount goes to which.

mod images;
mod process;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use confine::Identity;
use host::run_dir::process_start;
use node_records::company::Company;
use node_records::instance::{ProcessRef, private_dir};
use parking_lot::Mutex;

use images::Rights;
pub(crate) use images::{Served, told as images_told};
pub(crate) use process::{RETIRE, Worker};

/// All workers.
#[derive(Debug)]
pub(crate) struct Pool {
    run_dir: PathBuf,
    /// The user of the workers; `None` if it is the node's.
    user: Option<Identity>,
    /// Variables of the environment that workers get.
    told: Vec<(&'static str, OsString)>,
    program: Mutex<PathBuf>,
    workers: Mutex<Vec<Arc<Worker>>>,
    /// What images take that share a cache, by that.
    rights: Mutex<BTreeMap<PathBuf, Rights>>,
    /// Held while one is started, so that concurrent callers share it.
    starting: Mutex<()>,
}

impl Pool {
    /// Returns one without workers, which will run `program` as `user`, with the variables `told`.
    ///
    /// # Errors
    /// If the directory of their sockets cannot be made.
    pub(crate) fn new(
        run_dir: &Path,
        program: PathBuf,
        user: Option<Identity>,
        told: Vec<(&'static str, OsString)>,
    ) -> anyhow::Result<Self> {
        let sockets = run_dir.join("workers");
        private_dir(&sockets)?;
        sweep(&sockets)?;
        Ok(Self {
            run_dir: run_dir.to_path_buf(),
            user,
            told,
            program: Mutex::new(program),
            workers: Mutex::default(),
            rights: Mutex::default(),
            starting: Mutex::new(()),
        })
    }

    /// Has workers run `program` from now on. Those there are run another.
    pub(crate) fn set_program(&self, program: PathBuf) {
        *self.program.lock() = program;
        for worker in self.all() {
            worker.set_current(false);
        }
    }

    /// Returns all workers.
    pub(crate) fn all(&self) -> Vec<Arc<Worker>> {
        self.workers.lock().clone()
    }

    /// Finds a worker for the mount or device with this key, or starts one; `started` is told of it then, before
    /// it has one. What has the key counts as that worker's from now on.
    ///
    /// # Errors
    /// If none can be started.
    pub(crate) fn place(
        &self,
        key: &str,
        company: &Company,
        served: Served<'_>,
        started: impl Fn(&Arc<Worker>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Arc<Worker>> {
        let needs = served.image_needs();
        self.allow(company, needs.as_ref());
        loop {
            if company.is_shared()
                && let Some(worker) = self.with_room(key, company)
            {
                return Ok(worker);
            }
            // Who shares none with others waits for none of theirs.
            let _one_at_a_time = company.is_shared().then(|| self.starting.lock());
            if company.is_shared()
                && let Some(worker) = self.with_room(key, company)
            {
                return Ok(worker);
            }
            let program = self.program.lock().clone();
            let worker =
                Arc::new(self.start(&program, company.clone(), served.mount(), needs.clone())?);
            let taken = worker.reserve(key);
            self.workers.lock().push(Arc::clone(&worker));
            if let Err(error) = started(&worker) {
                worker.kill();
                self.bury(&worker);
                return Err(error);
            }
            if taken {
                return Ok(worker);
            }
        }
    }

    fn with_room(&self, key: &str, company: &Company) -> Option<Arc<Worker>> {
        let fits = |worker: &&Arc<Worker>| {
            worker.company == *company
                && worker.is_current()
                && worker.answers()
                && worker.reserve(key)
        };
        self.workers.lock().iter().find(fits).cloned()
    }

    /// Adds a worker that an earlier node has started, for mounts of this kind.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn find(
        &self,
        process: ProcessRef,
        company: Company,
    ) -> anyhow::Result<Arc<Worker>> {
        let mut workers = self.workers.lock();
        if let Some(known) = workers.iter().find(|worker| worker.process == process) {
            return Ok(Arc::clone(known));
        }
        let kind = (company, Rights::of(process.pid));
        let worker = Arc::new(Worker::new(process, &self.run_dir, kind, None)?);
        worker.set_current(runs_our_program(process.pid));
        workers.push(Arc::clone(&worker));
        Ok(worker)
    }

    /// Takes a dead worker out, and returns the keys of its mounts and devices.
    pub(crate) fn bury(&self, worker: &Arc<Worker>) -> BTreeSet<String> {
        self.workers.lock().retain(|w| !Arc::ptr_eq(w, worker));
        // It left its socket behind, unless it was orderly.
        let _gone = std::fs::remove_file(&worker.socket);
        worker.close()
    }
}

/// Takes away what workers left that died while there was no node: their numbers will be others',
/// and may be ours.
fn sweep(sockets: &Path) -> anyhow::Result<()> {
    let reading = || format!("reading {}", sockets.display());
    for entry in std::fs::read_dir(sockets).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        let pid = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        let Some(pid) = pid else { continue };
        if pid == std::process::id() || process_start(pid).is_err() || nobody_listens(&path) {
            let removing = || format!("removing {}", path.display());
            std::fs::remove_file(&path).with_context(removing)?;
        }
    }
    Ok(())
}

/// Returns whether the process that bound a socket is gone: its number may be another process's already.
fn nobody_listens(socket: &Path) -> bool {
    matches!(rawio::unix_socket::is_served(socket), Ok(false))
}

/// Returns whether a process runs the program that this one runs.
fn runs_our_program(pid: u32) -> bool {
    let program = |process: &str| std::fs::metadata(format!("/proc/{process}/exe"));
    match (program("self"), program(&pid.to_string())) {
        (Ok(ours), Ok(its)) => (ours.dev(), ours.ino()) == (its.dev(), its.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn what_the_dead_left_goes_whoever_has_their_numbers_now() {
        let dir = tempfile::tempdir().unwrap();
        let mut others = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
        let [listens, taken] = [0, 1].map(|at| others[at].id());
        let at = |pid: u32| dir.path().join(format!("{pid}.sock"));
        let listening = UnixListener::bind(at(listens)).unwrap();
        drop(UnixListener::bind(at(taken)).unwrap());
        drop(UnixListener::bind(at(std::process::id())).unwrap());
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        drop(UnixListener::bind(at(gone.id())).unwrap());
        std::fs::write(dir.path().join("notes"), "").unwrap();
        sweep(dir.path()).unwrap();
        let names = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, [at(listens), dir.path().join("notes")]);
        drop(listening);
        for other in &mut others {
            other.kill().and_then(|()| other.wait()).unwrap();
        }
    }
}
