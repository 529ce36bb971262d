//! The versions of the protocol, and what came with each (`docs/nicfetch-protocol.md`, "History").

use std::ops::RangeInclusive;

/// The supported versions of the protocol. HELLO and CHALLENGE agree on one.
pub const PROTOCOLS: RangeInclusive<u16> = 1..=FORM_SINCE;

/// START: index, plan and chunks in one exchange; requests may follow PROOF at once.
pub(crate) const START_SINCE: u16 = 2;
/// PROMOTE: chunks of a stream that are sent next.
pub(crate) const PROMOTE_SINCE: u16 = 3;
/// RESUME: the rest of a plan's chunks.
pub(crate) const RESUME_SINCE: u16 = 4;
/// LINKS: what programs are linked with, where there is no plan.
pub(crate) const LINKS_SINCE: u16 = 5;
/// READ names the form of its chunks.
pub(crate) const FORM_SINCE: u16 = 6;
