//! What each of several services has brought.

use super::super::remote::ServiceCounts;
use super::Flights;

impl Flights {
    /// Returns what came from each service.
    pub(in crate::client) fn services(&self) -> Vec<ServiceCounts> {
        let state = self.state.lock();
        let of_service = |service| {
            let connections = self.connections.of(service);
            let mut counts = ServiceCounts {
                address: connections[0].address().to_string(),
                asked: false,
                requests: 0,
                chunks: 0,
                wire_bytes: 0,
                lies: 0,
                stalls: 0,
            };
            for connection in connections {
                let peer = state.peers[connection.number()];
                let of_peer = state.engine.peer_counts(peer);
                counts.asked |= state.engine.is_up(peer);
                counts.requests += of_peer.requests;
                counts.chunks += of_peer.pieces;
                counts.wire_bytes += of_peer.received_bytes;
                counts.lies += of_peer.wrong;
                // Both connections fall silent at once.
                counts.stalls = counts.stalls.max(of_peer.stalls);
            }
            counts
        };
        (0..self.connections.services()).map(of_service).collect()
    }
}
