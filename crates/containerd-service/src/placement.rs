//! Where the layers of a pull go, on the disk or on fast memory: the policy of pulls by containerd and by
//! `yolofs pull` (docs/tiering.md). Both use the same estimates; they differ in when they have to decide.
//!
//! containerd unpacks a layer when its blob is complete, so a layer is placed when its blob is opened
//! (`snapshotter_service::placing`). `yolofs pull` unpacks while it downloads, so it places a layer when its
//! download begins ([`streamed`]). Before the rate of the network is known, both use [`predicted`].

pub(crate) mod network;
pub(crate) mod predicted;
pub(crate) mod sizes;
pub(crate) mod streamed;
