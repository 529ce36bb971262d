//! The specification of a standalone mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blocks::BlockDevice;
use confine::Identity;
use node_api::boot_choice::BootChoice;
use node_api::nic::NicSpec;
use node_api::serve_mode::ServeMode;
use yolofs::XattrAnswers;

use crate::confinement::ImageNeeds;

/// What a mount is to be.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// A directory tree, a disk image, or `nic:NAME`.
    pub source: PathBuf,
    /// The boot image to serve from.
    pub boot: BootChoice,
    /// How to serve; by the source if absent.
    pub mode: Option<ServeMode>,
    /// The file of a trace of all reads, written at the unmount.
    pub record: Option<PathBuf>,
    /// Whether set-user-id bits and devices of the source count.
    pub suid_dev: bool,
    /// Which requests for extended attributes are answered where no file has any.
    pub xattrs: XattrAnswers,
    /// Whether names and attributes are those of the boot image.
    pub trust: bool,
    /// How long data from the source is cached, if it may change.
    pub revalidate: Option<Duration>,
    /// The deadline of the source.
    pub source_deadline: Duration,
    /// Whether reads are answered one by one instead of from the page cache.
    pub no_inject: bool,
    /// Whether it is served when the boot image is in the page cache, and not before.
    pub wait_prewarm: bool,
    /// At most so many bytes are pushed.
    pub budget_bytes: Option<u64>,
    /// Whether pushed pages are locked in memory.
    pub lock: bool,
    /// How far the kernel reads ahead.
    pub readahead_kib: Option<u32>,
    /// Threads that answer requests.
    pub threads: u8,
    /// The block service to use.
    pub nic: Option<NicSpec>,
    /// Whether reads are recorded, and a boot image of them is uploaded to the service.
    pub nic_share: bool,
    /// How the source is opened, if it is a block image.
    pub image: Option<ImageOpener>,
}

/// Opens the block image of a mount, when the process has given up what it does not need.
#[derive(Clone)]
pub struct ImageOpener {
    /// Opens it.
    pub open: Arc<dyn Fn() -> anyhow::Result<Arc<dyn BlockDevice>> + Send + Sync>,
    /// How long its reads may wait for registries and mirrors.
    pub read_deadline: Duration,
    /// What that takes.
    pub needs: ImageNeeds,
    /// The user that serves it, if that is another one.
    pub identity: Option<Identity>,
}

impl std::fmt::Debug for ImageOpener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageOpener")
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}
