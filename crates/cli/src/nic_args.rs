//! The flags of a mount that asks a block service.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serving::transport::Address;

use host::size::Size;
use node_api::nic::{NicName, NicSpec};

/// What keeps nothing.
const NOTHING: &str = "none";

/// The block service of a mount.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "SmartNIC")]
pub(crate) struct NicArgs {
    /// Address of the block service of nicfetch: HOST:PORT, unix:PATH or vsock:CID:PORT; can be repeated, for others
    /// that have the same sources and are asked when one is late, lies or goes away
    #[arg(long, value_name = "ADDR")]
    pub(crate) nic: Vec<Address>,
    /// Name of this local source at the service; NAME@ID requires the index with this id
    #[arg(long, value_name = "NAME", requires = "nic")]
    nic_source: Option<NicName>,
    /// Name of this machine at the service [default: the host name]
    #[arg(long, value_name = "NAME", requires = "nic")]
    nic_name: Option<String>,
    /// File with the key of this machine: 64 hexadecimal digits
    #[arg(long, value_name = "FILE", requires = "nic")]
    nic_key: Option<PathBuf>,
    /// A directory with cert.pem, key.pem and ca.pem: speak TLS
    #[arg(long, value_name = "DIR", requires = "nic")]
    nic_tls: Option<PathBuf>,
    /// Keep received chunks in this directory, and fetch the others in the background; none keeps nothing [default: what
    /// comes of nic:NAME is kept in --nic-cache-default, if root mounts]
    #[arg(long, value_name = "DIR", requires = "nic")]
    nic_cache: Option<PathBuf>,
    /// Directory that keeps what comes where nothing is said; it takes at most half of what is free
    #[arg(
        long,
        value_name = "DIR",
        env = "YOLOFS_NIC_CACHE",
        default_value = "/var/cache/yolofs/nic"
    )]
    nic_cache_default: PathBuf,
    /// Most bytes that this directory may take
    #[arg(long, value_name = "SIZE", default_value = "8G", requires = "nic")]
    nic_cache_size: Size,
    /// Directory that the source was made of; read chunks there that the service lacks
    #[arg(long, value_name = "DIR", requires = "nic")]
    origin: Option<PathBuf>,
    /// Record reads until the unmount, and upload the boot image to the service
    #[arg(long, requires = "nic", conflicts_with = "record")]
    pub(crate) nic_share: bool,
}

impl NicArgs {
    /// Returns what they say for a source, with paths that mean the same in every directory; `None` if no
    /// service is to be asked.
    ///
    /// # Errors
    /// If the current directory cannot be told.
    pub(crate) fn spec(&self, source: &Path) -> anyhow::Result<Option<NicSpec>> {
        let whole = |path: &Path| {
            let path = std::path::absolute(path);
            path.context("finding the current directory")
        };
        let optional = |path: &Option<PathBuf>| path.as_deref().map(whole).transpose();
        let address = |address: &Address| match address {
            Address::Unix(path) => whole(path).map(Address::Unix),
            other => Ok(other.clone()),
        };
        let addresses: anyhow::Result<Vec<_>> = self.nic.iter().map(address).collect();
        let mut addresses = addresses?.into_iter();
        let Some(first) = addresses.next() else {
            return Ok(None);
        };
        let cache = match &self.nic_cache {
            Some(dir) if dir == Path::new(NOTHING) => None,
            Some(dir) => Some(whole(dir)?),
            None => self
                .default_cache(source)?
                .map(|dir| whole(&dir))
                .transpose()?,
        };
        Ok(Some(NicSpec {
            address: first,
            others: addresses.collect(),
            source: self.nic_source.clone(),
            name: self.nic_name.clone(),
            key: optional(&self.nic_key)?,
            tls: optional(&self.nic_tls)?,
            fill: self.nic_cache.is_some(),
            cache,
            cache_bytes: self.nic_cache_size.0,
            origin: optional(&self.origin)?,
        }))
    }

    /// Returns where what comes of a source is kept if nothing is said: it is one of the service's, root mounts, and the
    /// directory can be made.
    fn default_cache(&self, source: &Path) -> anyhow::Result<Option<PathBuf>> {
        let dir = &self.nic_cache_default;
        let is_wanted = NicName::of_source(source)?.is_some()
            && dir != Path::new(NOTHING)
            && nix::unistd::geteuid().is_root();
        if !is_wanted {
            return Ok(None);
        }
        let made = rawio::private::make_dir(dir);
        let failed = |error: &std::io::Error| {
            log::warn!(
                "nothing is kept of what comes: cannot make {}: {error}",
                dir.display()
            );
        };
        Ok(made.inspect_err(failed).ok().map(|()| dir.clone()))
    }
}
