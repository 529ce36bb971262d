//! Enforces the budget: freezes idle sandboxes, and ends the least valuable ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox::cache::{Kept, first_to_go};

use crate::handler::Handler;
use crate::instance::Instance;
use crate::shared::Shared;

/// Freezes idle sandboxes, and ends those beyond the budget.
pub(crate) fn keep(shared: &Shared) {
    let handlers: Vec<Arc<Handler>> = shared.handlers.read().values().cloned().collect();
    let budget = shared.budget;
    let now = Instant::now();
    for handler in &handlers {
        let is_over =
            |since: Instant, patience: Duration| now.saturating_duration_since(since) >= patience;
        while let Some(instance) =
            handler.take_idle(|one| !one.lives() || is_over(one.idle_since, budget.end_after))
        {
            drop(instance);
            handler.gone();
        }
        let is_due = |one: &Instance| {
            one.frozen_bytes.is_none() && is_over(one.idle_since, budget.freeze_after)
        };
        while let Some(mut instance) = handler.take_idle(is_due) {
            match instance.freeze() {
                Ok(()) => handler.put_back(instance),
                Err(error) => {
                    log::debug!(
                        "a sandbox of {} is not frozen, but ended: {error}",
                        handler.spec.name
                    );
                    drop(instance);
                    handler.gone();
                }
            }
        }
    }
    evict(shared, &handlers);
    evict_packages(shared, &handlers);
}

/// Ends what is worth least, until the rest is within the budget.
fn evict(shared: &Shared, handlers: &[Arc<Handler>]) {
    let mut kept: Vec<Kept> = shared.sandboxes.kept_zygotes();
    let mut owners: Vec<Option<&Arc<Handler>>> = vec![None; kept.len()];
    for handler in handlers {
        let of_it = handler.kept();
        owners.extend(of_it.iter().map(|_| Some(handler)));
        kept.extend(of_it);
    }
    let mut total: u64 = kept.iter().map(|one| one.bytes).sum();
    shared.count(|counts| counts.kept_bytes = total);
    while total > shared.budget.memory_bytes {
        let Some(place) = first_to_go(&kept) else {
            return;
        };
        let gone = kept.swap_remove(place);
        match owners.swap_remove(place) {
            Some(handler) => {
                if let Some(instance) = handler.take_idle(|one| one.sandbox.id() == gone.id) {
                    drop(instance);
                    handler.gone();
                    shared.count(|counts| counts.evicted_instances += 1);
                }
            }
            None => {
                // That it has gone by itself is as good.
                let _gone = shared.sandboxes.evict(&gone.id);
                shared.count(|counts| counts.evicted_zygotes += 1);
                // Its parent may have no more children now.
                let parents: Vec<Kept> = shared.sandboxes.kept_zygotes();
                for one in &mut kept {
                    if let Some(now) = parents.iter().find(|now| now.id == one.id) {
                        one.children = now.children;
                    }
                }
            }
        }
        total -= gone.bytes;
    }
}

/// Removes the packages that are worth least, but none that a handler needs.
fn evict_packages(shared: &Shared, handlers: &[Arc<Handler>]) {
    let Some(most) = shared.budget.package_bytes else {
        return;
    };
    let mut needed = BTreeSet::new();
    for handler in handlers {
        let spec = &handler.spec;
        if let Ok(Some(packages)) = shared.store.needed_by(&spec.base, &spec.requires) {
            needed.extend(
                packages
                    .into_iter()
                    .map(|package| (spec.base.clone(), package)),
            );
        }
    }
    match shared.store.evict(&shared.sandboxes, most, &needed) {
        Ok(gone) => shared.count(|counts| counts.evicted_packages += gone),
        Err(error) => log::warn!("packages stay beyond their budget: {error}"),
    }
}
