//! Devices at sockets.

use anyhow::bail;
use blockexport::Exporter;
use blockexport::nbd::{NbdConfig, NbdExporter};
use blockexport::vhost_user::{VhostUserConfig, VhostUserExporter};
use node_api::device::{DeviceKind, DeviceSpec};

/// Returns what serves a device at its socket.
///
/// # Errors
/// If it has none.
pub fn exporter(spec: &DeviceSpec) -> anyhow::Result<Box<dyn Exporter>> {
    let socket = spec.at.clone();
    Ok(match spec.kind {
        DeviceKind::Nbd => Box::new(NbdExporter {
            socket,
            config: NbdConfig::default(),
        }),
        DeviceKind::VhostUser => Box::new(VhostUserExporter {
            socket,
            config: VhostUserConfig::default(),
        }),
        DeviceKind::File | DeviceKind::Ublk => bail!("a file or a block device has no socket"),
    })
}
