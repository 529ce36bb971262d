//! The last steps of a process before its program: it changes its user, and drops rights.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use caps::{CapSet, CapsHashSet};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::resource::setrlimit;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, chdir, fchown, getcwd, setgroups, setresgid, setresuid};
use rawio::child::Step;

use crate::error::{OciError, Result, at};
use crate::plan::process::ProcessPlan;
use crate::seccomp::Filter;

/// A file of users is not longer than this; what is behind is not read.
const USERS_MAX_BYTES: u64 = 1 << 20;

/// Becomes the program. Returns only if that fails.
pub(crate) fn become_program(process: &ProcessPlan, filter: Option<&Filter>) -> OciError {
    match prepare(process, filter).and_then(|(path, variables)| execute(process, &path, &variables))
    {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn prepare(process: &ProcessPlan, filter: Option<&Filter>) -> Result<(PathBuf, Vec<CString>)> {
    for (name, (soft, hard)) in &process.limits {
        if let Some(resource) = name.resource() {
            let subject = || PathBuf::from(format!("{resource:?}"));
            setrlimit(resource, *soft, *hard).map_err(at("setting the limit", subject()))?;
        }
    }
    // Without the promise below, only who has rights yet may filter.
    if !process.no_new_privileges {
        filter_calls(filter)?;
    }
    let variables = variables(process)?;
    give_streams(process.uid)?;
    become_user(process)?;
    let _before = umask(Mode::from_bits_truncate(process.umask));
    enter(&process.directory)?;
    let path = find_program(process)?;
    if process.no_new_privileges {
        nix::sys::prctl::set_no_new_privs().map_err(at("giving up", "new privileges"))?;
        filter_calls(filter)?;
    }
    Ok((path, variables))
}

fn execute(
    process: &ProcessPlan,
    path: &Path,
    variables: &[CString],
) -> Result<std::convert::Infallible> {
    let arguments = strings(&process.arguments)?;
    let program = strings(&[path.to_string_lossy().into_owned()])?;
    let Some(program) = program.first() else {
        return Err(OciError::Process("there is no program".to_owned()));
    };
    nix::unistd::execve(program, &arguments, variables).map_err(|errno| {
        OciError::Process(format!("exec {}: {}", path.display(), words(&errno.into())))
    })
}

/// The words that engines know.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn strings(list: &[String]) -> Result<Vec<CString>> {
    let convert = |text: &String| CString::new(text.as_bytes());
    let strings: std::result::Result<_, _> = list.iter().map(convert).collect();
    strings.map_err(|_| OciError::Invalid("a string has a NUL".to_owned()))
}

/// Finds the program as the process will. The message is the one by which engines choose an exit code.
pub(crate) fn find_program(process: &ProcessPlan) -> Result<PathBuf> {
    let name = process.arguments.first().map_or("", String::as_str);
    let refuse = |why: &str| OciError::Process(format!("exec: {name:?}: {why}"));
    if name.contains('/') {
        let path = process.directory.join(name);
        return match path.metadata() {
            Err(error) => Err(refuse(&format!("stat {name}: {}", words(&error)))),
            Ok(found) if found.is_dir() => Err(refuse("is a directory: permission denied")),
            Ok(found) if found.permissions().mode() & 0o111 == 0 => {
                Err(refuse("permission denied"))
            }
            Ok(_) => Ok(path),
        };
    }
    let of_path = process
        .variables
        .iter()
        .rev()
        .find_map(|at| at.strip_prefix("PATH="));
    for dir in of_path
        .unwrap_or_default()
        .split(':')
        .filter(|_| !name.is_empty())
    {
        let path = process.directory.join(dir).join(name);
        if path
            .metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        {
            return Ok(path);
        }
    }
    Err(refuse("executable file not found in $PATH"))
}

/// The variables, and where the user is at home, if that is not among them.
fn variables(process: &ProcessPlan) -> Result<Vec<CString>> {
    let mut variables = process.variables.clone();
    if !variables
        .iter()
        .any(|at| at.starts_with("HOME=") && at.len() > 5)
    {
        variables.retain(|at| !at.starts_with("HOME="));
        variables.push(format!("HOME={}", home(process.uid)));
    }
    strings(&variables)
}

/// Looks up the home of a user of the container. The file is the container's, and may be anything.
fn home(uid: u32) -> String {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = openat2(nix::fcntl::AT_FDCWD, "/etc/passwd", how).map(File::from);
    let file = file
        .ok()
        .filter(|file| file.metadata().is_ok_and(|found| found.is_file()));
    let mut text = Vec::new();
    if let Some(file) = file {
        // Half of it is as good as none: those without an entry are at home in `/`.
        let _partly = file.take(USERS_MAX_BYTES).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let of_user = text.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let is_own = fields.get(2).is_some_and(|field| *field == uid.to_string());
        fields
            .get(5)
            .filter(|_| is_own)
            .map(|home| (*home).to_owned())
    });
    of_user
        .filter(|home| !home.is_empty())
        .unwrap_or_else(|| "/".to_owned())
}

