//! A node service of its own for a test, and readers that notice every failed read.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::group::Group;
use super::{Lab, json, noise, ok, output, program, until};

/// How many files the source has that readers read.
const FILES: u32 = 24;
/// How long each is.
const LEN: usize = 70_000;

/// Who serves: nobody whose rights could stand in for what a worker lacks.
pub const WORKER_USER: &str = "65534:65534";

/// A running node; it, its keeper and its workers are ended when it is dropped.
#[derive(Debug)]
pub struct Service<'a> {
    /// Where its directories are.
    pub lab: &'a Lab,
    child: Option<Child>,
    /// What the node has started is in it, whoever has become its parent.
    group: Group,
    kernel: Kernel,
}

/// What the node takes the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// What it is.
    Own,
    /// One that sends no request again, as before Linux 6.9.
    Old,
}

impl<'a> Service<'a> {
    /// Starts one with its directories in the lab, and waits until it answers.
    pub fn start(lab: &'a Lab) -> Self {
        Self::start_on(lab, Kernel::Own)
    }

    /// The same, on a kernel of another age.
    pub fn start_on(lab: &'a Lab, kernel: Kernel) -> Self {
        let mut service = Self {
            lab,
            child: None,
            group: Group::new(lab.name()),
            kernel,
        };
        service.start_again();
        service
    }

    /// Starts it after it was ended or killed.
    pub fn start_again(&mut self) {
        self.start_program(&program("yolofs"));
    }

