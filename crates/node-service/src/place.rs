//! Checks whether a mount can be made at a place: the specification, and what is mounted there already.

use node_records::dead::is_dead;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear, is_covered, kind_at};
use host::run_dir::RunDir;
use node_api::control::NodeError;
use node_api::spec::{MountSpec, SourceLocation};

/// So many dead mounts on top of each other are cleared away.
const STACKED: usize = 16;

/// Checks paths and numbers of a specification, and returns the id of its place.
///
/// # Errors
/// [`NodeError::Invalid`], with the reason.
pub(crate) fn check(spec: &MountSpec) -> Result<String, NodeError> {
    let invalid = |why: String| Err(NodeError::Invalid(why));
    let place = match spec.place() {
        Ok(place) => place,
        Err(error) => return invalid(format!("{error:#}")),
    };
    let source = match place {
        SourceLocation::Disk(_) => Some(("source", &spec.source)),
        SourceLocation::Nic(..) if spec.auto => {
            return invalid("auto: true is for sources on a disk of this machine".to_owned());
        }
        // What is said of an image was checked with the rest.
        SourceLocation::Nic(..) | SourceLocation::Image(..) => None,
    };
    let places = [("mount point", &spec.mountpoint), ("store", &spec.store)];
    for (what, path) in source.into_iter().chain(places) {
        if !path.is_absolute() {
            return invalid(format!("the {what} {} is not absolute", path.display()));
        }
    }
    if !(1..=64).contains(&spec.threads) {
        return invalid(format!("{} threads: it takes 1 to 64", spec.threads));
    }
    let place = &spec.mountpoint;
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        return invalid("the root cannot be mounted over".to_owned());
    };
    // A dead mount answers nothing: its parent does.
    match parent.canonicalize() {
        Ok(found) if found.join(name) == *place => {}
        Ok(_) => return invalid(format!("{} has symbolic links in it", place.display())),
        Err(error) => return invalid(format!("{}: {error}", parent.display())),
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match open(place, flags, Mode::empty()) {
        // What is mounted there is looked at later.
        Ok(_) | Err(Errno::ENOTCONN) => Ok(RunDir::id_of(place)),
        Err(errno) => invalid(format!(
            "{} is no directory to mount over: {errno}",
            place.display()
        )),
    }
}

/// Checks that nothing else is mounted at a place, and unmounts what dead daemons left there.
/// In place, over its own source, a mount may cover any other.
///
/// # Errors
/// [`NodeError::Conflict`] if another mount is there that must not be removed.
pub(crate) fn make_free(spec: &MountSpec, run_dir: &RunDir) -> Result<(), NodeError> {
    let place = &spec.mountpoint;
    // The list of mounts may have hundreds of lines.
    if !is_covered(place) {
        return Ok(());
    }
    for _ in 0..STACKED {
        let kind = match kind_at(place)? {
            None => return Ok(()),
            Some(kind) => kind,
        };
        if kind != MOUNT_KIND {
            if spec.source == *place {
                return Ok(());
            }
            return Err(NodeError::Conflict(format!(
                "a mount of type {kind} is on {} already",
                place.display()
            )));
        }
        let record = run_dir.find(place)?;
        if let Some(record) = record.as_ref().filter(|record| record.is_alive()) {
            return Err(NodeError::Conflict(format!(
                "{} is served already, by process {}: unmount it first (yolofs umount)",
                place.display(),
                record.pid
            )));
        }
        if !is_dead(place) {
            return Err(NodeError::Conflict(format!(
                "a mount of yolofs that is not this node's is on {} already",
                place.display()
            )));
        }
        clear(place)?;
        if let Some(record) = record {
            run_dir.remove(&record, &run_dir.lock()?);
        }
    }
    Err(NodeError::Conflict(format!(
        "too many dead mounts lie on top of each other on {}",
        place.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn spec(source: &str, place: &Path) -> MountSpec {
        let spec = serde_json::json!({"source": source, "mountpoint": place, "store": "/store"});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_spec_that_cannot_be_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("place")).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        std::os::unix::fs::symlink("place", dir.join("link")).unwrap();
        let said = |spec: &MountSpec| match check(spec) {
            Ok(id) => id,
            Err(error) => error.to_string(),
        };
        let good = spec("/srv", &dir.join("place"));
        assert_eq!(said(&good), RunDir::id_of(&dir.join("place")));
        assert!(said(&spec("srv", &dir.join("place"))).contains("not absolute"));
        assert!(said(&spec("/srv", &dir.join("link"))).contains("no directory"));
        assert!(said(&spec("/srv", &dir.join("file"))).contains("no directory"));
        assert!(said(&spec("/srv", &dir.join("none"))).contains("no directory"));
        assert!(said(&spec("/srv", &dir.join("link/x"))).contains("symbolic links"));
        assert!(said(&spec("/srv", Path::new("/"))).contains("root"));
        let threads = MountSpec { threads: 0, ..good };
        assert!(said(&threads).contains("threads"));
        let nic = |more: &str| {
            let spec = format!(
                r#"{{"source": "nic:web", "mountpoint": {place:?}, "store": "/store"{more}}}"#,
                place = dir.join("place")
            );
            said(&serde_json::from_str(&spec).unwrap())
        };
        let address = r#", "nic": {"address": "nic:5052"}"#;
        assert_eq!(nic(address), RunDir::id_of(&dir.join("place")));
        assert!(nic("").contains("needs nic.address"));
        assert!(nic(&format!(r#"{address}, "auto": true"#)).contains("auto: true"));
        let beside = r#", "nic": {"address": "nic:5052", "source": "web"}"#;
        assert!(nic(beside).contains("nic.source"));
    }

    #[test]
    fn what_answers_is_not_dead() {
        assert!(!is_dead(Path::new("/")));
        assert!(!is_dead(Path::new("/nonexistent")));
    }
}
