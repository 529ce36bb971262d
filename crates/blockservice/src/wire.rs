//! The frames of the protocol (`docs/nicfetch-protocol.md`).
//!
//! A frame is a [`Head`] of 32 bytes, a body with the fields of one [`Message`], and data. Encoding and
//! parsing are pure; `stream` reads and writes frames.

mod frame;
mod message;
pub(crate) mod stream;
pub(crate) mod versions;

pub use frame::{
    BODY_MAX, DATA_MAX, Direction, Frame, FrameError, HEAD_BYTES, Head, Seal, VERSION,
};
pub use message::{
    Ask, ErrorCode, Message, Method, Nonce, PROOF_AT_ONCE, Priority, Proof, ReadForm, SKIPS_MAX,
    Status, TEXT_MAX, WANTS_MAX, What,
};
pub use versions::PROTOCOLS;
