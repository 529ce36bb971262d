//! Packages that somebody is about to use, or to remove: never both.
//!
//! A sandbox that runs is seen by whoever removes a package. Between the moment that a request has found its packages and
//! the start of its sandbox it claims them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sandbox::Packages;

/// How long a removal may take: it ends Zygotes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A base and a package.
type Key = (String, String);

/// Who has what.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    state: Mutex<State>,
    /// A removal is over.
    removed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many claims there are on each.
    held: BTreeMap<Key, usize>,
    /// What is being removed.
    going: BTreeSet<Key>,
}

/// A claim on packages: none of them is removed as long as this is there.
#[derive(Debug)]
pub struct Claim {
    claims: Arc<Claims>,
    keys: Vec<Key>,
}

/// The removal of a package: nobody claims it as long as this is there.
#[derive(Debug)]
pub(crate) struct Removal {
    claims: Arc<Claims>,
    key: Key,
}

impl Claims {
    /// Claims packages, after the removal of those that are being removed; fails with one whose removal takes too long.
    pub(crate) fn claim(self: &Arc<Self>, base: &str, packages: &Packages) -> Result<Claim, Key> {
        let keys = packages.iter();
        let keys: Vec<Key> = keys
            .map(|package| (base.to_owned(), package.clone()))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while let Some(going) = keys.iter().find(|key| state.going.contains(*key)) {
            if self.removed.wait_until(&mut state, deadline).timed_out() {
                return Err(going.clone());
            }
        }
        for key in &keys {
            *state.held.entry(key.clone()).or_default() += 1;
        }
        let claims = Arc::clone(self);
        Ok(Claim { claims, keys })
    }

    /// Begins to remove a package, unless it is claimed or somebody else removes it.
    pub(crate) fn remove(self: &Arc<Self>, base: &str, package: &str) -> Option<Removal> {
        let key = (base.to_owned(), package.to_owned());
        let mut state = self.state.lock();
        if state.held.contains_key(&key) || !state.going.insert(key.clone()) {
            return None;
        }
        let claims = Arc::clone(self);
        Some(Removal { claims, key })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.claims.state.lock();
        for key in &self.keys {
            if let Some(count) = state.held.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    state.held.remove(key);
                }
            }
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.claims.state.lock().going.remove(&self.key);
        self.claims.removed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_is_not_removed_and_what_is_being_removed_not_claimed() {
        let claims = Arc::new(Claims::default());
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let one = claims.claim("base", &set(&["a==1", "b==1"])).unwrap();
        let two = claims.claim("base", &set(&["a==1"])).unwrap();
        assert!(claims.remove("base", "a==1").is_none());
        drop(one);
        assert!(claims.remove("base", "a==1").is_none(), "two has it");
        let removal = claims.remove("base", "b==1").unwrap();
        assert!(claims.remove("base", "b==1").is_none());
        assert!(claims.claim("other", &set(&["b==1"])).is_ok());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let claim = claims.claim("base", &set(&["a==1", "b==1"]));
                assert!(over.load(std::sync::atomic::Ordering::SeqCst));
                claim.is_ok()
            });
            drop(two);
            let other = claims.remove("base", "a==1");
            over.store(true, std::sync::atomic::Ordering::SeqCst);
            drop((removal, other));
            assert!(waits.join().unwrap());
        });
        assert!(claims.state.lock().held.is_empty() && claims.state.lock().going.is_empty());
    }
}
