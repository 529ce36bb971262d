//! Generates the server side of containerd's snapshot service.
//!
//! `containerd-client` has the messages and the client. The service is written down here rather
//! than compiled from a `.proto` file, so that server and clients share one version of `tonic`.

use tonic_build::manual::{Builder, Method, Service};

/// The methods: name, name on the wire, request, response.
const METHODS: [(&str, &str, &str, &str); 10] = [
    (
        "prepare",
        "Prepare",
        "PrepareSnapshotRequest",
        "PrepareSnapshotResponse",
    ),
    (
        "view",
        "View",
        "ViewSnapshotRequest",
        "ViewSnapshotResponse",
    ),
    ("mounts", "Mounts", "MountsRequest", "MountsResponse"),
    ("commit", "Commit", COMMIT, EMPTY),
    ("remove", "Remove", "RemoveSnapshotRequest", EMPTY),
    (
        "stat",
        "Stat",
        "StatSnapshotRequest",
        "StatSnapshotResponse",
    ),
    (
        "update",
        "Update",
        "UpdateSnapshotRequest",
        "UpdateSnapshotResponse",
    ),
    (
        LIST,
        "List",
        "ListSnapshotsRequest",
        "ListSnapshotsResponse",
    ),
    ("usage", "Usage", "UsageRequest", "UsageResponse"),
    ("cleanup", "Cleanup", "CleanupRequest", EMPTY),
];

/// The one method whose response is a stream.
const LIST: &str = "list";

/// The request of which `containerd-client` has only an older form.
const COMMIT: &str = "CommitRequest";

/// The response without fields, which the module that includes the generated code defines.
const EMPTY: &str = "Empty";

fn main() {
    let mut service = Service::builder()
        .package("containerd.services.snapshots.v1")
        .name("Snapshots");
    for (name, route, request, response) in METHODS {
        let method = Method::builder()
            .name(name)
            .route_name(route)
            .input_type(message(request))
            .output_type(message(response))
            .codec_path("tonic_prost::ProstCodec");
        let method = match name {
            LIST => method.server_streaming(),
            _ => method,
        };
        service = service.method(method.build());
    }
    Builder::new()
        .build_client(false)
        .compile(&[service.build()]);
    println!("cargo::rerun-if-changed=build.rs");
}

/// Returns the path of a message's type.
fn message(name: &str) -> String {
    match name {
        EMPTY => format!("super::{EMPTY}"),
        COMMIT => format!("super::super::messages::{COMMIT}"),
        _ => format!("containerd_client::services::v1::snapshots::{name}"),
    }
}
