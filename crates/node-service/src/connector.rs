//! Connections to block services at sockets in the file system, which the node makes for the worker of the
//! mount.
//!
//! Landlock does not cover sockets by name, so a worker that may connect to one of them may connect to all
//! that its user may. So this worker may not make a socket. It asks its node, over a pair of connected sockets
//! without a name, and receives the descriptor of a connection. The node connects to the paths of the mount only;
//! a request names none, but the number of a service.
//!
//! | from | record of the pair (`SOCK_SEQPACKET`), integers little-endian |
//! |---|---|
//! | worker | the number of the request: 24 bits, and above it the number of the service among those of the mount |
//! | node | the same number and 0, with the descriptor of the connection; or the number and an `errno`: 32 bits each |
//!
//! The number distinguishes the response to a request from a late one to an earlier request.

mod node;
#[cfg(test)]
mod tests;
mod worker;

use std::path::Path;
use std::time::Duration;

use node_api::nic::NicSpec;
use serving::transport::Address;

pub(crate) use node::serve;
pub(crate) use worker::NodeConnector;

/// Length of a request.
const REQUEST: usize = 4;
/// Length of a response.
const RESPONSE: usize = 8;

/// How long the node waits for a service whose queue of connections is full.
const CONNECT: Duration = Duration::from_secs(1);
/// How long a record may take to be sent: the other side reads each at once.
const SEND: Duration = Duration::from_secs(1);
/// How long a worker waits for a response: longer than the node takes, and than its own client waits.
const RESPOND: Duration = Duration::from_secs(3);

/// Where the number of the service begins in a request.
const SERVICE_SHIFT: u32 = 24;

/// Returns the sockets of the services that a worker may not connect to by itself, in the order of the services;
/// none if they are elsewhere.
pub(crate) fn sockets(nic: &NicSpec) -> Vec<&Path> {
    let sockets = nic.addresses().filter_map(|address| match address {
        Address::Unix(socket) => Some(socket.as_path()),
        Address::Tcp(_) | Address::Vsock { .. } => None,
    });
    sockets.collect()
}
