//! A store that is stopped at any step is whole; a full disk at any step is survived.

use super::*;

/// Puts that make the store seal, evict and compact.
const PUTS: u64 = 26;

/// With room for what was evicted and not overwritten, too: that comes back.
const ROOMY: StoreConfig = StoreConfig {
    budget_bytes: 4 << 20,
    ..CONFIG
};

fn reopen_roomy(dir: &TempDir, store: DiskStore) -> DiskStore {
    drop(store);
    open_with(dir, ROOMY)
}

fn stopped(dir: &TempDir, end: End, after: u64) -> (DiskStore, Arc<Ending>) {
    let ending = Ending::new(end, after);
    let steps = Steps {
        ending: Some(Arc::clone(&ending)),
    };
    (
        DiskStore::open_with(dir.path(), CONFIG, steps).unwrap(),
        ending,
    )
}

/// The numbers of those chunks that the store says are there, where `place` holds.
fn there(store: &DiskStore, place: impl Fn(&RecordLocation) -> bool) -> Vec<u64> {
    let state = store.state.lock();
    let here = |number: &u64| state.residents.get(&id(*number)).is_some_and(&place);
    (0..PUTS).filter(here).collect()
}

fn goes_on(store: &DiskStore) {
    for number in PUTS..PUTS + 12 {
        put(store, number).unwrap();
        assert!(has(store, number));
        check_budget(store);
    }
}

#[test]
fn killed_at_any_step_it_has_what_it_had() {
    for after in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let (store, ending) = stopped(&dir, End::Killed, after);
        (0..PUTS).for_each(|number| drop(put(&store, number)));
        let had = there(&store, |_| true);
        let store = reopen_roomy(&dir, store);
        assert!(
            had.iter().all(|number| has(&store, *number)),
            "step {after}: {had:?}"
        );
        get_all(&store, PUTS);
        check_budget(&store);
        goes_on(&store);
        if !ending.reached() {
            assert!(after > PUTS, "there are steps to stop at");
            return;
        }
    }
}

#[test]
fn after_a_power_cut_at_any_step_it_has_what_was_sealed_and_nothing_wrong() {
    for after in (0..).step_by(2) {
        let dir = tempfile::tempdir().unwrap();
        let (store, ending) = stopped(&dir, End::Killed, after);
        (0..PUTS).for_each(|number| drop(put(&store, number)));
        let active = store
            .writer
            .lock()
            .active
            .as_ref()
            .map(|active| active.segment.number);
        let durable = there(&store, |place| Some(place.number) != active);
        drop(store);
        ending.cut_power(after % 4 == 0);
        let store = open_with(&dir, ROOMY);
        assert!(
            durable.iter().all(|number| has(&store, *number)),
            "step {after}: {durable:?}"
        );
        get_all(&store, PUTS);
        goes_on(&store);
        if !ending.reached() {
            return;
        }
    }
}

#[test]
fn a_disk_full_at_any_step_costs_chunks_and_no_get() {
    for (after, steps) in (0..).flat_map(|after| [(after, 1), (after, 9)]) {
        let dir = tempfile::tempdir().unwrap();
        let (store, ending) = stopped(&dir, End::DiskFull { steps }, after);
        for number in 0..PUTS {
            match put(&store, number) {
                Ok(_) => assert!(has(&store, number)),
                Err(PutError::Full) => assert!(ending.reached()),
                Err(other) => panic!("step {after}: {other}"),
            }
            let had = there(&store, |_| true);
            assert!(
                had.iter().all(|number| has(&store, *number)),
                "step {after}"
            );
            check_budget(&store);
        }
        let had = there(&store, |_| true);
        let store = reopen_roomy(&dir, store);
        assert!(
            had.iter().all(|number| has(&store, *number)),
            "step {after}"
        );
        goes_on(&store);
        if !ending.reached() {
            return;
        }
    }
}
