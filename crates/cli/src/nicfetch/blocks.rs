//! The block service as a part of a server: where it listens, and who may have which blocks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use nicfetch::identity::Access;
use nicfetch::service::{Limits, Service};
use nicfetch::transport::{Address, Listener, TlsServer};
use nicfetch::{Catalog, ChunkStore};
use tokio::sync::watch;

use crate::nic::tls_files;

/// Where the block service listens, and to whom.
#[derive(Clone, Debug, clap::Args)]
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
    blocks_access: Option<PathBuf>,
    /// Believe names, and let everybody open everything: for links that nobody else is on
    #[arg(long, requires = "blocks")]
    blocks_open: bool,
    /// A directory with cert.pem, key.pem and ca.pem: speak TLS, and know clients by certificates
    #[arg(long, value_name = "DIR", requires = "blocks")]
    blocks_tls: Option<PathBuf>,
}

/// A block service that listens.
#[derive(Debug)]
pub(super) struct Blocks {
    service: Service,
    listener: Listener,
}

impl BlocksArgs {
    /// Listens; `None` if no blocks are to be served.
    ///
    /// # Errors
    /// If the address cannot be had, or what says who may open what cannot be used.
    pub(super) async fn listen(
        &self,
        store: Arc<dyn ChunkStore>,
        catalog: Arc<Catalog>,
    ) -> anyhow::Result<Option<Blocks>> {
        let Some(address) = &self.blocks else {
            return Ok(None);
        };
        let tls = self.blocks_tls.as_deref().map(tls_files);
        let tls = tls.map(|files| TlsServer::open(&files)).transpose()?;
        ensure!(
            tls.is_none() || matches!(address, Address::Tcp(_)),
            "--blocks-tls is for HOST:PORT"
        );
        let access = self.access()?;
        let service = Service::new(store, catalog, access, Limits::default())
            .context("starting the block service")?;
        let listener = Listener::bind(address, tls).await;
        let listener = listener.with_context(|| format!("listening at {address}"))?;
        Ok(Some(Blocks { service, listener }))
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
    /// Returns where it listens.
    pub(super) fn address(&self) -> anyhow::Result<String> {
        self.listener.address().context("asking where it listens")
    }

    /// Serves until `stop` says true.
    pub(super) async fn serve(self, stop: watch::Receiver<bool>) {
        self.service.serve(self.listener, stop).await;
    }
}
