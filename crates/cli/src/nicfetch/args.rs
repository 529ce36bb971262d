//! Flags that commands of nicfetch share: which nicfetch, where it keeps things, and its blocks.

use std::path::PathBuf;

use host::size::Size;
use nicfetch::blocks::BlockSettings;
use nicfetch::operator::{AdminAddress, AdminSettings};
use nicfetch::place::PlaceSettings;
use serving::transport::Address;

/// Which nicfetch is asked.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdminArgs {
    /// Where nicfetch listens for its operator, unix:PATH or ADDRESS:PORT [default:
    /// unix:/run/nicfetch/admin.sock]
    #[arg(long, value_name = "ADDR", env = "NICFETCH_ADMIN")]
    admin: Option<AdminAddress>,
    /// File with the token for ADDRESS:PORT
    #[arg(long, value_name = "FILE", env = "NICFETCH_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl AdminArgs {
    /// Returns what they say.
    pub(super) fn settings(&self) -> AdminSettings {
        AdminSettings {
            admin: self.admin.clone(),
            token_file: self.token_file.clone(),
        }
    }
}

/// The chunks and the sources of a nicfetch that does not run.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Keep chunks and indexes in this directory [default: /var/lib/nicfetch]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Most bytes that the chunks there may take [default: 16G]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
}

impl PlaceArgs {
    /// Returns what they say.
    pub(super) fn settings(&self) -> PlaceSettings {
        PlaceSettings {
            store: self.store.clone(),
            size: self.size,
        }
    }
}

/// Where the block service listens, to whom, and what it may keep.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Blocks")]
pub(super) struct BlocksArgs {
    /// Serve blocks at HOST:PORT, unix:PATH or vsock:CID:PORT
    #[arg(long, value_name = "ADDR")]
    blocks: Option<Address>,
    /// File with access rules; each line has NAME, a key or `-`, and sources or `*`
    #[arg(
        long,
        value_name = "FILE",
        requires = "blocks",
        conflicts_with = "blocks_open"
    )]
    blocks_access: Option<PathBuf>,
    /// Trust the names of clients, and let all open every source: only for trusted links
    #[arg(long, requires = "blocks")]
    blocks_open: bool,
    /// A directory with cert.pem, key.pem and ca.pem: speak TLS, and know clients by certificates
    #[arg(long, value_name = "DIR", requires = "blocks")]
    blocks_tls: Option<PathBuf>,
    /// Part of --size for chunks [default: half of it, all of it without --upstream]
    #[arg(long, value_name = "SIZE", requires = "blocks")]
    blocks_size: Option<Size>,
    /// Memory for chunks that clients read [default: 256M]
    #[arg(long, value_name = "SIZE", requires = "blocks")]
    blocks_hot: Option<Size>,
    /// Make chunks of every image that clients pull from registries that are open to all, and not
    /// only of those that prewarm brings
    #[arg(long, requires = "blocks")]
    blocks_from_pulls: bool,
}

impl BlocksArgs {
    /// Returns what they say.
    pub(super) fn settings(&self) -> BlockSettings {
        BlockSettings {
            blocks: self.blocks.clone(),
            blocks_access: self.blocks_access.clone(),
            blocks_open: self.blocks_open,
            blocks_tls: self.blocks_tls.clone(),
            blocks_size: self.blocks_size,
            blocks_hot: self.blocks_hot,
            blocks_from_pulls: self.blocks_from_pulls,
        }
    }
}
