//! The flags that every program of the rig takes, and how it starts.

use std::path::{Path, PathBuf};

use crate::boots::Lab;
use crate::{interrupt, namespace};

/// Where the rig finds what it needs.
#[derive(Clone, Debug, clap::Args)]
pub struct LabArgs {
    /// Directory of the images that scripts/images/stage.sh makes [default: .cache/images]
    #[arg(long, value_name = "DIR", env = "YOLOFS_IMAGES")]
    images: Option<PathBuf>,
    /// Directory of bootimg and yolofs [default: where this program is]
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,
}

/// Where the rig found it.
#[derive(Clone, Debug)]
pub struct Places {
    /// Directory of the images.
    pub images: PathBuf,
    /// Directory of `bootimg` and `yolofs`.
    pub bin: PathBuf,
}

impl LabArgs {
    /// Sets the process up (its own mounts, Ctrl-C as an error), and says where things are.
    ///
    /// # Errors
    /// If a right is missing.
    pub fn set_up(&self) -> anyhow::Result<Places> {
        namespace::enter()?;
        interrupt::watch()?;
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap_or(Path::new("."));
        let images = self
            .images
            .clone()
            .unwrap_or_else(|| repository.join(".cache/images"));
        let bin = match &self.bin {
            Some(bin) => bin.clone(),
            None => std::env::current_exe()?
                .parent()
                .map(Path::to_owned)
                .unwrap_or_default(),
        };
        Ok(Places { images, bin })
    }

    /// Sets the process up, and opens the lab.
    ///
    /// # Errors
    /// If a right, an image or a program is missing.
    pub fn open(&self) -> anyhow::Result<Lab> {
        let Places { images, bin } = self.set_up()?;
        Lab::open(&images, &bin)
    }
}
