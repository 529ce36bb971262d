//! Fresh mount and PID namespaces around a recorded command.
//!
//! Everything here happens in processes made for it, because entering a PID namespace takes a
//! child, and because a process with threads cannot enter one. `bootimg` starts itself twice:
//!
//! 1. [`enter`] leaves the host's mount and PID namespaces, stacks an overlay on the recorded
//!    mount, and starts the second stage, which is process 1 of the new namespace;
//! 2. [`become_init`] mounts `/proc`, makes the overlay its root, and executes the command.
//!
//! When either dies the kernel kills every process inside, and the mounts go with the namespace.

pub mod user;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, anyhow, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, chdir, execvp, pivot_root, setgid, setgroups, setuid};

use host::interrupt::unblock_signals;

/// The first stage, which is started as `__enter`.
#[derive(Clone, Debug)]
pub struct EnterStage {
    /// Directory trees that become the lower layers of the command's root, the top one first
    pub lower: Vec<PathBuf>,
    /// Directory that the lower layers' paths start from
    pub base: PathBuf,
    /// Empty directory to mount the scratch file system and the root in
    pub scratch: PathBuf,
    /// As whom, and where, the command is executed.
    pub identity: Identity,
    /// The command and its arguments
    pub command: Vec<OsString>,
}

/// The second stage, which is started as `__init`.
#[derive(Clone, Debug)]
pub struct InitStage {
    /// Directory that becomes the root
    pub root: PathBuf,
    /// As whom, and where, the command is executed.
    pub identity: Identity,
    /// The command and its arguments
    pub command: Vec<OsString>,
}

/// As whom, and where, a command is executed.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// `USER[:GROUP]`, names or numbers, as the root's own files know them; empty is who we are
    pub user: String,
    /// Directory to start in
    pub workdir: PathBuf,
}

/// A root of several layers, and what runs in it.
#[derive(Clone, Debug)]
pub struct Sandbox<'a> {
    /// The directory that the layers are in.
    pub base: &'a Path,
    /// Their names in it, the top one first: short, because all of them together must fit the
    /// page of options that mount(2) takes.
    pub lower: &'a [String],
    /// An empty directory to mount things in.
    pub scratch: &'a Path,
    /// As whom, and where, the command is executed.
    pub identity: &'a Identity,
    /// The command.
    pub command: &'a [String],
}

impl Sandbox<'_> {
    /// Returns what runs the command in namespaces of its own; its code is the command's.
    #[must_use]
    pub fn program(&self) -> Command {
        let mut program = Command::new("/proc/self/exe");
        program.arg("__enter").arg("--base").arg(self.base);
        for lower in self.lower {
            program.arg("--lower").arg(lower);
        }
        program.arg("--scratch").arg(self.scratch);
        add_identity(&mut program, self.identity);
        program.arg("--").args(self.command);
        program
    }
}

fn add_identity(program: &mut Command, identity: &Identity) {
    program
        .arg("--user")
        .arg(&identity.user)
        .arg("--workdir")
        .arg(&identity.workdir);
}

/// Runs the first stage and returns the command's own exit code, or 128 and the signal.
///
/// # Errors
/// If a namespace or a mount cannot be had.
pub fn enter(args: &EnterStage) -> anyhow::Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL).context("tying the sandbox to its parent")?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID)
        .context("making a mount and a PID namespace (are you root?)")?;
    let root = build_root(args)?;
    let mut init = Command::new("/proc/self/exe");
    init.arg("__init").arg("--root").arg(&root);
    add_identity(&mut init, &args.identity);
    let status = init
        .arg("--")
        .args(&args.command)
        .status()
        .context("starting the sandbox's first process")?;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Mounts the scratch tmpfs and the overlay, and returns the root.
