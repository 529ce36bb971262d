//! Directories that are made and changed at random.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, mknod};
use proptest::prelude::*;

/// What to do to the directory. Numbers choose among what exists, whatever that is.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create {
        dir: usize,
        name: u8,
        len: usize,
    },
    Mkdir {
        dir: usize,
        name: u8,
    },
    Symlink {
        dir: usize,
        name: u8,
        target: u8,
    },
    Link {
        file: usize,
        dir: usize,
        name: u8,
    },
    /// What an overlay calls a name that a lower layer has and this one has not.
    Whiteout {
        dir: usize,
        name: u8,
    },
    Append {
        file: usize,
        len: usize,
    },
    Truncate {
        file: usize,
        len: u64,
    },
    Replace {
        file: usize,
        len: usize,
    },
    Rename {
        from: usize,
        dir: usize,
        name: u8,
    },
    Swap {
        one: usize,
        other: usize,
    },
    Remove {
        at: usize,
    },
    Chmod {
        at: usize,
        mode: u32,
    },
    SetXattr {
        at: usize,
        value: Vec<u8>,
    },
}

pub(crate) fn any_op() -> impl Strategy<Value = Op> {
    let at = || 0..1000_usize;
    let name = || 0..6_u8;
    prop_oneof![
        4 => (at(), name(), 0..9000_usize).prop_map(|(dir, name, len)| Op::Create { dir, name, len }),
        3 => (at(), name()).prop_map(|(dir, name)| Op::Mkdir { dir, name }),
        1 => (at(), name(), name()).prop_map(|(dir, name, target)| Op::Symlink { dir, name, target }),
        2 => (at(), at(), name()).prop_map(|(file, dir, name)| Op::Link { file, dir, name }),
        1 => (at(), name()).prop_map(|(dir, name)| Op::Whiteout { dir, name }),
        1 => (at(), 1..5000_usize).prop_map(|(file, len)| Op::Append { file, len }),
        1 => (at(), 0..5000_u64).prop_map(|(file, len)| Op::Truncate { file, len }),
        2 => (at(), 0..5000_usize).prop_map(|(file, len)| Op::Replace { file, len }),
        3 => (at(), at(), name()).prop_map(|(from, dir, name)| Op::Rename { from, dir, name }),
        1 => (at(), at()).prop_map(|(one, other)| Op::Swap { one, other }),
        2 => at().prop_map(|at| Op::Remove { at }),
        1 => (at(), 0..0o1000_u32).prop_map(|(at, mode)| Op::Chmod { at, mode: mode | 0o500 }),
        1 => (at(), prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(at, value)| Op::SetXattr { at, value }),
    ]
}

/// Everything in the directory, by its path from there; the root is the empty path.
pub(crate) fn everything(root: &Path) -> BTreeMap<PathBuf, Metadata> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(root.join(&path)).unwrap();
        if metadata.is_dir() {
            for entry in fs::read_dir(root.join(&path)).unwrap() {
                waiting.push(path.join(entry.unwrap().file_name()));
            }
        }
        all.insert(path, metadata);
    }
    all
}

fn pick(all: &BTreeMap<PathBuf, Metadata>, which: usize, fits: fn(&Metadata) -> bool) -> PathBuf {
    let fitting: Vec<&PathBuf> = all
        .iter()
        .filter(|(_, m)| fits(m))
        .map(|(p, _)| p)
        .collect();
    match fitting.len() {
        0 => PathBuf::from("nothing-of-the-kind"),
        len => fitting[which % len].clone(),
    }
}

/// Changes the directory. What the operating system refuses is no change: that is fine.
pub(crate) fn apply(root: &Path, op: &Op) -> std::io::Result<()> {
    let all = everything(root);
    let any = |which| root.join(pick(&all, which, |_| true));
    let file = |which| root.join(pick(&all, which, Metadata::is_file));
    let new = |dir, name: &u8| {
        root.join(pick(&all, dir, Metadata::is_dir))
            .join(format!("{name}"))
    };
    match op {
        Op::Create { dir, name, len } => File::create_new(new(*dir, name))?.write_all(&data(*len)),
        Op::Mkdir { dir, name } => fs::create_dir(new(*dir, name)),
        Op::Symlink { dir, name, target } => symlink(format!("t/{target}"), new(*dir, name)),
        Op::Link {
            file: of,
            dir,
            name,
        } => fs::hard_link(file(*of), new(*dir, name)),
        Op::Whiteout { dir, name } => {
            let (kind, mode) = (SFlag::S_IFCHR, Mode::from_bits_truncate(0o600));
            Ok(mknod(&new(*dir, name), kind, mode, 0)?)
        }
        Op::Append { file: to, len } => File::options()
            .append(true)
            .open(file(*to))?
            .write_all(&data(*len)),
        Op::Truncate { file: at, len } => {
            File::options().write(true).open(file(*at))?.set_len(*len)
        }
        Op::Replace { file: at, len } => {
            let new = root.join("new");
            fs::write(&new, data(*len))?;
            fs::rename(&new, file(*at)).or_else(|_| fs::remove_file(&new))
        }
        Op::Rename { from, dir, name } => fs::rename(any(*from), new(*dir, name)),
        Op::Swap { one, other } => nix::fcntl::renameat2(
            File::open(root)?,
            &any(*one),
            File::open(root)?,
            &any(*other),
            nix::fcntl::RenameFlags::RENAME_EXCHANGE,
        )
        .map_err(Into::into),
        Op::Remove { at } if any(*at).is_dir() && any(*at) != root.join("") => {
            fs::remove_dir_all(any(*at))
        }
        Op::Remove { at } => fs::remove_file(any(*at)),
        Op::Chmod { at, mode } => fs::set_permissions(file(*at), Permissions::from_mode(*mode)),
        Op::SetXattr { at, value } => {
            let path = any(*at);
            let dir = File::open(path.parent().unwrap())?;
            let name = path.file_name().unwrap().as_bytes();
            rawio::xattr::set_at(dir, name, c"user.random", value)
        }
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i ^ len) % 251).try_into().unwrap())
        .collect()
}
