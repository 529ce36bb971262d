//! Keeping the panic of one item from ending the loop, or the thread, that handles all of them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Panics that were caught in this process.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// What was being done panicked.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}; this is a bug: the log says where")]
pub struct Panicked(String);

/// Calls `act` for one of several items, and returns its panic as an error.
///
/// Unwind safety is the caller's: what `act` changes must be right, or given up, when it panics. The locks of
/// parking_lot are let go then, and are not poisoned.
///
/// # Errors
/// If it panics.
pub fn caught<T>(act: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|payload| {
        CAUGHT.fetch_add(1, Relaxed);
        Panicked(message(&*payload))
    })
}

/// Calls `act` as [`caught`] does, for one round of a loop that goes on: `None` if it panics, which is logged.
/// `doing` is what it does.
pub fn caught_round<T>(doing: &str, act: impl FnOnce() -> T) -> Option<T> {
    let done = caught(act);
    done.map_err(|panicked| log::error!("{doing} {panicked}"))
        .ok()
}

/// Returns how many panics were caught in this process.
#[must_use]
pub fn panics() -> u64 {
    CAUGHT.load(Relaxed)
}

/// Calls `act` as [`caught`] does, with a panic among its own errors.
///
/// # Errors
/// As `act`, and if it panics.
pub fn caught_or<T>(act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    caught(act)?
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("with no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_what_it_said() {
        assert_eq!(caught(|| 7).unwrap(), 7);
        let said = caught(|| panic!("part of the test")).unwrap_err();
        assert!(said.to_string().contains("part of the test"), "{said}");
        let number = 7;
        let said = caught_or::<()>(|| panic!("part {number} of the test")).unwrap_err();
        assert!(said.to_string().contains("part 7 of"), "{said}");
        let said = caught_or::<()>(|| Err(anyhow::anyhow!("its own"))).unwrap_err();
        assert_eq!(said.to_string(), "its own");
        let before = panics();
        let said = caught(|| std::panic::panic_any(7)).unwrap_err();
        assert!(panics() > before);
        assert_eq!(caught_round("a test", || 7), Some(7));
        assert_eq!(
            caught_round::<()>("a test", || panic!("a part of it")),
            None
        );
        assert!(said.to_string().contains("no message"), "{said}");
    }
}
