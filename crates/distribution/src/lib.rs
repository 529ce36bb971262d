//! The words that registries and their clients exchange, as the OCI distribution specification has
//! them: names, challenges, tokens; and the one client that asks registries, with the rules that say
//! who is told a password and where a registry may lead. Both sides of the conversation parse the words
//! here, and everything that asks a registry asks by [`Client`]. The documents of images are in [`image`].
//!
//! ```
//! use distribution::{is_repository, is_tag};
//!
//! assert!(is_repository("library/nginx") && is_tag("1.27-alpine"));
//! assert!(!is_repository("../etc/passwd") && !is_tag("a/b"));
//! ```

#![forbid(unsafe_code)]

mod challenge;
mod client;
pub mod image;
mod name;
mod network;
mod realm;
mod redirect;
mod token;
mod zone;

pub use challenge::Challenge;
pub use client::{Call, CallError, Client, ClientConfig, Destination};
pub use name::{is_repository, is_tag};
pub use network::{Network, ParseNetworkError};
pub use realm::{Carries, RealmError, Realms};
pub use token::{Login, Token, basic, parse_basic};
pub use zone::{Inside, Reach, Zone};
