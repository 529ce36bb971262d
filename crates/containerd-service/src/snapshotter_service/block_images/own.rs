//! Devices that one snapshot writes to: on the layers of its image is a writable one.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use blockimages::convert::ConvertOptions;
use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::{CONFIG_NAME, DeviceConfig, FileSystemKind};
use blocks::Digest;
use node_api::client::CallError;
use node_api::device::{DeviceKind, DeviceSpec};
use node_api::image::ImageSpec;
use snapshotter::{BlockDir, DeviceForm, OwnDevice, SnapshotId, Usage, WantedDevice};

use super::places::DeviceId;
use super::{COMES_BACK, NOBODY, NodeBlockImages, is_mounted, make};
use host::mount_table::kind_at;
use host::size::Size;
use rawio::private;

/// What HTTP says of things that are not there, and of those that are in use.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
/// How long a container that has ended may take to unmount its root: what it wrote goes to the disk before.
const LETS_GO: Duration = Duration::from_secs(8);
/// How often that is looked for.
const AGAIN: Duration = Duration::from_millis(100);
/// Of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

impl NodeBlockImages {
    /// Has the device of a snapshot served, and its file system mounted if it is wanted so; makes the image if it is new.
    pub(super) fn serve_own(
        &self,
        id: SnapshotId,
        WantedDevice { form, quota }: WantedDevice<'_>,
        layers: &[BlockDir],
    ) -> anyhow::Result<OwnDevice> {
        let id = DeviceId::Own(id);
        let limit = quota.map(limit_of).transpose()?.or(self.own_limit);
        let image = self.places.of(id);
        let [at, mounted] = self.places.mounts(id);
        private::keep(&self.places.dir).context("making the directory of devices")?;
        for dir in [&image, &at, &mounted] {
            make(dir)?;
        }
        if !image.join(CONFIG_NAME).exists() {
            self.create_own(&image, layers, limit)?;
        }
        let spec = DeviceSpec {
            name: self.places.name(id),
            image,
            kind: DeviceKind::File,
            at,
            erofs: (form == DeviceForm::Dir).then(|| mounted.clone()),
            writable: true,
            suid_dev: form == DeviceForm::Dir,
            loop_device: form == DeviceForm::Dev,
            store: self.store.clone(),
            options: ImageSpec {
                record: false,
                ..self.options.clone()
            },
        };
        spec.check()?;
        let path = match (self.node.ask(COMES_BACK, |node| node.attach(&spec)), form) {
            (Ok(_), DeviceForm::Dir) => mounted,
            (Ok(attached), DeviceForm::Dev) => attached
                .device
                .loop_device
                .context("the node is of an earlier release, and makes no loop device")?,
            // Reads and writes wait for the next node and its workers.
            (Err(error), DeviceForm::Dir) if is_mounted(&mounted) => {
                log::warn!("{}: {error}; using what is mounted", mounted.display());
                mounted
            }
            (Err(CallError::Nobody(_)), _) => bail!(NOBODY),
            (Err(error), _) => return Err(error.into()),
        };
        Ok(OwnDevice {
            path,
            fs_type: FileSystemKind::Ext4.name(),
        })
    }

    /// Makes an image of layers with a writable one on top, which overwrites itself in place: what a container writes again
    /// and again takes no more space.
    fn create_own(
        &self,
        image: &Path,
        layers: &[BlockDir],
        limit: Option<u64>,
    ) -> anyhow::Result<()> {
        let (dir, device) = self.serve(layers, None)?;
        let size = device.and_then(|device| device.served).map(|it| it.size);
        let size = size.context("the node does not say how large the image is: try again")?;
        if !is_writable(&dir) {
            bail!(
                "the image has a file system that can only be read: convert it to an ext4 (yolofs block convert)"
            );
        }
        let top = layers.first().context("an image without layers")?.id;
        let (mut config, _) = DeviceConfig::read(&self.places.of(DeviceId::Layers(top)))?;
        config.upper = None;
        let new = NewImage {
            top: Top::Pair(UpperKind::Hybrid),
            size: Some(size),
            limit,
        };
        manage::create(image, config, new)?;
        Ok(())
    }

    /// Ends the device of a snapshot, and writes what was written to it to a blob.
    pub(super) fn seal_own(&self, id: SnapshotId, blob: &Path) -> anyhow::Result<(Digest, u64)> {
        let id = DeviceId::Own(id);
        self.end_own(&self.places.name(id))?;
        let options = ConvertOptions::default().blob();
        let sealed = manage::seal(&self.places.of(id), blob, options, &[])?;
        Ok((sealed.digest, sealed.size))
    }

    /// Ends a device that is about to be unmounted by who used it, if it is not ended yet.
    fn end_own(&self, name: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + LETS_GO;
        loop {
            match self.node.ask(COMES_BACK, |node| node.detach(name)) {
                Ok(())
                | Err(CallError::Refused {
                    status: NOT_FOUND, ..
                }) => return Ok(()),
                Err(CallError::Refused {
                    status: CONFLICT, ..
                }) if Instant::now() < deadline => std::thread::sleep(AGAIN),
                Err(
                    error @ CallError::Refused {
                        status: CONFLICT, ..
                    },
                ) => {
                    let advice = "its file system is mounted: end the container, and commit again (with `dir`, docker \
                                  commit and nerdctl commit make a usual layer of one that runs)";
                    return Err(anyhow::Error::from(error).context(advice));
                }
                Err(CallError::Nobody(_)) => bail!(NOBODY),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the space of the files of the device of a snapshot, without what is mounted among them.
    pub(super) fn usage_of_own(&self, id: SnapshotId) -> anyhow::Result<Usage> {
        let image = self.places.of(DeviceId::Own(id));
        let mut usage = Usage::default();
        let entries = std::fs::read_dir(&image);
        for entry in entries.with_context(|| format!("listing {}", image.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                usage.inodes += 1;
                usage.bytes += entry.metadata()?.blocks() * SECTOR_BYTES;
            }
        }
        Ok(usage)
    }
}

/// Returns the number of bytes in a label `disk_quota`.
fn limit_of(quota: &str) -> anyhow::Result<u64> {
    match quota.parse() {
        Ok(Size(bytes @ 1..)) => Ok(bytes),
        _ => bail!("its label disk_quota says {quota:?}, and not a size such as 20G"),
    }
}

/// Returns whether the file system that is mounted on a directory is of a kind that could be written to.
pub(super) fn is_writable(dir: &Path) -> bool {
    let kind = kind_at(dir).ok().flatten();
    kind.is_some_and(|kind| kind == FileSystemKind::Ext4.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_size() {
        assert_eq!(limit_of("20g").unwrap(), 20 << 30);
        assert_eq!(limit_of("1048576").unwrap(), 1 << 20);
        for none in ["0", "", "-1", "all", "20 g"] {
            let error = limit_of(none).unwrap_err().to_string();
            assert!(error.contains("such as 20G"), "{none}: {error}");
        }
    }
}
