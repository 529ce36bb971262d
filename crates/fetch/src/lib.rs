//! Decides what to request, from which peer, and when, without I/O and without a clock.
//!
//! The code that does the I/O owns an [`Engine`], reports wanted and received pieces, and carries out the
//! [`Action`]s that [`Engine::poll`] returns. Times are passed in, as durations since any fixed moment.
//!
//! - A piece that several callers want is fetched once: they join, and the most urgent of them decides
//!   its [`Priority`].
//! - Requests fill a window that follows from the measured round trip and rate of each [`Peer`]. Pieces
//!   that wait for the window are requested in batches.
//! - A peer may send a stream of pieces unasked ([`Engine::promised`]). Pieces that it will bring soon are
//!   waited for; pieces that come too late are requested, and skipped in the stream. A plan ([`Engine::plan`]) has one
//!   stream; when that breaks off, a peer is asked to send the rest of the plan.
//! - Late pieces are requested from a second peer, within a budget. Failed ones are requested elsewhere.
//!   A peer that stalls, sends wrong data or is lost is not used.
//! - Every piece of every ticket ends exactly once, at the latest at its deadline.
//!
//! ```
//! use std::time::Duration;
//! use fetch::{Action, Arrival, Config, Engine, Lane, Outcome, Piece, Priority, Server, Verdict, Via};
//!
//! let mut engine = Engine::<u32>::new(Config::default());
//! // Two connections to one server: the first for those who wait.
//! let demand = engine.add_peer(Server(0), Lane::Demand);
//! let background = engine.add_peer(Server(0), Lane::Background);
//! let mut now = Duration::from_millis(1);
//! for peer in [demand, background] {
//!     engine.on_peer_up(now, peer, Some(Duration::from_millis(20)));
//! }
//!
//! let pieces = [7, 8].map(|key| Piece { key, bytes: 65_536 });
//! let deadline = now + Duration::from_secs(5);
//! let ticket = engine.want(now, &pieces, Priority::Demand, deadline);
//! // Somebody else wants one of them: it is not requested twice.
//! let other = engine.want(now, &pieces[1..], Priority::Fill, deadline);
//!
//! let Some(Action::Request { peer, request, pieces, .. }) = engine.poll(now) else {
//!     panic!("nothing to request")
//! };
//! assert_eq!((peer, pieces.len()), (demand, 2));
//! // Now wait for I/O or `next_wake`, whichever comes first.
//! assert_eq!(engine.poll(now), None);
//! assert!(engine.next_wake().is_some());
//!
//! now += Duration::from_millis(21);
//! let arrival = engine.on_piece(now, peer, Via::Request(request), 8, Outcome::Here, 30_000);
//! // Verified, and the first copy: publish it before the next poll, which tells those who wait.
//! assert_eq!(arrival, Arrival::First);
//! let verdict = Verdict::Here;
//! assert_eq!(engine.poll(now), Some(Action::Done { ticket, key: 8, verdict }));
//! assert_eq!(engine.poll(now), Some(Action::Done { ticket: other, key: 8, verdict }));
//! engine.leave(now, ticket); // nobody wants the other one any more
//! assert_eq!(engine.poll(now), Some(Action::Cancel { peer, request }));
//! assert_eq!(engine.counts().joins, 1);
//! ```
//!
//! [`predict`] is readahead without a plan: it returns the chunks that are probably read next.

#![forbid(unsafe_code)]

mod budget;
mod config;
mod counts;
mod engine;
mod exchange;
mod flights;
mod link;
mod peers;
mod plan;
pub mod predict;
mod queue;
mod streams;
#[cfg(feature = "testing")]
pub mod testing;
mod tickets;
mod timers;
mod want;

pub use config::Config;
pub use counts::{Counts, PeerCounts};
pub use engine::{Engine, LinkState};
pub use exchange::{Action, Arrival, Lane, Outcome, Peer, RequestId, Server, StreamId, Via};
pub use want::{Key, Piece, Priority, Ticket, Verdict};
