//! `sandbox serve`.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal};
use sandbox::{BridgeConfig, Config, Neighbours};
use sandbox_handlers::Budget;
use sandbox_service::Daemon;
use sandbox_service::api::{self, Api};

use crate::args::ServeArgs;

/// Where the daemon of a directory listens.
pub(crate) fn socket(run_dir: &Path) -> std::path::PathBuf {
    run_dir.join("api.sock")
}

/// Serves until it receives a request to end.
pub(crate) fn serve(run_dir: &Path, args: &ServeArgs) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init()
        .map_err(anyhow::Error::from_boxed)
        .context("starting the log")?;
    // Before there are threads, which inherit it. What is started in sandboxes does not.
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGINT);
    ends.add(Signal::SIGTERM);
    ends.thread_block().context("waiting for signals")?;
    let bridge = args.subnet.map(|subnet| BridgeConfig {
        name: args.bridge.clone(),
        subnet,
        neighbours: match args.neighbours {
            true => Neighbours::Reachable,
            false => Neighbours::Apart,
        },
    });
    let config = Config {
        bridge,
        first_uid: args.first_uid,
        sandboxes_max: args.max,
        ..Config::new(run_dir, &args.cgroup)
    };
    let budget = Budget {
        memory_bytes: args.keep_memory << 20,
        package_bytes: args.keep_packages.map(|mebibytes| mebibytes << 20),
        ..Budget::default()
    };
    let front = args.listen.map(|address| {
        let listener = TcpListener::bind(address);
        listener.with_context(|| format!("listening on {address}"))
    });
    let front = front.transpose()?;
    let daemon = Arc::new(Daemon::open(config, &args.packages, budget)?);
    let socket = socket(run_dir);
    let api = Api::serve(api::listen(&socket)?, Arc::clone(&daemon))?;
    log::info!("listening on {}", socket.display());
    let front = front.map(|listener| {
        log::info!("handlers answer on http://{}/run/", listener.local_addr()?);
        Api::serve_front(listener, Arc::clone(&daemon))
    });
    let front = front.transpose()?;
    let signal = ends.wait().context("waiting for signals")?;
    log::info!("ending on {signal}; sandboxes go on");
    drop(front);
    drop(api);
    Ok(())
}
