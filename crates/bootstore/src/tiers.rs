//! The tiers of this machine, and the boot images that have copies on them: docs/tiering.md.
//!
//! All of it belongs to a store of boot images: the records of objects, and the journal, are in
//! its directory `tiers`. A reader ([`Tiers::open_copies`]) writes nothing and does not wait;
//! a process that moves objects ([`mover::Mover`]) holds an exclusive lock, taken with a deadline.

pub mod background;
mod behind;
mod candidate;
pub mod carry;
mod copies;
pub mod file;
pub mod known;
mod lock;
mod marks;
pub mod mover;
mod open_files;
pub mod pace;
pub mod plan;
mod remembered;
pub mod seen;
pub mod unpassed;
pub mod ways;
pub mod whole;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;

use file::{SpaceLimit, TierSpec};
use host::size::Size;
use known::Knowledge;

/// The default file that names the tiers.
pub const DEFAULT_FILE: &str = "/etc/yolofs/tiers.toml";

/// The tier that there is without a file: a directory beside the boot images.
const DEFAULT_TIER: &str = "disk";
/// What it may take: a machine without a file has not said that there is more to spare.
const DEFAULT_ROOM: Size = Size(1 << 30);

/// The tiers, and the records of their objects.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// The fastest first.
    specs: Vec<TierSpec>,
    /// The file that named them, if there is one.
    file: Option<PathBuf>,
    /// Where journal, knowledge and locks are.
    state: PathBuf,
}

impl Tiers {
    /// Reads the specification of the tiers for the store in `store`. `file` must exist; without it, the
    /// default file is read if it exists, and else there is one tier in the store itself.
    ///
    /// # Errors
    /// If a file exists and cannot be read or parsed.
    pub fn read(file: Option<&Path>, store: &Path) -> anyhow::Result<Self> {
        let state = store.join("tiers");
        let found = match file {
            Some(file) => Some(file::read(file)?),
            None => file::read_if_there(Path::new(DEFAULT_FILE))?,
        };
        let file = found
            .as_ref()
            .map(|_| file.map_or_else(|| DEFAULT_FILE.into(), Path::to_owned));
        let specs = found.unwrap_or_else(|| {
            vec![TierSpec {
                name: DEFAULT_TIER.to_owned(),
                dir: state.join(DEFAULT_TIER),
                room: SpaceLimit::Bytes(DEFAULT_ROOM.0),
            }]
        });
        Ok(Self { specs, file, state })
    }

    /// Returns the tiers, the fastest first.
    pub fn specs(&self) -> &[TierSpec] {
        &self.specs
    }

    /// Returns the tiers file; `None` if it is the embedded default.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns whether tiers were configured, or the default one was used.
    pub fn are_used(&self) -> bool {
        self.file.is_some() || self.state.exists()
    }

    /// Returns the records of objects.
    pub fn known(&self) -> Knowledge {
        Knowledge::in_dir(&self.state)
    }

    /// Returns the records of whole files, by the keys of their versions.
    pub fn files(&self) -> Knowledge {
        Knowledge::in_dir(&self.state.join("files"))
    }

    /// Returns the index of a tier.
    ///
    /// # Errors
    /// If no tier has this name.
    pub fn place_of(&self, name: &str) -> anyhow::Result<usize> {
        let place = self.specs.iter().position(|tier| tier.name == name);
        place.with_context(|| {
            let names: Vec<&str> = self.specs.iter().map(|tier| tier.name.as_str()).collect();
            format!(
                "there is no tier {name}; {} {}",
                match &self.file {
                    Some(file) => format!("{} names", file.display()),
                    None => format!("without {DEFAULT_FILE} there is only"),
                },
                names.join(", ")
            )
        })
    }
}

/// Returns the time for heat, which counts from any one moment.
pub fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}
