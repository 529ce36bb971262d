//! The descriptors of a mount, and the one order in which they travel between the node and its workers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::bail;
use node_api::spec::MountSpec;

/// The descriptors of a mount, owned or borrowed. While the node holds them, a mount without a worker is only
/// slow, not dead.
#[derive(Debug)]
pub(crate) struct MountDescriptors<F = OwnedFd> {
    /// The FUSE device.
    pub(crate) device: F,
    /// The source, as it was opened before the mount covered it; absent if it is on no disk.
    pub(crate) source: Option<F>,
    /// A file, open for reading and writing. The first worker writes the names and attributes that it
    /// serves to it; later workers read it instead of scanning the source: the kernel knows inodes by
    /// their numbers, and these must not change with the source. Empty until then. If the source is
    /// served by a block service, the file holds the index.
    pub(crate) names: F,
    /// The root of the private mount; absent if the visible one is gone, and only its remaining users
    /// are served.
    pub(crate) private: Option<F>,
}

impl<F: AsFd> MountDescriptors<F> {
    /// Returns all of them, in the order in which they travel.
    pub(crate) fn in_order(&self) -> Vec<BorrowedFd<'_>> {
        let all = [
            Some(&self.device),
            self.source.as_ref(),
            Some(&self.names),
            self.private.as_ref(),
        ];
        all.into_iter().flatten().map(AsFd::as_fd).collect()
    }
}

impl MountDescriptors {
    /// Assigns received descriptors, in the order in which they are sent, for a mount with this specification.
    ///
    /// # Errors
    /// If the number of descriptors is not that of such a mount.
    pub(crate) fn received(spec: &MountSpec, descriptors: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let count = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let device = descriptors.next();
        let on_disk = spec.is_on_disk();
        let source = if on_disk { descriptors.next() } else { None };
        let names = descriptors.next();
        let private = descriptors.next();
        match (device, names, descriptors.next()) {
            (Some(device), Some(names), None) if source.is_some() == on_disk => Ok(Self {
                device,
                source,
                names,
                private,
            }),
            _ => bail!("received {count} descriptors, which is wrong for this mount"),
        }
    }
}

/// The descriptors that are kept over the node's own death. The file of names has a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptDescriptor {
    /// The FUSE device.
    Device,
    /// The root of the private mount.
    Private,
    /// The source.
    Source,
}

impl KeptDescriptor {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Device, Self::Private, Self::Source];

    /// Returns what the keeper calls it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Private => "private",
            Self::Source => "source",
        }
    }

    /// Returns the one of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    fn spec(more: &str) -> MountSpec {
        let text = format!(r#"{{"mountpoint": "/mnt", "store": "/store", {more}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_is_sent_in_order_is_received_in_it() {
        let disk = spec(r#""source": "/srv""#);
        let service = spec(r#""source": "nic:web", "nic": {"address": "nic:5052"}"#);
        let files = |count: usize| std::iter::repeat_with(file).take(count).collect::<Vec<_>>();
        for (spec, count) in [(&disk, 4), (&disk, 3), (&service, 3), (&service, 2)] {
            let received = MountDescriptors::received(spec, files(count)).unwrap();
            assert_eq!(received.source.is_some(), spec.is_on_disk());
            let sent = received.in_order();
            assert_eq!(sent.len(), count);
            let sent = sent.iter().map(|fd| fd.try_clone_to_owned().unwrap());
            let again = MountDescriptors::received(spec, sent.collect()).unwrap();
            assert_eq!(again.private.is_some(), received.private.is_some());
        }
        for (spec, count) in [(&disk, 2), (&disk, 5), (&service, 1), (&service, 4)] {
            let refused = MountDescriptors::received(spec, files(count));
            assert!(refused.is_err(), "{count}");
        }
    }
}
