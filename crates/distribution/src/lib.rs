//! The words that registries and their clients exchange, as the OCI distribution specification has
//! them: names, challenges, tokens. Both sides of the conversation parse them here, whoever they
//! are and however they wait; this crate does no I/O.

#![forbid(unsafe_code)]

mod challenge;
mod name;
mod realm;
mod token;

pub use challenge::Challenge;
pub use name::{is_repository, is_tag};
pub use realm::{Carries, RealmError, Realms};
pub use token::{Token, basic, parse_basic};
