//! Confinement of commands that read untrusted input: archives, layouts, data from registries.

use std::path::PathBuf;

use anyhow::Context as _;
use confine::{Capability, Files, Ports, Programs, Reads, Rings};

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
pub(super) const SELF: &str = "/proc/self";

/// The input and the output of a command: the only access that it keeps.
#[derive(Debug)]
pub struct Intake {
    /// Paths that are read, with all below them, besides those that are written.
    pub reads: Vec<PathBuf>,
    /// Paths that are written; those that do not exist yet are skipped.
    pub writes: Vec<PathBuf>,
    /// Paths in which a directory of its own is removed at the end.
    pub clears: Vec<PathBuf>,
    /// Its network access.
    pub asks: Asks,
    /// What of root's power it keeps.
    pub rights: Rights,
}

/// Network access of a command. Sockets in the file system are governed by permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// None.
    #[default]
    Nobody,
    /// A port of this machine.
    Port(u16),
    /// A registry, and hosts that it redirects to: any port of any host.
    Registry,
}

/// The privileges that a command keeps, if root calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Reads and writes what Landlock allows, whichever user owns it.
    Keeps,
    /// As [`Keeps`](Self::Keeps), and creates files as an image describes them: devices, with capabilities, and with
    /// `trusted.` attributes, which needs `CAP_SYS_ADMIN`. Landlock prevents it from mounting.
    Unpacks,
}

impl Asks {
    /// Returns the files that this takes, and the ports.
    pub(super) fn takes(self) -> (Vec<PathBuf>, Ports) {
        let mut reads = vec![SELF.into()];
        let ports = match self {
            Self::Nobody => Ports::Called(Vec::new()),
            Self::Port(port) => Ports::Called(vec![port]),
            Self::Registry => {
                reads.extend(NAMES.iter().chain(&AUTHORITIES).map(PathBuf::from));
                for others in OTHER_AUTHORITIES.iter().filter_map(std::env::var_os) {
                    reads.extend(std::env::split_paths(&others));
                }
                Ports::Opened(Vec::new())
            }
        };
        (reads, ports)
    }
}

impl Rights {
    pub(super) const fn capabilities(self) -> &'static [Capability] {
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
    /// Confines the process, before it reads the first byte of untrusted data. It executes
    /// nothing afterwards: credential helpers were called before. To be called before it starts a
    /// thread.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn confine(self) -> anyhow::Result<()> {
        if is_off()? {
            return Ok(());
        }
        let (reads, ports) = self.asks.takes();
        let files = Files {
            reads: Reads::ContentBeneath([self.reads, reads].concat()),
            writes: self.writes,
            clears: self.clears,
            ports,
            ..Files::default()
        };
        confine::capabilities::keep_only(self.rights.capabilities())
            .and_then(|()| files.confine())
            .and_then(|()| confine::calls::deny_intrusion(Programs::Never, Rings::Never))
            .context("confining the command")
    }
}
