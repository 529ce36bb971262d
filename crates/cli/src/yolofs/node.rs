//! `yolofs node`: the node service, and what it can be asked.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;

use crate::completions::{image_names, mountpoints};
use crate::exit::Outcome;
use crate::output::{FormatArg, complain, print};
use crate::run_dir_arg::RunDirArg;
use crate::status_text::text;
use crate::worker_user::WorkerUserArg;
use bootstore::store::StoreSettings;
use host::mountpoint;
use host::run_dir::RunDir;
use node_api::client::NodeClient;
use node_api::view::NodeView;
use node_service::service;
use node_service::service::Settings;

use node_api::boot_choice::BootChoice;

/// Where is written what survives a reboot, unless told otherwise.
const STATE_DIR: &str = "/var/lib/yolofs/node";

/// Run the node service, or query the running one
///
/// The service owns mounts and has workers serve them: a mount outlives its worker, the service and
/// an upgrade of both. It runs in the foreground; when it ends, its mounts stay.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct NodeArgs {
    /// Directory with the mounts to be made again after a reboot
    #[arg(long, value_name = "DIR", env = "YOLOFS_STATE_DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Most mounts
    #[arg(long, value_name = "N", default_value_t = 2048)]
    max_mounts: u16,
    #[command(flatten)]
    worker_user: WorkerUserArg,
    /// Keep the descriptors of the process that started this one
    #[arg(long, hide = true)]
    keep_parent: bool,
    #[command(subcommand)]
    verb: Option<NodeVerb>,
}

#[derive(Clone, Debug, Subcommand)]
enum NodeVerb {
    /// Show the service: its process, its workers, who keeps its descriptors
    Status {
        #[command(flatten)]
        format: FormatArg,
    },
    /// Show its mounts
    Mounts {
        #[command(flatten)]
        format: FormatArg,
    },
    /// Replace the boot image of a mount while it is in use
    Swap {
        /// Where it is mounted
        #[arg(value_name = "MOUNTPOINT", add = mountpoints())]
        mountpoint: PathBuf,
        /// A name or an id of the store, a file (with a `/`), `auto` or `none`
        #[arg(value_name = "IMAGE", add = image_names())]
        image: BootChoice,
    },
    /// Refuse new mounts, and unmount all
    Drain,
}

pub(super) fn run(
    args: &NodeArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    let Some(verb) = &args.verb else {
        #[cfg(feature = "privileged")]
        if std::env::var_os("YOLOFS_TEST_OLD_KERNEL").is_some() {
            yolofs::testing::pretend_an_old_kernel();
        }
        let settings = Settings {
            run_dir: run_dir.run_dir.clone(),
            state_dir: args.state_dir.clone(),
            most_mounts: args.max_mounts.into(),
            worker_user: args.worker_user.identity()?,
            store: store.clone(),
        };
        if args.keep_parent {
            service::keep_parent(&settings)?;
        } else {
            service::run(&settings)?;
        }
        return Ok(Outcome::Done);
    };
    let node = NodeClient::of(&RunDir::open(&run_dir.run_dir)?);
    match verb {
        NodeVerb::Status { format } => print(format.format(), &node.node()?, status_text)?,
        NodeVerb::Mounts { format } => print(format.format(), &node.mounts()?, |mounts| {
            let shown: Vec<_> = mounts.iter().map(|view| view.status.clone()).collect();
            text(&shown)
        })?,
        NodeVerb::Swap { mountpoint, image } => {
            let place = mountpoint::resolve(mountpoint)
                .with_context(|| format!("finding {}", mountpoint.display()))?;
            let id = RunDir::id_of(&place);
            node.swap(&id, image.clone())?;
        }
        NodeVerb::Drain => {
            let drained = node.drain()?;
            if drained.in_use > 0 {
                complain(&format!(
                    "yolofs: {} mounts are detached and still used; they are served until that ends",
                    drained.in_use
                ));
            }
        }
    }
    Ok(Outcome::Done)
}

/// Returns what `yolofs node status` shows.
fn status_text(view: &NodeView) -> String {
    let draining = if view.draining { ", draining" } else { "" };
    let mut lines = vec![
        format!(
            "yolofs {}, pid {}, up {} s, kept by {}{draining}",
            view.version, view.pid, view.uptime_seconds, view.keeper,
        ),
        format!("{} mounts", view.mounts),
    ];
    for worker in &view.workers {
        let old = if worker.current {
            ""
        } else {
            ", before the upgrade"
        };
        let (pid, mounts) = (worker.pid, worker.mounts);
        lines.push(format!("  worker {pid}: {mounts} mounts{old}"));
    }
    for record in &view.damaged {
        let path = record.display();
        lines.push(format!("record {path} is damaged, and left out: remove it"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::control::NodeControl as _;
    use node_api::memory::MemoryNode;

    #[test]
    fn the_status_names_what_is_damaged() {
        let mut view = MemoryNode::default().node();
        assert!(!status_text(&view).contains("damaged"));
        view.damaged = vec!["/var/lib/yolofs/node/mounts/x.json".into()];
        assert!(
            status_text(&view).contains("record /var/lib/yolofs/node/mounts/x.json is damaged")
        );
    }
}
