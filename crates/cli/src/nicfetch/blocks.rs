//! The block service as a part of a server: where it listens, and who may have which blocks.

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

/// Where the block service listens, to whom, and what it may keep.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Blocks")]
pub(super) struct BlocksArgs {
    /// Serve blocks at HOST:PORT, unix:PATH or vsock:CID:PORT
    #[arg(long, value_name = "ADDR")]
    pub(super) blocks: Option<Address>,
    /// A file that says who may open what; in each line NAME, a key or `-`, and sources or `*`
    #[arg(
        long,
        value_name = "FILE",
        requires = "blocks",
        conflicts_with = "blocks_open"
    )]
    pub(super) blocks_access: Option<PathBuf>,
    /// Believe names, and let everybody open everything: for links that nobody else is on
    #[arg(long, requires = "blocks")]
    pub(super) blocks_open: bool,
    /// A directory with cert.pem, key.pem and ca.pem: speak TLS, and know clients by certificates
    #[arg(long, value_name = "DIR", requires = "blocks")]
    pub(super) blocks_tls: Option<PathBuf>,
    /// What chunks may take of --size [default: half of it, all of it without --upstream]
    #[arg(long, value_name = "SIZE", requires = "blocks")]
    pub(super) blocks_size: Option<Size>,
    /// Keep so much of the chunks that are read in memory [default: 256M]
    #[arg(long, value_name = "SIZE", requires = "blocks")]
    pub(super) blocks_hot: Option<Size>,
    /// Make chunks of every image that clients pull from registries that are open to all, and not
    /// only of those that prewarm brings
    #[arg(long, requires = "blocks")]
    pub(super) blocks_from_pulls: bool,
}

/// A block service that listens.
#[derive(Debug)]
pub(super) struct Blocks {
    service: Service,
    listener: Listener,
}

impl BlocksArgs {
    /// Listens at `address`.
    ///
    /// # Errors
    /// If the address cannot be had, or what says who may open what cannot be used.
    pub(super) async fn listen(
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
            "--blocks-tls is for HOST:PORT"
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
                bail!("--blocks needs --blocks-access FILE, or --blocks-open for a trusted link")
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
    pub(super) const fn service(&self) -> &Service {
        &self.service
    }

    /// Returns where it listens.
    pub(super) fn address(&self) -> anyhow::Result<String> {
        self.listener.address().context("asking where it listens")
    }

    /// Serves until `stop` says true.
    pub(super) async fn serve(self, stop: watch::Receiver<bool>) {
        self.service.serve(self.listener, stop).await;
    }
}
