//! The servers of a fetcher: which can be asked, and when one that could not is tried again.

use std::time::Duration;

use fetch::{Engine, Lane, Peer, Server};

use crate::key::Key;

/// How long a server that cannot be reached is left alone, at first and at most; twice as long each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// One server.
#[derive(Debug)]
pub(crate) struct ServerState {
    /// Its peers: for those who wait, and for all else.
    pub(crate) peers: [Peer; 2],
    pause: Duration,
    /// Whether it is going to be tried again.
    pub(crate) returns: bool,
}

impl ServerState {
    /// Adds a server; those after the first are asked only for what those before do not bring.
    pub(crate) fn add(engine: &mut Engine<Key>, number: u16, now: Duration) -> Self {
        let server = Server(number);
        let peers = [Lane::Demand, Lane::Background].map(|lane| engine.add_peer(server, lane));
        for peer in peers {
            if number > 0 {
                engine.reserve(peer);
            }
            engine.on_peer_up(now, peer, None);
        }
        Self {
            peers,
            pause: PAUSE.0,
            returns: false,
        }
    }

    /// Notes that it brought something.
    pub(crate) const fn brought(&mut self) {
        self.pause = PAUSE.0;
    }

    /// Returns after how long it is to be tried again; `None` if it is going to be already.
    pub(crate) fn pause(&mut self) -> Option<Duration> {
        if self.returns {
            return None;
        }
        self.returns = true;
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE.1);
        Some(pause)
    }
}
