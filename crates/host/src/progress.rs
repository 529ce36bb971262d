//! How far long work is, shown to whoever waits for it.
//!
//! Libraries say what they do, as they say to `log` what happened; a program that has a terminal shows it.
//! A daemon installs nothing, and nothing is shown.

use std::sync::{Arc, OnceLock};

/// Shows how far work is.
pub trait Reporter: Send + Sync {
    /// Shows work over `total` bytes, or one that counts if nobody knows how much there is.
    fn begin(&self, what: &str, total: Option<u64>) -> Arc<dyn Progress>;
}

/// One piece of work, as it is shown.
pub trait Progress: Send + Sync {
    /// Changes how much there is to do.
    fn set_length(&self, total: u64);
    /// Says how much is done.
    fn set_position(&self, done: u64);
    /// Says how much more is done.
    fn advance(&self, more: u64);
    /// Shows it no longer.
    fn finish(&self);
}

static REPORTER: OnceLock<Box<dyn Reporter>> = OnceLock::new();

/// Has all work of this process be shown by `reporter`. The first one stays.
pub fn install(reporter: Box<dyn Reporter>) {
    let _first = REPORTER.set(reporter);
}

/// A piece of work that may be shown. Clones are the same piece.
#[derive(Clone, Default)]
pub struct Bar(Option<Arc<dyn Progress>>);

impl std::fmt::Debug for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bar").field(&self.0.is_some()).finish()
    }
}

/// Begins work over `total` bytes.
#[must_use]
pub fn bytes(what: &str, total: u64) -> Bar {
    Bar(REPORTER
        .get()
        .map(|reporter| reporter.begin(what, Some(total))))
}

/// Begins work of which nobody knows how much there is: it counts.
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

    /// Changes how much there is to do.
    pub fn set_length(&self, total: u64) {
        self.with(|shown| shown.set_length(total));
    }

    /// Says how much is done.
    pub fn set_position(&self, done: u64) {
        self.with(|shown| shown.set_position(done));
    }

    /// Says how much more is done.
    pub fn inc(&self, more: u64) {
        self.with(|shown| shown.advance(more));
    }

    /// Shows it no longer.
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
