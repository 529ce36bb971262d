//! Chunks with wrong content, which the first reader detects.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fetch::Priority;

use super::kept::Found;
use super::{Arrived, Flights};

/// One of so many chunks that come before they are read is verified at once.
const CHECKED: u64 = 16;

impl Flights {
    /// Verifies some of the chunks that come before they are read, if there is another service to ask. Readers come to them
    /// later, and all that came until then would have to come again from the other one.
    pub(super) fn check_some(&self, number: u32, arrived: &Arc<Arrived>) {
        if self.connections.services() == 1 {
            return;
        }
        let before = self.early.fetch_add(1, Relaxed);
        if before.is_multiple_of(CHECKED) {
            let found = Found::Packed(Arc::clone(arrived));
            let _right = self.open(number, &found, Priority::Plan);
        }
    }

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

    /// Drops what came before it was read and was not verified, and requests that nobody waits for: who has another source
    /// gets it there.
    pub(super) fn drop_unread(&self) {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let _unread = state.kept.forget_unverified(|_| true);
        let unwaited = state.tickets.extract_if(|_, waiting| waiting.is_ahead());
        let unwaited: Vec<_> = unwaited.map(|(ticket, _)| ticket).collect();
        for ticket in unwaited {
            state.engine.leave(now, ticket);
        }
        self.act(state, now, None);
    }
}