fn build_root(args: &EnterStage) -> anyhow::Result<PathBuf> {
    let scratch = &args.scratch;
    // What is mounted from here on stays in this namespace.
    mount_plain(
        None,
        Path::new("/"),
        None,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        "",
    )?;
    mount_plain(
        Some("tmpfs"),
        scratch,
        Some("tmpfs"),
        MsFlags::empty(),
        "mode=0755",
    )?;
    let (upper, work, root) = (
        scratch.join("upper"),
        scratch.join("work"),
        scratch.join("root"),
    );
    for dir in [&upper, &work, &root] {
        std::fs::create_dir(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let options = overlay_options(&args.lower, &upper, &work)?;
    chdir(&args.base).with_context(|| format!("entering {}", args.base.display()))?;
    mount_plain(
        Some("overlay"),
        &root,
        Some("overlay"),
        MsFlags::empty(),
        &options,
    )?;
    for (host, flags) in [("/dev", MsFlags::MS_REC), ("/sys", MsFlags::MS_REC)] {
        let inside = root.join(&host[1..]);
        make_dir(&inside)?;
        mount_plain(Some(host), &inside, None, MsFlags::MS_BIND | flags, "")?;
    }
    make_dir(&root.join("proc"))?;
    Ok(root)
}

/// Joins overlayfs options; its separators have no escape in `mount(2)`'s syntax for lowerdir
/// that all kernels share, so directories with them are refused.
fn overlay_options(lower: &[PathBuf], upper: &Path, work: &Path) -> anyhow::Result<String> {
    let dir = |path: &Path| match path.to_str() {
        Some(text) if !text.contains([',', ':', '\\']) => Ok(text.to_owned()),
        _ => bail!(
            "overlayfs cannot take the directory {}: use a run directory without , : \\ in its name",
            path.display()
        ),
    };
    let lower: anyhow::Result<Vec<String>> = lower.iter().map(|path| dir(path)).collect();
    // Inode numbers are to stay the same, whatever the kernel forgets and whatever is written to.
    Ok(format!(
        "lowerdir={},upperdir={},workdir={},xino=on",
        lower?.join(":"),
        dir(upper)?,
        dir(work)?
    ))
}

fn make_dir(path: &Path) -> anyhow::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("making {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn mount_plain(
    what: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: &str,
) -> anyhow::Result<()> {
    mount(what, target, kind, flags, Some(options)).with_context(|| {
        format!(
            "mounting {} on {}",
            what.unwrap_or("nothing"),
            target.display()
        )
    })
}

/// Runs the second stage; returns only if it fails.
///
/// # Errors
/// If the root cannot be entered, or there is no such command in it.
pub fn become_init(args: &InitStage) -> anyhow::Result<Infallible> {
    set_pdeathsig(Signal::SIGKILL).context("tying the sandbox's first process to its parent")?;
    let proc = args.root.join("proc");
    mount_plain(Some("proc"), &proc, Some("proc"), MsFlags::empty(), "")?;
    // pivot_root(2), "pivot_root(".", ".")": the old root ends up under the new one.
    chdir(&args.root).context("entering the root")?;
    pivot_root(".", ".").context("changing the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("leaving the old root behind")?;
    chdir("/").context("entering the new root")?;
    become_user(&args.identity)?;
    execute(&args.command)
}

fn become_user(identity: &Identity) -> anyhow::Result<()> {
    let workdir = &identity.workdir;
    // Engines make it, too.
    std::fs::create_dir_all(workdir).with_context(|| format!("making {}", workdir.display()))?;
    chdir(workdir).with_context(|| format!("starting in {}", workdir.display()))?;
    if identity.user.is_empty() {
        return Ok(());
    }
    let ids = user::resolve(Path::new("/"), &identity.user)?;
    let groups: Vec<Gid> = ids.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups)
        .and_then(|()| setgid(Gid::from_raw(ids.gid)))
        .and_then(|()| setuid(Uid::from_raw(ids.uid)))
        .with_context(|| format!("becoming the user {}", identity.user))
}

/// A stage that only executes the command, in place of this process, so that it dies with `bootimg` and gets back
/// the signals that `bootimg` blocked; returns only if it fails.
///
/// # Errors
/// If there is no such command.
pub fn become_command(command: &[OsString]) -> anyhow::Result<Infallible> {
    set_pdeathsig(Signal::SIGKILL).context("tying the command to its parent")?;
    execute(command)
}

fn execute(command: &[OsString]) -> anyhow::Result<Infallible> {
    unblock_signals()?;
    let argv: Result<Vec<CString>, _> = command
        .iter()
        .map(|arg| CString::new(arg.clone().into_vec()))
        .collect();
    let argv = argv.context("an argument has a NUL in it")?;
    let program = argv.first().context("there is no command")?;
    execvp(program, &argv).map_err(|errno| {
        let program = OsStr::from_bytes(program.as_bytes()).display();
        match errno {
            Errno::ENOENT => anyhow!(
                "executing {program}: it is not in the root that the command runs in (PATH there: {}), or its interpreter or \
                 loader is not: name a program that is there",
                std::env::var("PATH").unwrap_or_else(|_| "not set".to_owned())
            ),
            errno => anyhow::Error::from(errno).context(format!("executing {program}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_said_with_where_it_was_looked_for() {
        let error = format!("{:#}", execute(&["no-such-program".into()]).unwrap_err());
        let path = std::env::var("PATH").unwrap();
        for part in [
            "no-such-program",
            path.as_str(),
            "name a program that is there",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = format!("{:#}", execute(&["/etc/passwd".into()]).unwrap_err());
        assert!(error.contains("executing /etc/passwd: EACCES"), "{error}");
    }
}
