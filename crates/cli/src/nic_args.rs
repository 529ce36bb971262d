//! The flags of a mount that asks a block service.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serving::transport::Address;

use host::size::Size;
use node_api::nic::{NicName, NicSpec};

/// The block service of a mount.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "SmartNIC")]
pub(crate) struct NicArgs {
    /// Ask the block service of nicfetch: HOST:PORT, unix:PATH or vsock:CID:PORT
    #[arg(long, value_name = "ADDR")]
    pub(crate) nic: Option<Address>,
    /// What the service calls this local source; NAME@ID if only the index of this id counts
    #[arg(long, value_name = "NAME", requires = "nic")]
    nic_source: Option<NicName>,
    /// Our name there [default: the host's]
    #[arg(long, value_name = "NAME", requires = "nic")]
    nic_name: Option<String>,
    /// A file with our key: 64 hexadecimal digits
    #[arg(long, value_name = "FILE", requires = "nic")]
    nic_key: Option<PathBuf>,
    /// A directory with cert.pem, key.pem and ca.pem: speak TLS
    #[arg(long, value_name = "DIR", requires = "nic")]
    nic_tls: Option<PathBuf>,
    /// Keep what comes in this directory, and fetch the rest in the background
    #[arg(long, value_name = "DIR", requires = "nic")]
    nic_cache: Option<PathBuf>,
    /// Let that directory take so much
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "8G",
        requires = "nic_cache"
    )]
    nic_cache_size: Size,
    /// Read what the service has not from this directory, which the source was made of
    #[arg(long, value_name = "DIR", requires = "nic")]
    origin: Option<PathBuf>,
    /// Record what is read until it is unmounted, and give the boot image to the service
    #[arg(long, requires = "nic", conflicts_with = "record")]
    pub(crate) nic_share: bool,
}

impl NicArgs {
    /// Returns what they say, with paths that mean the same in every directory; `None` if no
    /// service is to be asked.
    ///
    /// # Errors
    /// If the current directory cannot be told.
    pub(crate) fn spec(&self) -> anyhow::Result<Option<NicSpec>> {
        let Some(address) = &self.nic else {
            return Ok(None);
        };
        let whole = |path: &Path| {
            let path = std::path::absolute(path);
            path.context("finding the current directory")
        };
        let optional = |path: &Option<PathBuf>| path.as_deref().map(whole).transpose();
        let address = match address {
            Address::Unix(path) => Address::Unix(whole(path)?),
            other => other.clone(),
        };
        Ok(Some(NicSpec {
            address,
            source: self.nic_source.clone(),
            name: self.nic_name.clone(),
            key: optional(&self.nic_key)?,
            tls: optional(&self.nic_tls)?,
            cache: optional(&self.nic_cache)?,
            cache_bytes: self.nic_cache_size.0,
            origin: optional(&self.origin)?,
        }))
    }
}
