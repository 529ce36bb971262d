//! Servers: what one peer of a server shows of it holds for its other peers, and what one server does not bring is
//! brought by another.

use std::time::Duration;

use super::partners::Out;
use super::{Alarm, Engine};
use crate::exchange::{Action, Peer, Server};
use crate::peers::{State, Trust};
use crate::want::Key;

/// For how long a server is not asked that sent a wrong piece if another one can be, at first and at most; twice as
/// long each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

impl<K: Key> Engine<K> {
    /// Records that the content of a piece from a peer was wrong, as its reader found later. If
    /// another server can be asked, this one is not for a while, and its pending pieces are requested from others.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_wrong(&mut self, now: Duration, peer: Peer) {
        self.verified_later = true;
        self.count_wrong(now, peer);
        let server = self.peers[peer.index()].server;
        let is_believed = self.peers[peer.index()].trust == Trust::Full;
        if !is_believed || !self.is_elsewhere(server) {
            return;
        }
        let times = self.wrong.get(&server).copied().unwrap_or(1);
        let pause = PAUSE.0 * 2_u32.pow(times.saturating_sub(1).min(6));
        self.disbelieve(now, server, Trust::Paused);
        self.timers
            .set(Alarm::Server(server), now + pause.min(PAUSE.1));
    }

    /// Records a piece with wrong bytes, and stops using the server if there were too many.
    pub(super) fn count_wrong(&mut self, now: Duration, peer: Peer) {
        self.counts.wrong += 1;
        let state = &mut self.peers[peer.index()];
        state.counts.wrong += 1;
        let server = state.server;
        let wrong = self.wrong.entry(server).or_default();
        *wrong = wrong.saturating_add(1);
        if *wrong >= self.config.wrong_limit {
            self.disbelieve(now, server, Trust::Lost);
        }
    }

    fn disbelieve(&mut self, now: Duration, server: Server, trust: Trust) {
        for peer in self.of_server(server) {
            if self.peers[peer.index()].trust == Trust::Full {
                self.put_out(now, peer, Out::Disbelieved(trust));
            }
        }
    }

    /// Uses a server again that was paused.
    pub(super) fn believe(&mut self, now: Duration, server: Server) {
        self.timers.clear(Alarm::Server(server));
        for peer in self.of_server(server) {
            let state = &mut self.peers[peer.index()];
            if state.trust == Trust::Paused {
                state.trust = Trust::Full;
                state.heard = now;
                self.watch(now, peer);
            }
        }
    }

    /// Uses paused servers again, when there is no other: their data is verified.
    pub(super) fn believe_if_alone(&mut self, now: Duration) {
        if self.peers.iter().any(|peer| peer.is_up()) {
            return;
        }
        let paused = self
            .peers
            .iter()
            .filter(|peer| peer.trust == Trust::Paused && peer.state == State::Up);
        let mut paused: Vec<_> = paused.map(|peer| peer.server).collect();
        paused.dedup();
        for server in paused {
            self.believe(now, server);
        }
    }

    /// Returns whether a server other than this one can be asked.
    pub(super) fn is_elsewhere(&self, server: Server) -> bool {
        let mut peers = self.peers.iter();
        peers.any(|peer| peer.is_up() && peer.server != server)
    }

    fn of_server(&self, server: Server) -> Vec<Peer> {
        let of = |peer: &Peer| self.peers[peer.index()].server == server;
        self.indexes().filter(of).collect()
    }

    /// When a peer counts as silent if nothing comes until then. Where another server can be asked, that is soon, unless
    /// something comes on another connection to the same server: they share a line.
    pub(super) fn silent_from(&self, peer: Peer) -> Duration {
        let state = &self.peers[peer.index()];
        let alone = state.heard + state.patience(&self.config);
        if !self.is_elsewhere(state.server) {
            return alone;
        }
        alone.min(self.all_silent_from(peer))
    }

    /// When all of a peer's server counts as silent, where another server can be asked.
    fn all_silent_from(&self, peer: Peer) -> Duration {
        let state = &self.peers[peer.index()];
        let peers = self.peers.iter();
        let same = peers.filter(|other| other.server == state.server);
        let heard = same.map(|other| other.heard).max().unwrap_or(state.heard);
        heard + state.patience_elsewhere(&self.config)
    }

    /// Looks earlier after peers that are watched: another server can be asked now.
    pub(super) fn watch_closer(&mut self, now: Duration) {
        for peer in self.indexes().collect::<Vec<_>>() {
            let silent = self.silent_from(peer).max(now);
            if let Some(at) = self.timers.get(Alarm::Peer(peer))
                && silent < at
            {
                self.timers.set(Alarm::Peer(peer), silent);
            }
        }
    }

    /// The alarm of a peer rang: it has stalled, unless something came meanwhile. So have the other peers of its
    /// server if another server can be asked.
    pub(super) fn peer_silent(&mut self, now: Duration, peer: Peer) {
        let until = self.silent_from(peer);
        if until > now {
            self.timers.set(Alarm::Peer(peer), until);
            return;
        }
        let server = self.peers[peer.index()].server;
        let all = self.is_elsewhere(server) && self.all_silent_from(peer) <= now;
        self.stall(now, peer);
        for other in self.of_server(server) {
            if all && self.peers[other.index()].is_up() {
                self.stall(now, other);
            }
        }
    }

    fn stall(&mut self, now: Duration, peer: Peer) {
        self.counts.stalls += 1;
        self.peers[peer.index()].counts.stalls += 1;
        self.actions.push_back(Action::Stalled { peer });
        self.put_out(now, peer, Out::Stalled);
    }

    /// Takes the rate of a peer's line for that of others on which none was measured: they begin with more than a
    /// small window when they take over.
    pub(super) fn share_rate(&mut self, now: Duration, from: Peer) {
        let server = self.peers[from.index()].server;
        let same = self.of_server(server).into_iter();
        let rates = same.filter_map(|peer| self.peers[peer.index()].link.measured_rate());
        let Some(rate) = rates.max() else {
            return;
        };
        for other in &mut self.peers {
            if other.server != server {
                other.link.rate_of_another(now, rate);
            }
        }
    }

    /// Returns for how long the server that owes something and was heard last has sent nothing; zero if one that
    /// can be asked owes nothing.
    #[must_use]
    pub fn silence(&self, now: Duration) -> Duration {
        let of_server = |server: Server| {
            let mut silence = Duration::ZERO;
            for peer in self.of_server(server) {
                let state = &self.peers[peer.index()];
                let owes = !state.requests.is_empty() || self.streams.owes(peer);
                if state.is_up() && owes {
                    silence = silence.max(now.saturating_sub(state.heard));
                }
            }
            silence
        };
        let up = self.peers.iter().filter(|peer| peer.is_up());
        up.map(|peer| of_server(peer.server))
            .min()
            .unwrap_or_default()
    }
}
