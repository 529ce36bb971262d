//! Snapshots with a device of their own.

use super::State;
use super::place::Reserved;
use crate::block::BlockImages;
use crate::block_layer::{BLOB_NAME, BlockLayer};
use crate::error::{Result, SnapshotError};
use crate::lowers::Lowers;
use crate::mapping::Mapping;
use crate::overlay::{Mount, mountable};
use crate::own_device::{DeviceForm, QUOTA, WRITABLE, WantedDevice};
use crate::snapshot::{Labels, Snapshot, Stack, Usage};
use crate::unpacks::unpacks;

impl<L: Lowers> State<L> {
    /// Returns how a new snapshot on a parent gets a device of its own, if its labels ask for one or containers have one by
    /// default. Without a block image below there is none, as in overlaybd's snapshotter.
    ///
    /// # Errors
    /// If it cannot have one that its labels ask for, though a block image is below.
    pub(super) fn device_form(
        &self,
        key: &str,
        labels: &Labels,
        on: Option<&Snapshot>,
    ) -> Result<Option<DeviceForm>> {
        let (Some(on), Some(blocks)) = (on, &self.blocks) else {
            return Ok(None);
        };
        if unpacks(key, labels) {
            return Ok(None);
        }
        let Some(asked) = labels.get(WRITABLE) else {
            return self.default_form(&**blocks, labels, on);
        };
        let Some(form) = DeviceForm::of(asked) else {
            return Ok(None);
        };
        let refused = |why| SnapshotError::NoDevice {
            key: key.to_owned(),
            why,
        };
        let stack = self.catalog.stack(&on.name)?;
        let has_blocks = stack.parents.iter().any(|below| below.block.is_some());
        match on.block {
            None if has_blocks => {
                return Err(refused(
                    "a usual layer is above the block image, such as that of a committed container: convert \
                     the whole image",
                ));
            }
            None => return Ok(None),
            Some(_) => {}
        }
        if Mapping::of(|label| labels.get(label))?.is_some() {
            return Err(refused("its container has user IDs that are mapped"));
        }
        Ok(Some(form))
    }

    /// Returns how a new snapshot gets a device that nothing is said of. Where it cannot have one it gets an overlay.
    fn default_form(
        &self,
        blocks: &dyn BlockImages,
        labels: &Labels,
        on: &Snapshot,
    ) -> Result<Option<DeviceForm>> {
        if on.block.is_none() || Mapping::of(|label| labels.get(label))?.is_some() {
            return Ok(None);
        }
        let stack = self.catalog.stack(&on.name)?;
        let image: Vec<_> = [stack.snapshot].into_iter().chain(stack.parents).collect();
        Ok(blocks.form_by_default(&self.layers_of(&image)?))
    }

    /// Returns what shows the files of a snapshot with a device of its own.
    pub(super) fn device_mounts(&self, stack: &Stack, form: DeviceForm) -> Result<Vec<Mount>> {
        let layers = self.layers_of(&stack.parents)?;
        let id = stack.snapshot.id;
        let quota = stack.snapshot.labels.get(QUOTA);
        let wanted = WantedDevice {
            form,
            quota: quota.map(String::as_str),
        };
        let device = match &self.blocks {
            Some(blocks) => blocks.device(id, wanted, &layers),
            None => Err("this snapshotter serves no block images".into()),
        };
        let device = device.map_err(|source| SnapshotError::OwnDevice {
            doing: "served",
            key: stack.snapshot.name.clone(),
            source,
        })?;
        let source = mountable(&device.path)?.to_owned();
        let own = |fs_type, options: &[&str]| Mount {
            fs_type,
            source,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        Ok(vec![match form {
            DeviceForm::Dir => own("bind", &["rw", "rbind"]),
            DeviceForm::Dev => own(device.fs_type, &["rw", "discard"]),
        }])
    }

    /// Writes what is on the device of a snapshot to the blob of the layer that it is to become, in its directory. Until
    /// the result is dropped nobody else does.
    pub(super) fn seal(
        &self,
        active: &Snapshot,
        name: &str,
    ) -> Result<Option<(BlockLayer, Reserved<'_, L>)>> {
        let (Some(_), Some(blocks)) = (active.device, &self.blocks) else {
            return Ok(None);
        };
        let reserved = Reserved::alone(self, active)?;
        // Another commit may have ended just now.
        self.catalog.check_commit(name, &active.name, None)?;
        let blob = self.root.fs(active.id).join(BLOB_NAME);
        let sealed = blocks.seal(active.id, &blob);
        let (digest, size) = sealed.map_err(|source| SnapshotError::OwnDevice {
            doing: "committed",
            key: active.name.clone(),
            source,
        })?;
        let layer = BlockLayer {
            digest: Some(digest),
            size,
            target: None,
            blobs: None,
        };
        Ok(Some((layer, reserved)))
    }

    /// Returns the space that the device of a snapshot takes.
    pub(super) fn device_usage(&self, snapshot: &Snapshot) -> Result<Usage> {
        let Some(blocks) = &self.blocks else {
            return Ok(Usage::default());
        };
        let used = blocks.device_usage(snapshot.id);
        used.map_err(|source| SnapshotError::OwnDevice {
            doing: "measured",
            key: snapshot.name.clone(),
            source,
        })
    }

    /// Has the device of a snapshot ended, if it has one.
    pub(super) fn end_device(&self, snapshot: &Snapshot) {
        if let (Some(_), Some(blocks)) = (snapshot.device, &self.blocks) {
            blocks.device_ended(snapshot.id);
        }
    }
}
