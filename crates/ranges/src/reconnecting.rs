//! The connection of HTTP/2 to a server, on which many requests go at a time, and who makes another one when it ends.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use reqwest::Version;
use tokio::sync::{Mutex, MutexGuard};

/// Connections with one request at a time.
const CONNECTIONS: usize = 16;
/// Requests on one connection of HTTP/2: servers take at least 100.
const STREAMS: usize = 64;

/// What is known of the connections to a server.
#[derive(Debug, Default)]
pub struct Reconnecting {
    /// Whether it answered over HTTP/2.
    is_multiplexed: AtomicBool,
    /// Whether a request failed since something came from it.
    is_broken: AtomicBool,
    /// Who connects again, while the others wait for that.
    connecting: Mutex<()>,
}

impl Reconnecting {
    /// Returns how many requests may be under way at a time, as far as is known.
    #[must_use]
    pub fn parallel(&self) -> usize {
        match self.is_multiplexed.load(Relaxed) {
            true => STREAMS,
            false => CONNECTIONS,
        }
    }

    /// Waits until the connection of HTTP/2 that ended was replaced, or returns the right to do that, until its response
    /// has begun: each of the many requests on it would make a connection of its own.
    pub async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let is_broken = || self.is_multiplexed.load(Relaxed) && self.is_broken.load(Relaxed);
        if !is_broken() {
            return None;
        }
        let first = self.connecting.lock().await;
        is_broken().then_some(first)
    }

    /// Notes that a response has begun.
    pub fn answered(&self, version: Version) {
        let is_multiplexed = version == Version::HTTP_2;
        self.is_multiplexed.store(is_multiplexed, Relaxed);
        self.is_broken.store(false, Relaxed);
    }

    /// Notes that a request failed.
    pub fn failed(&self) {
        self.is_broken.store(true, Relaxed);
    }
}
