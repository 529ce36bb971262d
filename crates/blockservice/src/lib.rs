//! The block service: chunks of sources for mounts in virtual machines.
//!
//! - [`service::Service`] sends chunks to machines; [`client::Client`] requests them.
//! - Both exchange [`wire`] frames, which are the same over every [`serving::transport`].
//! - [`identity`] decides which machine a connection belongs to, and which sources it may open.
//!
//! `docs/nicfetch-protocol.md` is the protocol.
//!
//! ```
//! use blockservice::wire::{Direction, Frame, HEAD_BYTES, Head, Message, Seal};
//!
//! // A client opens a source; the frame is sealed for this direction of the connection.
//! let open = Frame::new(1, Message::Open { name: b"web".to_vec() });
//! let sent = open.encode(&mut Seal::open(Direction::ToService));
//!
//! // The service believes the lengths of the head first, then the seal, then the body.
//! let (head, body) = sent.split_first_chunk::<HEAD_BYTES>().unwrap();
//! let head = Head::parse(head)?;
//! assert_eq!((head.body_len(), head.data_len()), (body.len(), 0));
//! let received = Frame::parse(&head, body, Vec::new(), &mut Seal::open(Direction::ToService))?;
//! assert_eq!(received, open);
//! # Ok::<(), blockservice::wire::FrameError>(())
//! ```

#![forbid(unsafe_code)]

pub mod client;
pub mod identity;
mod line_rate;
mod plan_chunks;
mod plan_order;
pub mod programs;
pub mod service;
pub mod wire;

pub use plan_chunks::by_chunk;
pub use plan_order::{PLAN_CHUNKS_MAX, plan_order};
