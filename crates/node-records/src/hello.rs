//! The first talk with the kernel, as it is written down.

use serde::{Deserialize, Serialize};

use crate::hex;

/// The FUSE handshake (FUSE_INIT): the kernel's request, and the response if it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloBytes {
    /// The kernel's INIT request, whole.
    #[serde(with = "hex")]
    pub request: Vec<u8>,
    /// The whole FUSE_INIT response of the first worker; empty before there was one.
    #[serde(with = "hex", default)]
    pub answer: Vec<u8>,
}
