//! Which first boots are recorded: those of all images, or those with a label.

use snapshotter::Snapshot;

use super::Ending;
use recording::until::Until;

/// What `yolofs.record` is called: containerd hands only labels with its prefix to a snapshotter.
const LABELS: [&str; 2] = ["containerd.io/snapshot/yolofs.record", "yolofs.record"];
/// containerd unpacks a layer into a snapshot with this label, or with such a key.
const UNPACKED_AS: &str = "containerd.io/snapshot.ref";
const UNPACK_PREFIX: &str = "extract-";
/// Docker writes `/etc/hosts` and the like into a snapshot `ID-init-key`, commits it as `ID-init`,
/// and has the container `ID` stand on that.
const DOCKER_INIT: &str = "-init-key";

/// Which first boots are recorded, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Those without a label too, until this.
    pub always: Option<Ending>,
}

impl Policy {
    /// Returns when the boot of `snapshot` is over, if it is to be recorded.
    pub(super) fn asked_for(&self, snapshot: &Snapshot) -> Option<Ending> {
        let name = snapshot.name.rsplit('/').next().unwrap_or_default();
        let is_unpacked =
            snapshot.labels.contains_key(UNPACKED_AS) || name.starts_with(UNPACK_PREFIX);
        if is_unpacked || name.ends_with(DOCKER_INIT) {
            return None;
        }
        let mut labels = LABELS
            .iter()
            .filter_map(|label| snapshot.labels.get(*label));
        let Some(label) = labels.next() else {
            return self.always;
        };
        let until = label.parse::<Until>();
        match until.and_then(|until| Ending::try_from(&until)) {
            Ok(ending) => Some(ending),
            Err(error) => {
                let name = &snapshot.name;
                log::warn!("{name}: yolofs.record={label}: {error:#}");
                self.always
            }
        }
    }
}
