//! The service as `build.rs` generates it.

#![expect(clippy::allow_attributes, unreachable_pub, reason = "generated code")]

/// `google.protobuf.Empty`: a response that says only that it was done.
type Empty = ();

include!(concat!(
    env!("OUT_DIR"),
    "/containerd.services.snapshots.v1.Snapshots.rs"
));
