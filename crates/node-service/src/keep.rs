//! The process that keeps the node's descriptors when the node dies: systemd, or a keeper.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use fdstore::{Link, Notifier};
use yolofs::MountIds;

use super::descriptors::KeptDescriptor;
use super::owned::Owned;

/// How long the keeper may take to notice what it was sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way to the keeper. Whatever goes wrong on it is logged: the mount is
/// served all the same, and only the node's own death would be worse.
#[derive(Debug)]
pub(crate) struct Keep {
    notifier: Notifier,
}

/// Returns the name of a descriptor of the mount whose device has this minor number. Names are short,
/// since all of them must fit into one variable, and those of two present mounts differ.
#[must_use]
pub(crate) fn name(kind: KeptDescriptor, minor: u32) -> String {
    format!("{}-{minor}", kind.name())
}

impl Keep {
    /// Returns the way to where `notifier` leads.
    pub(crate) const fn new(notifier: Notifier) -> Self {
        Self { notifier }
    }

    /// Uses another keeper from now on: the earlier one has died.
    pub(crate) fn relink(&self, link: Link) {
        self.notifier.relink(link);
    }

    /// Has the descriptors of a mount kept.
    pub(crate) fn put(&self, mount: &Owned) {
        for (kind, file) in mount.kept() {
            self.put_one(&name(kind, mount.visible.ids().minor), file.as_fd());
        }
        self.settle();
    }

    /// Stores one descriptor with the keeper.
    pub(crate) fn put_one(&self, name: &str, file: BorrowedFd<'_>) {
        self.tell(|notifier| notifier.store(name, file));
    }

    /// Has one kind of descriptor of a mount forgotten.
    pub(crate) fn drop_kind(&self, kind: KeptDescriptor, mount: MountIds) {
        self.drop_name(&name(kind, mount.minor));
    }

    /// Removes one descriptor from the keeper.
    pub(crate) fn drop_name(&self, name: &str) {
        self.tell(|notifier| notifier.remove(name));
    }

    /// Waits until all of that has happened.
    pub(crate) fn settle(&self) {
        self.tell(|notifier| notifier.barrier(PATIENCE));
    }

    /// Sends it a message.
    pub(crate) fn tell(&self, say: impl FnOnce(&Notifier) -> fdstore::Result<()>) {
        if let Err(error) = say(&self.notifier) {
            log::warn!("the keeper of descriptors: {}", anyhow::Error::from(error));
        }
    }
}

/// Whether a name is that of a mount's descriptor, and if so of which kind and device number.
#[must_use]
pub(crate) fn parse(name: &str) -> Option<(KeptDescriptor, u32)> {
    let (kind, minor) = name.split_once('-')?;
    let kind = KeptDescriptor::named(kind)?;
    Some((kind, minor.parse().ok()?))
}

/// The descriptors of one mount that came from the keeper.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    pub device: Option<OwnedFd>,
    pub source: Option<OwnedFd>,
    pub private: Option<OwnedFd>,
}

impl Returned {
    /// Puts one to its place.
    pub(crate) fn put(&mut self, kind: KeptDescriptor, file: OwnedFd) {
        let place = match kind {
            KeptDescriptor::Device => &mut self.device,
            KeptDescriptor::Source => &mut self.source,
            KeptDescriptor::Private => &mut self.private,
        };
        *place = Some(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_come_apart_again() {
        for kind in KeptDescriptor::ALL {
            assert_eq!(parse(&name(kind, 47)), Some((kind, 47)));
        }
        assert_eq!(name(KeptDescriptor::Device, 47), "device-47");
        assert_eq!(parse("device"), None);
        assert_eq!(parse("api-47"), None);
        assert_eq!(parse("source-x"), None);
    }
}
