//! The flags that say which store.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use nix::unistd::Group;

use bootstore::store::{
    DEFAULT_STORE, STORE_ENV, STORE_GROUP_ENV, STORE_MAX_ENV, StoreSettings, TIERS_ENV,
};
use host::size::Size;

/// The flags that say which store.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// Directory of the store
    #[arg(
        long = "store",
        value_name = "DIR",
        env = STORE_ENV,
        default_value = DEFAULT_STORE,
        global = true
    )]
    dir: PathBuf,
    /// Most bytes that the store may take; above it the least valuable boot images are removed
    #[arg(
        long = "store-max",
        value_name = "SIZE",
        env = STORE_MAX_ENV,
        default_value = "8G",
        global = true
    )]
    max: Size,
    /// Let this group read the store, by name or number; the store keeps the setting
    #[arg(
        long = "store-group",
        value_name = "NAME",
        env = STORE_GROUP_ENV,
        global = true
    )]
    group: Option<StoreGroup>,
    /// File that lists the tiers for copies of boot images [default:
    /// /etc/yolofs/tiers.toml if it is there, else one tier beside the boot images]
    #[arg(long, value_name = "FILE", env = TIERS_ENV, global = true)]
    tiers: Option<PathBuf>,
}

impl StoreArgs {
    /// Returns what they say.
    pub(crate) fn settings(&self) -> StoreSettings {
        StoreSettings {
            dir: self.dir.clone(),
            max_bytes: self.max.0,
            group: self.group.map(|group| group.0),
            tiers: self.tiers.clone(),
        }
    }
}

/// Parses the name that a boot image is to have.
///
/// # Errors
/// If none can have it.
pub(crate) fn image_name(text: &str) -> Result<String, bootimg::StoreError> {
    bootimg::check_name(text)?;
    Ok(text.to_owned())
}

/// The number of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoreGroup(u32);

impl FromStr for StoreGroup {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if let Ok(number) = text.parse() {
            return Ok(Self(number));
        }
        let group = Group::from_name(text).context("asking the system for its groups")?;
        let group = group.with_context(|| format!("there is no group {text:?}"))?;
        Ok(Self(group.gid.as_raw()))
    }
}
