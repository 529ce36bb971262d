//! The status of a mount's block service.

use super::{Nic, ReadPath};
use node_api::nic_status::{NicServiceStatus, NicStatus};

impl Nic {
    /// Returns how the service does.
    pub fn status(&self) -> NicStatus {
        let remote = self.remote().counts();
        let (source, filled) = match &self.way {
            ReadPath::Beside(_) => (None, None),
            ReadPath::Alone(source, filler, _) => {
                let filled = filler.as_ref().filter(|_| self.fill);
                let filled = filled.map(super::Filler::filled);
                (Some(source.counts()), filled)
            }
        };
        let source = source.unwrap_or_default();
        NicStatus {
            address: self.address.to_string(),
            source: self.name.name.clone(),
            index: self.index().id().to_string(),
            connected: self.client.is_there(),
            services: self.services(),
            chunks: remote.chunks,
            bytes: remote.bytes,
            absent: remote.absent,
            late: remote.late,
            away: remote.away,
            lies: remote.lies,
            hedged: remote.hedged,
            overtaken: remote.overtaken,
            joined: remote.joined,
            retried: remote.retried,
            requests: remote.requests,
            streams: remote.streams,
            wire_bytes: remote.wire_bytes,
            duplicate_bytes: remote.duplicate_bytes,
            local_chunks: source.local,
            origin_chunks: source.origin,
            origin_wrong: source.origin_wrong,
            failed_reads: source.failed,
            filled: filled.map(|filled| filled.is_some_and(|filled| filled.missing == 0)),
        }
    }

    /// Returns how each service does.
    fn services(&self) -> Vec<NicServiceStatus> {
        let services = self.remote().services();
        let status = |service: blockservice::client::ServiceCounts| NicServiceStatus {
            address: service.address,
            asked: service.asked,
            requests: service.requests,
            chunks: service.chunks,
            wire_bytes: service.wire_bytes,
            lies: service.lies,
            stalls: service.stalls,
        };
        services.into_iter().map(status).collect()
    }
}
