//! The mounts of a snapshot, as containerd receives them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Result, SnapshotError};
use crate::mapping::Mapping;
use crate::snapshot::Kind;

/// A mount, as containerd's API has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `bind` or `overlay`.
    pub fs_type: &'static str,
    /// The directory to bind; for an overlay, `overlay`.
    pub source: String,
    /// As of fstab(5).
    pub options: Vec<String>,
}

/// A snapshot's place in its overlay.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    pub(crate) kind: Kind,
    pub(crate) fs: &'a Path,
    pub(crate) work: &'a Path,
    /// Nearest first.
    pub(crate) lowers: &'a [PathBuf],
    /// Whether it is a layer that gets its parents only when it is committed.
    pub(crate) is_stacked_later: bool,
    /// What containerd is to shift, if the container has other user IDs.
    pub(crate) mapping: Option<&'a Mapping>,
}

/// The options that this kernel's overlayfs needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverlayOptions {
    always: Vec<String>,
}

impl OverlayOptions {
    /// Detects them.
    pub(crate) fn of_this_kernel() -> Self {
        let mut always = Vec::new();
        // With an index an upper directory is bound to one set of lower ones, by their file
        // handles: a container could not be started again over served layers.
        if Path::new("/sys/module/overlay/parameters/index").exists() {
            always.push("index=off".to_owned());
        }
        if in_user_namespace() {
            always.push("userxattr".to_owned());
        }
        // Not `xino=on`, though served layers would have steadier inode numbers with it: BuildKit
        // refuses to merge layers whose mounts have an option that it does not know.
        Self { always }
    }

    /// Returns what shows the snapshot: a bind mount of the only directory there is, or an overlay
    /// of several.
    pub(crate) fn mounts(&self, of: &Layout<'_>) -> Result<Vec<Mount>> {
        let mount = match (of.kind, of.lowers) {
            // For whoever unpacks into it: in an upper directory, what is deleted below is a whiteout.
            (Kind::Active, []) if of.is_stacked_later => self.overlay(of.kind, of, &[])?,
            (Kind::Active, []) => bind(of.fs, "rw", of)?,
            (_, []) => bind(of.fs, "ro", of)?,
            (Kind::View | Kind::Committed, [only]) => bind(only, "ro", of)?,
            (kind, lowers) => self.overlay(kind, of, lowers)?,
        };
        Ok(vec![mount])
    }

    /// The options may be longer than the page that mount(2) takes: containerd's mounter then
    /// changes to the directory that the lower ones share and shortens them.
    fn overlay(&self, kind: Kind, of: &Layout<'_>, lowers: &[PathBuf]) -> Result<Mount> {
        let mut options = self.always.clone();
        options.extend(of.shifts());
        if kind == Kind::Active {
            options.push(format!("workdir={}", mountable(of.work)?));
            options.push(format!("upperdir={}", mountable(of.fs)?));
        }
        let lowers: Vec<&str> = lowers.iter().map(|l| mountable(l)).collect::<Result<_>>()?;
        if !lowers.is_empty() {
            options.push(format!("lowerdir={}", lowers.join(":")));
        }
        Ok(Mount {
            fs_type: "overlay",
            source: "overlay".to_owned(),
            options,
        })
    }
}

impl Layout<'_> {
    fn shifts(&self) -> impl Iterator<Item = String> {
        self.mapping.map(Mapping::options).into_iter().flatten()
    }
}

fn bind(source: &Path, access: &str, of: &Layout<'_>) -> Result<Mount> {
    let access = [access.to_owned(), "rbind".to_owned()];
    Ok(Mount {
        fs_type: "bind",
        source: mountable(source)?.to_owned(),
        options: of.shifts().chain(access).collect(),
    })
}

/// Refuses a directory whose name overlayfs would parse as two.
pub(crate) fn mountable(path: &Path) -> Result<&str> {
    path.to_str()
        .filter(|text| !text.contains([',', ':', '\\']))
        .ok_or_else(|| SnapshotError::Unmountable {
            path: path.to_owned(),
        })
}

