//! The messages of containerd's API that `containerd-client` has only an older form of.

use std::collections::HashMap;

use prost::Message;

/// A request to commit, as of containerd 2.1: with a parent for a snapshot that was made without one.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommitRequest {
    /// The name of the layer.
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// The snapshot.
    #[prost(string, tag = "3")]
    pub(crate) key: String,
    /// The labels of the layer.
    #[prost(map = "string, string", tag = "4")]
    pub(crate) labels: HashMap<String, String>,
    /// The parent of the layer; empty for the parent of the snapshot.
    #[prost(string, tag = "5")]
    pub(crate) parent: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use containerd_client::services::v1::snapshots::CommitSnapshotRequest;

    #[test]
    fn an_older_request_is_one_without_a_parent() {
        let older = CommitSnapshotRequest {
            snapshotter: "yolofs".to_owned(),
            name: "layer".to_owned(),
            key: "active".to_owned(),
            labels: HashMap::from([("a".to_owned(), "b".to_owned())]),
        };
        let read = CommitRequest::decode(older.encode_to_vec().as_slice()).unwrap();
        let expected = CommitRequest {
            name: older.name,
            key: older.key,
            labels: older.labels,
            parent: String::new(),
        };
        assert_eq!(read, expected);
        // The fifth field, by hand: what containerd 2.1 and later send.
        let mut newer = expected.encode_to_vec();
        newer.extend(b"\x2a\x06parent");
        let read = CommitRequest::decode(newer.as_slice()).unwrap();
        assert_eq!(read.parent, "parent");
    }
}
