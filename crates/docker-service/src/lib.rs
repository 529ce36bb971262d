//! Serves the layers of Docker's images, in place.
//!
//! Docker's graph driver overlay2 keeps each layer in a directory. A daemon mounts over these
//! directories, so that overlays of containers started from then on use the mounts; Docker itself is
//! not changed. Two processes make up the daemon: the *worker* serves, and the *guardian*, its
//! parent, only waits. A mount whose worker died does not respond, not even to Docker; so the
//! guardian unmounts dead mounts at once and starts another worker.
//!
//! ```
//! use std::collections::BTreeSet;
//!
//! use blocks::Digest;
//! use docker_service::wanted::{Chosen, Wanted};
//!
//! // `docker attach --all`, then `docker detach` of one image.
//! let (web, database) = (Digest([1; 32]), Digest([2; 32]));
//! let mut wanted = Wanted::default();
//! wanted.add(&Chosen::All);
//! wanted.remove(&Chosen::Images(BTreeSet::from([database])));
//! // A worker that takes over reads what the one before has written.
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("wanted.json");
//! wanted.save(&path)?;
//! let wanted = Wanted::load(&path)?;
//! assert!(wanted.has(&web) && !wanted.has(&database));
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod data_root;
pub mod engine;
pub mod guardian;
pub mod image_store;
pub mod images;
pub mod reconcile;
pub mod served;
pub mod start;
pub mod station;
pub mod talk;
pub mod wanted;
pub mod worker;