/// Returns whether this process is root only in its own world: there overlayfs keeps its marks in
/// attributes that begin with `user.`.
fn in_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().ne(["0", "0", "4294967295"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: Kind, lowers: &[&str]) -> Mount {
        let options = OverlayOptions {
            always: vec!["index=off".to_owned()],
        };
        let lowers: Vec<PathBuf> = lowers.iter().map(PathBuf::from).collect();
        let layout = Layout {
            kind,
            fs: Path::new("/r/9/fs"),
            work: Path::new("/r/9/work"),
            lowers: &lowers,
            is_stacked_later: false,
            mapping: None,
        };
        options.mounts(&layout).unwrap().remove(0)
    }

    #[test]
    fn binds_one_directory_and_overlays_several() {
        let cases = [
            (Kind::Active, vec![], "bind /r/9/fs rw,rbind"),
            (Kind::View, vec![], "bind /r/9/fs ro,rbind"),
            (Kind::View, vec!["/r/1/fs"], "bind /r/1/fs ro,rbind"),
            (
                Kind::View,
                vec!["/r/2/fs", "/r/1/fs"],
                "overlay overlay index=off,lowerdir=/r/2/fs:/r/1/fs",
            ),
            (
                Kind::Active,
                vec!["/r/1/fs"],
                "overlay overlay index=off,workdir=/r/9/work,upperdir=/r/9/fs,lowerdir=/r/1/fs",
            ),
            (
                Kind::Active,
                vec!["/r/2/fs", "/r/served/1"],
                "overlay overlay index=off,workdir=/r/9/work,upperdir=/r/9/fs,\
                 lowerdir=/r/2/fs:/r/served/1",
            ),
        ];
        for (kind, lowers, expected) in cases {
            let Mount {
                fs_type,
                source,
                options,
            } = mount(kind, &lowers);
            assert_eq!(
                format!("{fs_type} {source} {}", options.join(",")),
                expected
            );
        }
    }

    #[test]
    fn a_layer_that_is_stacked_later_is_an_upper_directory() {
        let layout = Layout {
            kind: Kind::Active,
            fs: Path::new("/r/9/fs"),
            work: Path::new("/r/9/work"),
            lowers: &[],
            is_stacked_later: true,
            mapping: None,
        };
        let mount = OverlayOptions::default().mounts(&layout).unwrap().remove(0);
        assert_eq!(mount.fs_type, "overlay");
        assert_eq!(mount.options, ["workdir=/r/9/work", "upperdir=/r/9/fs"]);
    }

    #[test]
    fn has_ids_shifted_that_a_container_has_not() {
        let ids = ["uid", "gid"].map(|kind| {
            let label = format!("containerd.io/snapshot/{kind}mapping");
            (label, "0:100000:65536".to_owned())
        });
        let mapping = Mapping::of(|label| {
            ids.iter()
                .find(|(key, _)| key == label)
                .map(|(_, value)| value)
        })
        .unwrap();
        let mut layout = Layout {
            kind: Kind::Active,
            fs: Path::new("/r/9/fs"),
            work: Path::new("/r/9/work"),
            lowers: &[PathBuf::from("/r/1/fs")],
            is_stacked_later: false,
            mapping: mapping.as_ref(),
        };
        let options = |layout: &Layout<'_>| {
            let mounts = OverlayOptions::default().mounts(layout).unwrap();
            mounts[0].options.join(",")
        };
        assert_eq!(
            options(&layout),
            "uidmap=0:100000:65536,gidmap=0:100000:65536,workdir=/r/9/work,upperdir=/r/9/fs,lowerdir=/r/1/fs"
        );
        layout.lowers = &[];
        assert_eq!(
            options(&layout),
            "uidmap=0:100000:65536,gidmap=0:100000:65536,rw,rbind"
        );
    }

    #[test]
    fn refuses_what_overlayfs_would_split() {
        for path in ["/a,b", "/a:b", "/a\\b"] {
            let error = mountable(Path::new(path)).unwrap_err();
            assert!(matches!(error, SnapshotError::Unmountable { .. }), "{path}");
        }
    }
}
