//! What commands give up that take in what others made: archives, layouts, what registries send.

use std::path::PathBuf;

use anyhow::Context as _;
use confine::{Capability, Files, Ports, Programs, Reads};

use super::is_off;
use node_api::nic_needs::NAMES;

/// Where systems keep whom they trust (certificates of authorities), without what is private beside it.
const AUTHORITIES: [&str; 11] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/lib/ssl/certs",
    "/var/lib/ca-certificates",
];
/// What names others instead.
const OTHER_AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
/// Where a process sees what is mounted, and what it has itself.
const SELF: &str = "/proc/self";

/// What a command takes in, and where it puts it: all that is left to it.
#[derive(Debug)]
pub struct Intake {
    /// What is read, with what is beneath it, besides what is written.
    pub reads: Vec<PathBuf>,
    /// Where is written; what is not there yet is left out.
    pub writes: Vec<PathBuf>,
    /// Where a directory of its own is removed in the end.
    pub clears: Vec<PathBuf>,
    /// Whom it asks.
    pub asks: Asks,
    /// What of root's power it keeps.
    pub rights: Rights,
}

/// Whom a command asks over the network. Sockets in the file system are governed by permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Nobody.
    Nobody,
    /// Somebody on this machine, at a port.
    Port(u16),
    /// A registry, and whom that names: any port of any host.
    Registry,
}

/// What of root's power a command keeps, if root calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// To read and write what Landlock leaves it, whosever it is.
    Keeps,
    /// The same, and to make files as an image describes them: devices, with capabilities, and with
    /// `trusted.` attributes, which takes `CAP_SYS_ADMIN`. Landlock keeps it from mounting.
    Unpacks,
}

impl Rights {
    const fn capabilities(self) -> &'static [Capability] {
        match self {
            Self::Keeps => &[
                Capability::CAP_DAC_OVERRIDE,
                Capability::CAP_FOWNER,
                Capability::CAP_CHOWN,
                Capability::CAP_FSETID,
            ],
            Self::Unpacks => &[
                Capability::CAP_DAC_OVERRIDE,
                Capability::CAP_FOWNER,
                Capability::CAP_CHOWN,
                Capability::CAP_FSETID,
                Capability::CAP_MKNOD,
                Capability::CAP_SETFCAP,
                Capability::CAP_SYS_ADMIN,
            ],
        }
    }
}

impl Intake {
    /// Confines the process to this, before it looks at the first byte of what others made. It executes
    /// nothing from then on: what knows its login was asked before. To be called before it starts a
    /// thread.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn confine(self) -> anyhow::Result<()> {
        if is_off()? {
            return Ok(());
        }
        let mut reads = self.reads;
        reads.push(SELF.into());
        let ports = match self.asks {
            Asks::Nobody => Ports::Called(Vec::new()),
            Asks::Port(port) => Ports::Called(vec![port]),
            Asks::Registry => {
                reads.extend(NAMES.iter().chain(&AUTHORITIES).map(PathBuf::from));
                for others in OTHER_AUTHORITIES.iter().filter_map(std::env::var_os) {
                    reads.extend(std::env::split_paths(&others));
                }
                Ports::Opened(Vec::new())
            }
        };
        let files = Files {
            reads: Reads::ContentBeneath(reads),
            writes: self.writes,
            clears: self.clears,
            ports,
        };
        confine::capabilities::keep_only(self.rights.capabilities())
            .and_then(|()| files.confine())
            .and_then(|()| confine::calls::deny_intrusion(Programs::Never))
            .context("confining the command")
    }
}
