//! Progress of long operations, for display.
//!
//! Libraries report progress here, as they report events to `log`; a program with a terminal shows it.
//! A daemon installs no reporter, and nothing is shown.

use std::sync::{Arc, OnceLock};

/// Displays progress.
pub trait Reporter: Send + Sync {
    /// Shows work over `total` bytes, or a counter if the total is unknown.
    fn begin(&self, what: &str, total: Option<u64>) -> Arc<dyn Progress>;
}

/// One operation whose progress is shown.
pub trait Progress: Send + Sync {
    /// Sets the total.
    fn set_length(&self, total: u64);
    /// Sets how much is done.
    fn set_position(&self, done: u64);
    /// Adds to how much is done.
    fn advance(&self, more: u64);
    /// Ends the display.
    fn finish(&self);
}

static REPORTER: OnceLock<Box<dyn Reporter>> = OnceLock::new();

/// Has `reporter` show all progress of this process. Only the first call has an effect.
pub fn install(reporter: Box<dyn Reporter>) {
    let _first = REPORTER.set(reporter);
}

/// An operation that may be shown. Clones are the same operation.
#[derive(Clone, Default)]
pub struct Bar(Option<Arc<dyn Progress>>);

impl std::fmt::Debug for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bar").field(&self.0.is_some()).finish()
    }
}

/// Begins an operation over `total` bytes.
#[must_use]
pub fn bytes(what: &str, total: u64) -> Bar {
    Bar(REPORTER
        .get()
        .map(|reporter| reporter.begin(what, Some(total))))
}

/// Begins an operation of unknown size, shown as a counter.
#[must_use]
pub fn counter(what: &str) -> Bar {
    Bar(REPORTER.get().map(|reporter| reporter.begin(what, None)))
}

impl Bar {
    /// Returns one that is not shown.
    #[must_use]
    pub const fn hidden() -> Self {
        Self(None)
    }

    /// Sets the total.
    pub fn set_length(&self, total: u64) {
        self.with(|shown| shown.set_length(total));
    }

    /// Sets how much is done.
    pub fn set_position(&self, done: u64) {
        self.with(|shown| shown.set_position(done));
    }

    /// Adds to how much is done.
    pub fn inc(&self, more: u64) {
        self.with(|shown| shown.advance(more));
    }

    /// Ends the display.
    pub fn finish_and_clear(&self) {
        self.with(|shown| shown.finish());
    }

    fn with(&self, show: impl FnOnce(&dyn Progress)) {
        if let Some(shown) = &self.0 {
            show(&**shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[derive(Default)]
    struct Sum(AtomicU64);

    impl Progress for Sum {
        fn set_length(&self, _: u64) {}
        fn set_position(&self, done: u64) {
            self.0.store(done, SeqCst);
        }
        fn advance(&self, more: u64) {
            self.0.fetch_add(more, SeqCst);
        }
        fn finish(&self) {}
    }

    #[test]
    fn clones_are_one_piece_of_work() {
        let shown = Arc::new(Sum::default());
        let bar = Bar(Some(Arc::clone(&shown) as Arc<_>));
        bar.set_position(7);
        bar.clone().inc(3);
        assert_eq!(shown.0.load(SeqCst), 10);
        // And what nobody shows is work all the same.
        Bar::hidden().inc(1);
    }
}
