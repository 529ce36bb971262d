//! The store of boot images: who can read it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::finding::Finding;

/// The bits of a mode for everybody but the owner and the group.
const OTHERS: u32 = 0o007;
/// The bits that let the group write.
const GROUP_WRITES: u32 = 0o020;
/// Most entries that are looked at; a second for a store that no disk has to be read for.
const MAX_ENTRIES: usize = 500_000;

/// Checks that only users with access to the recorded files can read the store.
#[must_use]
pub fn check(dir: &Path) -> Finding {
    const CHECK: &str = "store-access";
    let shown = dir.display();
    let metadata = match fs::metadata(dir) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::fine(CHECK, format!("there is no store at {shown} yet"));
        }
        Err(error) => {
            return Finding::advice(
                CHECK,
                format!("cannot look at the store {shown}: {error}"),
                "run this as root, or for another store: yolofs doctor --store DIR",
            );
        }
    };
    let closed = format!("chmod 700 {shown}, or give it to a group: yolofs --store-group GROUP");
    let mode = metadata.mode();
    if mode & OTHERS != 0 {
        let text = format!(
            "everybody can read the store {shown} (mode {:o}): boot images have content of files \
             that only root may read",
            mode & 0o7777
        );
        return Finding::fault(CHECK, text, closed);
    }
    if mode & GROUP_WRITES != 0 {
        let text = format!("the group of the store {shown} can change boot images");
        return Finding::fault(CHECK, text, format!("chmod g-w {shown}"));
    }
    // Who holds a descriptor of a directory within gets past the one above.
    match look_within(dir, MAX_ENTRIES) {
        Within::Open(open) => Finding::advice(
            CHECK,
            format!("{} in the store is readable by everybody", open.display()),
            format!("chmod -R o-rwx {shown}"),
        ),
        Within::Closed => Finding::fine(
            CHECK,
            format!("only its owner and group read the store {shown}"),
        ),
        Within::TooMany => Finding::advice(
            CHECK,
            format!(
                "the store {shown} has more than the {MAX_ENTRIES} files that this looks at; of these, \
                 only its owner and group read any"
            ),
            format!("find {shown} -perm /007 ! -type l: nothing should be listed"),
        ),
    }
}

/// What a store has that others may use.
#[derive(Debug, PartialEq, Eq)]
enum Within {
    /// This, and perhaps more.
    Open(PathBuf),
    Closed,
    /// Nothing in what was looked at, and there is more.
    TooMany,
}

fn look_within(dir: &Path, most: usize) -> Within {
    let mut left = most;
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return Within::TooMany,
            };
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.mode() & OTHERS != 0 && !metadata.is_symlink() {
                return Within::Open(entry.path());
            }
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Within::Closed
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::finding::Verdict;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_store_is_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        assert_eq!(check(&store).verdict, Verdict::Fine);
        fs::create_dir(&store).unwrap();
        for (mode, verdict) in [
            (0o700, Verdict::Fine),
            (0o2750, Verdict::Fine),
            (0o770, Verdict::Fault),
            (0o755, Verdict::Fault),
            (0o701, Verdict::Fault),
        ] {
            set(&store, mode);
            assert_eq!(check(&store).verdict, verdict, "{mode:o}");
        }
        set(&store, 0o700);
        fs::create_dir(store.join("images")).unwrap();
        set(&store.join("images"), 0o700);
        fs::write(store.join("images/a"), "").unwrap();
        set(&store.join("images/a"), 0o644);
        let found = check(&store);
        assert_eq!(found.verdict, Verdict::Advice);
        assert!(found.what.contains("images/a"), "{}", found.what);
    }

    #[test]
    fn a_store_that_was_not_seen_whole_is_not_called_closed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), "").unwrap();
            set(&dir.path().join(name), 0o600);
        }
        assert_eq!(look_within(dir.path(), 2), Within::Closed);
        assert_eq!(look_within(dir.path(), 1), Within::TooMany);
    }
}