/// Makes the streams those of the user, who may open them again by their names.
fn give_streams(uid: u32) -> Result<()> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams: [BorrowedFd<'_>; 3] = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    for stream in streams {
        let found = stream
            .try_clone_to_owned()
            .map(File::from)
            .and_then(|file| file.metadata());
        let is_null = |rdev: u64| rdev == nix::sys::stat::makedev(1, 3);
        let foreign = found.is_ok_and(|found| found.uid() != uid && !is_null(found.rdev()));
        if foreign {
            // Whoever gave it may have it on a file system that nobody changes; then it stays theirs.
            let _theirs = fchown(stream, Some(Uid::from_raw(uid)), None);
        }
    }
    Ok(())
}

fn become_user(process: &ProcessPlan) -> Result<()> {
    let rights = &process.rights;
    let doing = "giving up capabilities of";
    let subject = || PathBuf::from("the process");
    let failed =
        |error: caps::errors::CapsError| at(doing, subject())(io::Error::other(error.to_string()));
    for capability in caps::all().difference(&rights.bounding) {
        if caps::has_cap(None, CapSet::Bounding, *capability).unwrap_or(false) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(failed)?;
        }
    }
    let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
    let groups: Vec<_> = process.groups.iter().copied().map(Gid::from_raw).collect();
    let becoming = |errno: nix::Error| at("becoming", format!("user {uid}, group {gid}"))(errno);
    nix::sys::prctl::set_keepcaps(true).map_err(becoming)?;
    setgroups(&groups).map_err(becoming)?;
    setresgid(gid, gid, gid).map_err(becoming)?;
    setresuid(uid, uid, uid).map_err(becoming)?;
    nix::sys::prctl::set_keepcaps(false).map_err(becoming)?;
    // What this program does not have itself, it cannot give: that is less than was asked for.
    let own = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let set = |kind: CapSet, wanted: &CapsHashSet| {
        let given: CapsHashSet = wanted.intersection(&own).copied().collect();
        caps::set(None, kind, &given).map_err(failed)
    };
    caps::clear(None, CapSet::Ambient).map_err(failed)?;
    set(CapSet::Inheritable, &rights.inheritable)?;
    set(CapSet::Effective, &rights.effective)?;
    set(CapSet::Permitted, &rights.permitted)?;
    set(CapSet::Ambient, &rights.ambient)
}

/// Changes the directory, and makes sure that it is one of the container: a link to a descriptor of ours
/// would lead out of it.
fn enter(directory: &Path) -> Result<()> {
    chdir(directory).map_err(at("chdir to cwd", directory))?;
    let found = getcwd().map_err(at("finding", directory))?;
    match found.is_absolute() {
        true => Ok(()),
        false => Err(OciError::Process(format!(
            "{} leads out of the root",
            directory.display()
        ))),
    }
}

fn filter_calls(filter: Option<&Filter>) -> Result<()> {
    let Some(filter) = filter else {
        return Ok(());
    };
    let steps = [Step::Filter(&filter.instructions)];
    rawio::child::take_own_steps(&steps).map_err(at("filtering", "system calls"))
}
