//! Chunks with wrong content, which the first reader detects.

use std::sync::atomic::Ordering::Relaxed;

use fetch::Priority;

use super::{Arrived, Flights};

impl Flights {
    /// Notes that a chunk is not what it should be. Where another service can be asked, this one is not for a while:
    /// what else came from it and was not verified is fetched again.
    pub(super) fn lied(&self, number: u32, arrived: &Arrived) {
        self.counters.lies.fetch_add(1, Relaxed);
        let connection = self.connections.get(arrived.connection());
        let service = connection.service();
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.kept.forget(number);
        let peer = state.peers[arrived.connection()];
        state.engine.on_wrong(now, peer);
        let is_left = !state.engine.is_up(peer) && state.engine.any_up();
        let mut again = Vec::new();
        if is_left {
            let is_of = |number: usize| self.connections.get(number).service() == service;
            again = state.kept.forget_unverified(is_of);
        }
        self.act(state, now, None);
        drop(guard);
        if is_left {
            let (address, name) = (connection.address(), self.name());
            log::warn!(
                "the block service at {address} sent wrong content for a chunk of {name}: others are asked"
            );
            if !again.is_empty() {
                let _it_ends_by_itself = self.want_ahead(&again, Priority::Plan);
            }
        } else {
            self.was_wrong();
        }
    }
}
