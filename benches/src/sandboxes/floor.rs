//! What the kernel alone takes for processes in namespaces of their own: no manager, no record, no limit, no rights given up.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context as _, ensure};
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, chdir, pivot_root};
use rawio::child::{Birth, OnItsWay, OwnMount, Step, Steps};
use rawio::mount::Forbids;

use super::{Figure, Stage, rate_of};

/// How many processes are started at once.
const AT_ONCE: u32 = 10;

/// What a process has of its own.
#[derive(Clone, Copy, Debug)]
struct Own {
    name: &'static str,
    group: bool,
    namespaces: i32,
    mounts: bool,
}

/// Each with what the one before has, and more. The last one has what a sandbox has.
const KINDS: &[Own] = &[
    Own {
        name: "nothing",
        group: false,
        namespaces: 0,
        mounts: false,
    },
    Own {
        name: "a control group",
        group: true,
        namespaces: 0,
        mounts: false,
    },
    Own {
        name: "and processes, a host name",
        group: true,
        namespaces: libc::CLONE_NEWPID | libc::CLONE_NEWUTS,
        mounts: false,
    },
    Own {
        name: "and IPC",
        group: true,
        namespaces: libc::CLONE_NEWPID | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC,
        mounts: false,
    },
    Own {
        name: "and mounts",
        group: true,
        namespaces: ALL,
        mounts: false,
    },
    Own {
        name: "and /proc, /tmp",
        group: true,
        namespaces: ALL,
        mounts: true,
    },
];

const ALL: i32 = libc::CLONE_NEWPID | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWNS;

/// Measures how many processes are made and gone in a second, by what they have of their own.
///
/// # Errors
/// If one cannot be started.
pub fn floor(stage: &Stage) -> anyhow::Result<Vec<Figure>> {
    let groups = Groups::make()?;
    let mut figures = Vec::new();
    for own in KINDS {
        let next = AtomicUsize::new(0);
        let rate = rate_of(AT_ONCE, || {
            let number = next.fetch_add(1, Relaxed) % groups.dirs.len();
            make_and_wait(&stage.noop_root(), *own, &groups.dirs[number].1)
        })?;
        let name = format!("bare process, its own: {}", own.name);
        figures.push(Figure::new(name, "a second", vec![rate]));
    }
    Ok(figures)
}

/// Control groups of version 2, which are removed in the end.
struct Groups {
    dirs: Vec<(PathBuf, File)>,
}

impl Groups {
    fn make() -> anyhow::Result<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.iter().find(|root| root.join("cgroup.procs").exists());
        let root = root.context("there are no control groups of version 2")?;
        let mut groups = Self { dirs: Vec::new() };
        for number in 0..AT_ONCE {
            let dir = root.join(format!("bench-floor-{}-{number}", std::process::id()));
            fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
            let opened = File::open(&dir)?;
            groups.dirs.push((dir, opened));
        }
        Ok(groups)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for (dir, _) in &self.dirs {
            if let Err(error) = fs::remove_dir(dir) {
                eprintln!("bench-sandbox: removing {}: {error}", dir.display());
            }
        }
    }
}

thread_local! {
    /// Whether this thread is in a namespace of mounts that has the no-op's root only.
    static ENTERED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn make_and_wait(root: &Path, own: Own, group: &File) -> anyhow::Result<()> {
    if !ENTERED.get() {
        enter(root).context("entering the root of the no-op")?;
        ENTERED.set(true);
    }
    let place = |fs_type, options, at| {
        Step::Mount(OwnMount {
            fs_type,
            options,
            forbids: Forbids::PRIVILEGES.and(Forbids::DEVICES),
            at,
        })
    };
    let arguments = [CString::from(c"/bin/noop")];
    let mut steps = Vec::new();
    if own.mounts {
        steps.push(place(c"proc", c"subset=pid", c"/proc"));
        steps.push(place(c"tmpfs", c"mode=1777,size=64m", c"/tmp"));
    }
    steps.push(Step::Execute(c"/bin/noop", &arguments, &[]));
    let birth = Birth {
        namespaces: u64::from(own.namespaces.cast_unsigned()),
        cgroup: own.group.then(|| group.as_fd()),
    };
    let pid = Steps(&steps).start_sharing(birth, &OnItsWay::default())?;
    let ended = waitid(
        Id::Pid(Pid::from_raw(pid.cast_signed())),
        WaitPidFlag::WEXITED,
    )?;
    ensure!(
        matches!(ended, WaitStatus::Exited(_, 0)),
        "it ended with {ended:?}"
    );
    Ok(())
}

/// Moves the calling thread into a namespace with as many mounts as a sandbox of the no-op begins with.
fn enter(root: &Path) -> anyhow::Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(root), root, none, MsFlags::MS_BIND, none)?;
    for name in ["bin", "dev"] {
        let dir = root.join(name);
        mount(Some(&dir), &dir, none, MsFlags::MS_BIND, none)?;
    }
    chdir(root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}
