//! Chooses the process that serves layers.

use bootimg::Store;
use yolofs::XattrAnswers;

use crate::by_node::NodeServer;
use crate::own::OwnServer;
use crate::server::LayerServer;
use host::interrupt::Interrupt;
use host::mount_table::{MOUNT_KIND, labelled};
use host::run_dir::RunDir;
use node_api::client::{CallError, NodeClient};
use node_records::left::living_mounts;

/// Returns the server of the layers of a service whose mounts have this label: the node, if it
/// responds, or if mounts of the node exist, since then it will run again; otherwise this process.
/// `interrupt` ends long operations.
///
/// # Errors
/// If the mount table or the node's records cannot be read, or no threads can be started.
pub fn server(
    store: Store,
    label: &str,
    run_dir: &RunDir,
    xattrs: XattrAnswers,
    interrupt: &Interrupt,
) -> anyhow::Result<Box<dyn LayerServer>> {
    let node = NodeClient::of(run_dir);
    let is_there = match node.node() {
        Err(CallError::Nobody(_)) => {
            let living = living_mounts(run_dir)?;
            labelled(MOUNT_KIND, label)?
                .iter()
                .any(|mountpoint| living.contains(mountpoint))
        }
        _ => true,
    };
    if is_there {
        log::info!("layers are served by the node");
        return Ok(Box::new(NodeServer::new(
            store, label, node, xattrs, interrupt,
        )?));
    }
    log::info!("no node service runs: layers are served by this process, and end with it");
    here(store, xattrs, interrupt)
}

/// Has this process serve layers, whether there is a node or not.
///
/// # Errors
/// If no threads can be had.
pub fn here(
    store: Store,
    xattrs: XattrAnswers,
    interrupt: &Interrupt,
) -> anyhow::Result<Box<dyn LayerServer>> {
    Ok(Box::new(OwnServer::new(store, xattrs, interrupt.clone())?))
}
