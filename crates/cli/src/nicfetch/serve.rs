//! `nicfetch serve`: what the mirror and the block service are told on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use host::size::Size;
use nicfetch::config::Config;
use nicfetch::operator::AdminAddress;

use super::args::BlocksArgs;
use crate::exit::Outcome;
use crate::output::write_out;

/// Mirror registries, and serve blocks to mounts of yolofs, from one cache for all machines
///
/// Docker uses the mirror with --registry-mirror, containerd with --hosts-dir or hosts.toml, skopeo
/// and podman with registries.conf: docs/nicfetch.md shows how. With --blocks, mounts of yolofs read
/// imported sources from here (yolofs mount nic:NAME --nic ADDR). It ends on SIGTERM, when what it
/// began is answered.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nicfetch serve --upstream https://registry-1.docker.io --listen 10.0.0.1:5050 --size 40G
  nicfetch serve --blocks 10.0.0.1:5052 --blocks-access /etc/nicfetch/machines")]
pub(super) struct ServeArgs {
    /// Configuration file, instead of the other flags
    #[arg(long, value_name = "FILE", conflicts_with_all = ["upstream", "listen", "admin", "token_file", "store", "size", "hold_back", "tag_ttl", "blocks"])]
    config: Option<PathBuf>,
    /// Registry to mirror, and what clients call it if that is not docker.io; may be given again.
    /// Clients that name no registry get the first
    #[arg(long, value_name = "[NAME=]URL", required_unless_present_any = ["config", "blocks"])]
    upstream: Vec<String>,
    /// Address for clients [default: 127.0.0.1:5050]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address for the operator: unix:PATH, for root and the user that runs this, or an address on
    /// loopback and a port, for whoever has the token [default: unix:/run/nicfetch/admin.sock]
    #[arg(long, value_name = "ADDR")]
    admin: Option<AdminAddress>,
    /// File with the token that the operator and Prometheus show at ADDRESS:PORT
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Directory of the cache [default: /var/lib/nicfetch]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Most bytes that blobs and chunks may take; above it the least valuable are evicted [default: 16G]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Bytes at the end of each blob that clients get only when all of it is verified; more than the longest
    /// blob holds everything back [default: 4M]
    #[arg(long, value_name = "SIZE")]
    hold_back: Option<Size>,
    /// Seconds until a tag is looked up again [default: 60]
    #[arg(long, value_name = "SECS")]
    tag_ttl: Option<u64>,
    #[command(flatten)]
    blocks: BlocksArgs,
}

impl ServeArgs {
    fn config(&self) -> anyhow::Result<Config> {
        if let Some(path) = &self.config {
            return Config::read(path);
        }
        let mut config = Config::of(&self.upstream, &self.blocks.settings());
        if let Some(address) = self.listen {
            config.set_listen(address);
        }
        if let Some(address) = &self.admin {
            config.set_admin(address.clone());
        }
        config.set_token_file(self.token_file.clone());
        if let Some(store) = &self.store {
            config.set_store(store.clone());
        }
        if let Some(Size(bytes)) = self.size {
            config.set_size(bytes);
        }
        if let Some(Size(bytes)) = self.hold_back {
            config.set_hold_back(bytes);
        }
        if let Some(seconds) = self.tag_ttl {
            config.set_tag_ttl(seconds);
        }
        Ok(config)
    }
}

/// Serves until it is asked to end.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    nicfetch::serve::run(&args.config()?, &|addresses| {
        if let Err(error) = write_out(addresses.as_bytes()) {
            log::debug!("nobody is told the addresses: {error:#}");
        }
    })?;
    Ok(Outcome::Done)
}
