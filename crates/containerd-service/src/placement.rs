//! Where the layers of a pull go, on the disk or on fast memory: the policy of pulls by containerd and of our own
//! (docs/tiering.md). Both go by the same estimates; they differ in when they have to decide.
//!
//! containerd unpacks a layer when its blob is there, so a layer is placed when its blob is opened
//! (`snapshotter_service::placing`). Our pull unpacks while it downloads, so it places a layer when its download
//! begins ([`streamed`]). Before either knows how fast the network is, [`predicted`] has to do.

pub(crate) mod network;
pub(crate) mod predicted;
pub(crate) mod sizes;
pub(crate) mod streamed;
