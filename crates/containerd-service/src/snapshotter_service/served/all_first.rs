//! Warming waits while many layers are mounted: all are served first. A container that starts meanwhile does not wait.

/// Holds warming back, by an `H` that does so until it is dropped.
#[derive(Debug)]
pub(super) struct AllFirst<H> {
    many: bool,
    hold: Option<H>,
}

impl<H> Default for AllFirst<H> {
    fn default() -> Self {
        Self {
            many: false,
            hold: None,
        }
    }
}

impl<H> AllFirst<H> {
    /// Notes that a layer is about to be mounted, and whether others wait for that. Warming is held back once, when there come to be
    /// others, and no longer than until there are none.
    pub(super) fn mounts(&mut self, have_others: bool, hold: impl FnOnce() -> Option<H>) {
        if have_others && !self.many {
            self.hold = hold();
        }
        if !have_others {
            self.hold = None;
        }
        self.many = have_others;
    }

    /// Notes that a container starts, for which layers are warmed.
    pub(super) fn container_starts(&mut self) {
        self.hold = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn warming_waits_for_many_layers_and_not_while_a_container_starts() {
        let holds = Arc::new(());
        let held = || Arc::strong_count(&holds) - 1;
        let hold = || Some(Arc::clone(&holds));
        let mut first = AllFirst::default();
        first.mounts(false, hold);
        assert_eq!(held(), 0, "a single layer is warmed at once");
        first.mounts(true, hold);
        first.mounts(true, hold);
        assert_eq!(held(), 1);
        first.mounts(false, hold);
        assert_eq!(held(), 0);
        first.mounts(true, hold);
        first.container_starts();
        assert_eq!(held(), 0);
        first.mounts(true, hold);
        assert_eq!(
            held(),
            0,
            "the rest of these layers is not held back for again"
        );
        first.mounts(false, hold);
        first.mounts(true, hold);
        assert_eq!(held(), 1);
    }
}