    /// Starts a certain program as the service.
    pub fn start_program(&mut self, program: &Path) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.lab.path("node.log"))
            .unwrap();
        // A lab that has a tiers file has a node that goes by it.
        let tiers = Some(self.lab.path("tiers.toml")).filter(|file| file.exists());
        let tiers = tiers.map(|file| [OsString::from("--tiers"), file.into()]);
        let unit = super::unit::program("yolofs-node.service", program);
        let child = self
            .group
            .joins(&unit)
            .env("YOLOFS_STORE", self.lab.store())
            .env("YOLOFS_LOG", "info")
            // A system call that the workers' list lacks ends them, and the test with them.
            .env("YOLOFS_CONFINE", "strict")
            .envs((self.kernel == Kernel::Old).then_some(("YOLOFS_TEST_OLD_KERNEL", "1")))
            .env_remove("NOTIFY_SOCKET")
            .args(["node", "--run-dir"])
            .arg(self.lab.run_dir())
            .arg("--state-dir")
            .arg(self.lab.path("state"))
            .args(["--worker-user", WORKER_USER])
            .args(tiers.into_iter().flatten())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        until("the node to answer", || {
            let status = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "it ended: {}", self.said());
            self.answers()
        });
    }

    /// Whether the node answers now.
    pub fn answers(&self) -> bool {
        output(self.lab.yolofs().args(["node", "status"]))
            .status
            .success()
    }

    /// What it has written to its log.
    pub fn said(&self) -> String {
        fs::read_to_string(self.lab.path("node.log")).unwrap_or_default()
    }

    /// What `yolofs node status --json` says.
    pub fn node(&self) -> Value {
        json(self.lab.yolofs().args(["node", "status", "--json"]))
    }

    /// What `yolofs node mounts --json` says of a mount, if it is listed.
    pub fn listed(&self, mountpoint: &Path) -> Option<Value> {
        let mounts = json(self.lab.yolofs().args(["node", "mounts", "--json"]));
        let mounts = mounts.as_array().unwrap().iter();
        let at = |mount: &&Value| mount["mountpoint"] == mountpoint.to_str().unwrap();
        mounts.into_iter().find(at).cloned()
    }

    /// The state of a mount; empty if it is not listed.
    pub fn state(&self, mountpoint: &Path) -> String {
        let listed = self.listed(mountpoint).unwrap_or_default();
        listed["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a mount is in this state.
    pub fn until_state(&self, mountpoint: &Path, state: &str) {
        until(&format!("{} to be {state}", mountpoint.display()), || {
            self.state(mountpoint) == state
        });
    }

    /// The process that serves a mount; waits until there is one.
    pub fn worker(&self, mountpoint: &Path) -> u32 {
        let mut worker = None;
        until("a worker to serve", || {
            // Asked for at once: it may be gone at the next look.
            let listed = self.listed(mountpoint).unwrap();
            let serves = listed["state"] == "serving";
            worker = serves.then(|| pid(&listed["pid"]));
            serves
        });
        worker.unwrap()
    }

    /// Kills the process that serves a mount, and waits until another does.
    pub fn kill_worker(&self, mountpoint: &Path, signal: Signal) {
        let worker = self.worker(mountpoint);
        signal_to(worker, signal);
        until("another worker to serve", || {
            let listed = self.listed(mountpoint).unwrap();
            listed["state"] == "failed"
                || listed["state"] == "serving" && pid(&listed["pid"]) != worker
        });
    }

    /// The node's own process.
    pub fn pid(&self) -> u32 {
        pid(&self.node()["pid"])
    }

    /// The process that was started: the node's keeper.
    pub fn keeper(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Kills the node's own process, and waits until another answers.
    pub fn kill_node(&self) {
        let node = self.pid();
        signal_to(node, Signal::SIGKILL);
        self.until_another(node);
    }

    /// Waits until a process other than this one answers.
    pub fn until_another(&self, node: u32) {
        until("another node to answer", || {
            self.answers() && self.pid() != node
        });
    }

    /// Ends it as an administrator does, and waits until it has ended.
    pub fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        signal_to(child.id(), Signal::SIGTERM);
        until("the node to end", || child.try_wait().unwrap().is_some());
    }

    /// Kills the process that was started, and collects it.
    pub fn kill_keeper(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    /// Kills all of it, as a machine that loses its power does.
    pub fn kill_all(&mut self) {
        self.group.kill();
        if let Some(mut child) = self.child.take() {
            child.wait().unwrap();
        }
    }

    /// Mounts a source with files to be read, and returns where.
    pub fn mount(&self, name: &str) -> PathBuf {
        let source = self.source(name);
        self.lab.mount(&source, &format!("{name}-mnt"), &[])
    }

    /// Makes a source with files to be read.
    pub fn source(&self, name: &str) -> PathBuf {
        let source = self.lab.make_dir(name);
        for index in 0..FILES {
            fs::write(source.join(index.to_string()), noise(index, LEN)).unwrap();
        }
        source
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the node said:\n{}", self.said());
            // A failed test must not wait for what it left behind.
            self.group.kill_at_once();
        } else {
            self.group.kill();
        }
        if let Some(mut child) = self.child.take() {
            let _ended = child.wait();
        }
    }
}

/// Readers of a mount, on threads. Every byte is compared, and every failure is kept.
#[derive(Debug)]
pub struct Readers {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Readers {
    /// Starts to read what [`Service::source`] has made, again and again.
    pub fn start(mountpoint: &Path) -> Self {
        let (stop, reads) = (Arc::default(), Arc::default());
        let threads = (0..2).map(|_| {
            let (stop, reads) = (Arc::clone(&stop), Arc::clone(&reads));
            let mountpoint = mountpoint.to_owned();
            std::thread::spawn(move || read_on(&mountpoint, &stop, &reads))
        });
        let threads = threads.collect();
        let readers = Self {
            stop,
            reads,
            threads,
        };
        readers.until_more();
        readers
    }

    /// Waits until each file was read again.
    pub fn until_more(&self) {
        let wanted = self.reads.load(SeqCst) + u64::from(FILES);
        until("readers to go on", || {
            self.reads.load(SeqCst) >= wanted || self.threads.iter().any(JoinHandle::is_finished)
        });
    }

    /// Stops them. Panics if a read failed or had a wrong byte.
    pub fn stop(self) {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().unwrap().unwrap();
        }
    }
}

fn read_on(mountpoint: &Path, stop: &AtomicBool, reads: &AtomicU64) -> Result<(), String> {
    let wanted: Vec<_> = (0..FILES).map(|index| noise(index, LEN)).collect();
    while !stop.load(SeqCst) {
        for (index, wanted) in wanted.iter().enumerate() {
            let path = mountpoint.join(index.to_string());
            let failed = |error: std::io::Error| format!("{}: {error}", path.display());
            let file = File::open(&path).map_err(failed)?;
            // The page cache must not answer for the worker.
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
                .map_err(|errno| failed(errno.into()))?;
            let mut read = vec![0; LEN];
            file.read_exact_at(&mut read, 0).map_err(failed)?;
            if read != *wanted {
                return Err(format!("{}: wrong bytes", path.display()));
            }
            reads.fetch_add(1, SeqCst);
        }
    }
    Ok(())
}

/// Sends a signal to a process, which must be there.
pub fn signal_to(process: u32, signal: Signal) {
    kill(as_pid(process), signal).unwrap();
}

fn as_pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap())
}

fn pid(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

/// Unmounts without yolofs, as anybody may.
pub fn umount(flags: &[&str], mountpoint: &Path) {
    ok(Command::new("umount").args(flags).arg(mountpoint));
}
