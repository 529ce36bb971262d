//! One at a time for each name: whoever waits finds done what it came for.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// A lock for each name that somebody has or waits for.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the turn of a name; it lasts as long as the guard.
    pub(super) async fn take(&self, name: String) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(&name).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(name, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}
