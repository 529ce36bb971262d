//! The block service as a part of a server: its address, and its access rules.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use blockservice::identity::Access;
use blockservice::service::{Limits, Service};
use chunks::{Catalog, ChunkStore};
use serving::transport::{Address, Listener, TlsServer};
use tokio::sync::watch;

use host::size::Size;
use mounting::nic::tls_files;

/// The settings of the block service: address, access rules, limits.
#[derive(Clone, Debug, Default)]
pub struct BlockSettings {
    /// Where blocks are served; there is no block service without it.
    pub blocks: Option<Address>,
    /// The file with the access rules.
    pub blocks_access: Option<PathBuf>,
    /// Whether names are believed, and everybody may open everything.
    pub blocks_open: bool,
    /// A directory with what TLS needs.
    pub blocks_tls: Option<PathBuf>,
    /// The part of the whole size for chunks.
    pub blocks_size: Option<Size>,
    /// How much of the chunks that are read is kept in memory.
    pub blocks_hot: Option<Size>,
    /// Whether chunks are made of every image that clients pull, and not only of those that an
    /// operator brings.
    pub blocks_from_pulls: bool,
}

/// A block service that listens.
#[derive(Debug)]
pub(crate) struct Blocks {
    service: Service,
    listener: Listener,
}

impl BlockSettings {
    /// Listens at `address`.
    ///
    /// # Errors
    /// If the address is not available, or the access rules cannot be used.
    pub(crate) async fn listen(
        &self,
        address: &Address,
        store: Arc<dyn ChunkStore>,
        catalog: Arc<Catalog>,
        limits: Limits,
    ) -> anyhow::Result<Blocks> {
        let tls = self.blocks_tls.as_deref().map(tls_files);
        let tls = tls.map(|files| TlsServer::open(&files)).transpose()?;
        ensure!(
            tls.is_none() || matches!(address, Address::Tcp(_)),
            "`blocks_tls` is for HOST:PORT"
        );
        let access = self.access()?;
        let limits = Limits {
            hot_bytes: self.blocks_hot.map_or(limits.hot_bytes, |most| most.0),
            ..limits
        };
        let service =
            Service::new(store, catalog, access, limits).context("starting the block service")?;
        let listener = Listener::bind(address, tls).await;
        let listener = listener.with_context(|| format!("listening at {address}"))?;
        Ok(Blocks { service, listener })
    }

    fn access(&self) -> anyhow::Result<Access> {
        match &self.blocks_access {
            Some(path) => read_access(path),
            None if self.blocks_open => Ok(Access::open()),
            None => {
                bail!("`blocks` needs `blocks_access`, or `blocks_open` for a trusted link")
            }
        }
    }
}

fn read_access(path: &Path) -> anyhow::Result<Access> {
    let reading = || format!("reading {}", path.display());
    let text = fs::read_to_string(path).with_context(reading)?;
    Access::parse(&text).with_context(reading)
}

impl Blocks {
    /// Returns the service.
    pub(crate) const fn service(&self) -> &Service {
        &self.service
    }

    /// Returns where it listens.
    pub(crate) fn address(&self) -> anyhow::Result<String> {
        self.listener.address().context("asking where it listens")
    }

    /// Serves until `stop` is true.
    pub(crate) async fn serve(self, stop: watch::Receiver<bool>) {
        self.service.serve(self.listener, stop).await;
    }
}
