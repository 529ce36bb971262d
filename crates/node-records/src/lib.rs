//! What the node has written down of its mounts: for itself, when it comes back, and for others, who must not
//! take away what is the node's ([`left`]).

#![forbid(unsafe_code)]

pub mod company;
pub mod dead;
pub mod hello;
pub mod hex;
pub mod instance;
pub mod left;
