//! The messages between registries and their clients, as the OCI distribution specification defines
//! them: names, challenges, tokens; and the one client of registries, with the rules about which hosts
//! receive a password and which targets a registry may name. Servers and clients parse the messages
//! here, and all requests to registries use [`Client`]. The documents of images are in [`image`].
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
