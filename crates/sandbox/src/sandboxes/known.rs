//! The sandboxes that are listed: those that run, and the last ones that have ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::sandbox::{Phase, Sandbox};

/// Sandboxes that have ended and are still listed. The oldest is forgotten for the next one.
const ENDED_MAX: usize = 256;

/// Sandboxes by their ids, and in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Known {
    by_id: BTreeMap<String, Arc<Sandbox>>,
    order: VecDeque<String>,
}

impl Known {
    /// Lists a sandbox.
    pub(super) fn add(&mut self, sandbox: &Arc<Sandbox>) {
        let id = sandbox.id().to_owned();
        self.by_id.insert(id.clone(), Arc::clone(sandbox));
        self.order.push_back(id);
        self.forget_ended(ENDED_MAX);
    }

    /// Lists a sandbox no more.
    pub(super) fn forget(&mut self, id: &str) {
        self.by_id.remove(id);
        self.order.retain(|other| other != id);
    }

    pub(super) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.by_id.values().cloned().collect()
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.by_id.get(id).cloned()
    }

    /// Forgets the oldest of those that have ended, but for `keep`.
    fn forget_ended(&mut self, keep: usize) {
        // Not at each start: the list is walked only when it has twice as many as are kept.
        let by_id = &mut self.by_id;
        if self.order.len() <= keep * 2 || !self.order.len().is_multiple_of(keep) {
            return;
        }
        let is_over = |id: &String| {
            let sandbox = by_id.get(id);
            sandbox.is_none_or(|sandbox| matches!(sandbox.phase(), Phase::Ended(_)))
        };
        let over: Vec<String> = self
            .order
            .iter()
            .filter(|id| is_over(id))
            .cloned()
            .collect();
        for id in &over[..over.len().saturating_sub(keep)] {
            by_id.remove(id);
        }
        self.order.retain(|id| by_id.contains_key(id));
    }
}
