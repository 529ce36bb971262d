//! The files, ports and sockets that a process needs to use a block service for one mount. All other access
//! can be dropped before it reads the first byte from the service.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serving::transport::Address;

use crate::nic::NicSpec;

/// The files that libc reads to resolve host names. Their directories are included because a program
/// that rewrites such a file may replace it.
pub const NAMES: [&str; 8] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
];
/// Where libc asks for a host's address when an answer was too long for a datagram.
const DOMAIN: u16 = 53;

/// The subdirectory of a cache that holds chunks.
pub const CHUNKS: &str = "chunks";
/// And the indexes of sources.
pub const SOURCES: &str = "sources";

/// Files, ports and sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Paths that are read, with all below them.
    pub reads: Vec<PathBuf>,
    /// Paths that are written.
    pub writes: Vec<PathBuf>,
    /// TCP ports that are called.
    pub ports: Vec<u16>,
    /// Where a service listens, if they are in the file system.
    pub socket: Option<PathBuf>,
}

impl NicSpec {
    /// Returns what a client of the service needs.
    pub fn needs(&self) -> Needs {
        let files = [&self.key, &self.tls, &self.cache, &self.origin];
        let mut needs = Needs {
            reads: files.into_iter().flatten().cloned().collect(),
            writes: self.cache_dirs().into_iter().flatten().collect(),
            ..Needs::default()
        };
        for address in self.addresses() {
            match address {
                Address::Tcp(address) => {
                    let port = address.rsplit_once(':');
                    let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
                    needs.ports.extend(port);
                }
                Address::Unix(path) => needs.socket = Some(path.clone()),
                Address::Vsock { .. } => {}
            }
        }
        if !needs.ports.is_empty() {
            needs.ports.push(DOMAIN);
            needs.reads.extend(NAMES.map(PathBuf::from));
        }
        needs
    }

    /// Returns the directories that the cache consists of.
    pub fn cache_dirs(&self) -> Option<[PathBuf; 2]> {
        let dir: &Path = self.cache.as_deref()?;
        Some([dir.join(CHUNKS), dir.join(SOURCES)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(more: &str) -> Needs {
        let spec = serde_json::from_str::<NicSpec>(&format!("{{{more}}}")).unwrap();
        spec.needs()
    }

    #[test]
    fn a_host_is_called_at_its_port_and_by_its_name() {
        let needs = needs(r#""address": "nic:5052", "key": "/k", "cache": "/c""#);
        assert_eq!(needs.ports, [5052, 53]);
        assert_eq!(
            needs.writes,
            [Path::new("/c/chunks"), Path::new("/c/sources")]
        );
        assert!(needs.reads.starts_with(&["/k".into(), "/c".into()]));
        assert!(needs.reads.contains(&"/etc/resolv.conf".into()));
        assert_eq!(needs.socket, None);
    }

    #[test]
    fn each_service_is_called_at_its_port() {
        let needs = needs(r#""address": "nic:5052", "others": ["10.0.0.2:6000", "10.0.0.3:7000"]"#);
        assert_eq!(needs.ports, [5052, 6000, 7000, 53]);
    }

    #[test]
    fn a_service_of_this_machine_takes_a_socket_and_nothing_of_the_network() {
        let needs = needs(r#""address": "unix:/run/nic""#);
        let expected = Needs {
            socket: Some("/run/nic".into()),
            ..Needs::default()
        };
        assert_eq!(needs, expected);
    }
}
