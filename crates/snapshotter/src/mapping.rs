//! User and group IDs of a container in a user namespace, and where they are shifted.
//!
//! A client that supports the capability `remap-ids` labels a snapshot with the container's IDs: the mounts
//! then have the options `uidmap=` and `gidmap=`, for which containerd makes idmapped mounts of the lower
//! directories. Other clients copy the layers, change the owners of the copy, and label the child snapshot
//! as well: in that case no IDs are left to be shifted.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{Result, SnapshotError};

const UID_LABEL: &str = "containerd.io/snapshot/uidmapping";
const GID_LABEL: &str = "containerd.io/snapshot/gidmapping";

/// Most ranges of a mapping: the kernel's limit.
const MAX_RANGES: usize = 340;

/// What a container's IDs are outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    uids: String,
    gids: String,
    root: (u32, u32),
}

impl Mapping {
    /// Reads it from the labels of a snapshot, if they have one.
    pub(crate) fn of<'a>(label: impl Fn(&str) -> Option<&'a String>) -> Result<Option<Self>> {
        let (uids, gids) = match (label(UID_LABEL), label(GID_LABEL)) {
            (None, None) => return Ok(None),
            (Some(uids), Some(gids)) => (uids, gids),
            (Some(uids), None) => return Err(bad(GID_LABEL, "", uids)),
            (None, Some(gids)) => return Err(bad(UID_LABEL, "", gids)),
        };
        let root = |label, ranges: &str| {
            root_of(ranges).ok_or_else(|| bad(label, ranges, "CONTAINER:HOST:LENGTH"))
        };
        Ok(Some(Self {
            root: (root(UID_LABEL, uids)?, root(GID_LABEL, gids)?),
            uids: uids.clone(),
            gids: gids.clone(),
        }))
    }

    /// Returns the user and the group that root of the container is outside of it.
    pub(crate) const fn root(&self) -> (u32, u32) {
        self.root
    }

    /// Returns whether the owners in a layer are those outside of the container already: its client has
    /// changed them in a copy. In a layer of an image the topmost directory is root's.
    pub(crate) fn is_done_in(&self, layer: &Path) -> Result<bool> {
        let of = std::fs::metadata(layer).map_err(SnapshotError::io("look at", layer))?;
        Ok(self.root != (0, 0) && (of.uid(), of.gid()) == self.root)
    }

    /// Returns the options that make containerd shift the IDs.
    pub(crate) fn options(&self) -> [String; 2] {
        [
            format!("uidmap={}", self.uids),
            format!("gidmap={}", self.gids),
        ]
    }
}

/// Reads ranges, and returns what 0 is outside.
fn root_of(ranges: &str) -> Option<u32> {
    let mut root = None;
    for (number, range) in ranges.split(',').enumerate() {
        let mut numbers = range.split(':').map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inside, outside, len) = (next()?, next()?, next()?);
        let fits = |first: u32| first.checked_add(len.checked_sub(1)?);
        fits(inside)?;
        fits(outside)?;
        if numbers.next().is_some() || number >= MAX_RANGES {
            return None;
        }
        root = root.or((inside == 0).then_some(outside));
    }
    root
}

fn bad(label: &'static str, value: &str, wanted: &str) -> SnapshotError {
    SnapshotError::BadMapping {
        label,
        value: value.to_owned(),
        wanted: wanted.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Labels;

    fn of(labels: &Labels) -> Result<Option<Mapping>> {
        Mapping::of(|label| labels.get(label))
    }

    fn labels(uids: Option<&str>, gids: Option<&str>) -> Labels {
        let both = [(UID_LABEL, uids), (GID_LABEL, gids)].into_iter();
        both.filter_map(|(label, value)| Some((label.to_owned(), value?.to_owned())))
            .collect()
    }

    #[test]
    fn reads_what_clients_write() {
        assert_eq!(of(&labels(None, None)).unwrap(), None);
        let labels = labels(Some("0:100000:65536"), Some("1:5:2,0:200000:1"));
        let mapping = Mapping::of(|label| labels.get(label)).unwrap().unwrap();
        assert_eq!(mapping.root(), (100_000, 200_000));
        let options = ["uidmap=0:100000:65536", "gidmap=1:5:2,0:200000:1"];
        assert_eq!(mapping.options(), options);
    }

    #[test]
    fn refuses_what_is_none() {
        let good = Some("0:1:1");
        let many = vec!["0:1:1"; MAX_RANGES + 1].join(",");
        for bad in [
            "",
            "0:1",
            "0:1:1:1",
            "1:1:1",
            "0:1:0",
            "0:4294967295:2",
            "0:-1:1",
            "0:1:1,",
            "0:1:1 ,rw",
            many.as_str(),
        ] {
            let error = of(&labels(good, Some(bad))).unwrap_err();
            assert!(matches!(error, SnapshotError::BadMapping { .. }), "{bad}");
            assert!(of(&labels(Some(bad), good)).is_err(), "{bad}");
        }
        assert!(of(&labels(good, None)).is_err());
        assert!(of(&labels(None, good)).is_err());
    }

    #[test]
    fn knows_layers_whose_owners_were_changed() {
        let dir = tempfile::tempdir().unwrap();
        let mine = std::fs::metadata(dir.path()).unwrap();
        let is_done = |uid| {
            let (uids, gids) = (format!("0:{uid}:9"), format!("0:{}:9", mine.gid()));
            let mapping = of(&labels(Some(&uids), Some(&gids))).unwrap();
            mapping.unwrap().is_done_in(dir.path()).unwrap()
        };
        assert!(!is_done(mine.uid() + 1));
        // Root's own are no copy's.
        let is_root = (mine.uid(), mine.gid()) == (0, 0);
        assert_eq!(is_done(mine.uid()), !is_root);
    }
}
