//! How packages go: on request, or because others are worth more.
//!
//! A package disappears by a rename into `incoming`, after the resolutions that name it and before its record. So a
//! program that is killed meanwhile leaves whole packages only, and what it had begun to delete is deleted at the
//! next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use sandbox::cache::{Hits, Kept, first_to_go};
use sandbox::{Packages, Phase, Sandboxes};

use super::{Store, check_name, names_in};
use crate::error::{PackageError, Result, at};
use crate::names::Pinned;
use crate::records::{self, Installed, Resolution};

/// Packages whose uses are remembered.
const USES_MAX: usize = 100_000;

impl Store {
    /// Removes a package, the Zygotes that have imported it, and the resolutions that name it.
    ///
    /// # Errors
    /// If there is none, or a sandbox has it.
    pub fn remove(&self, sandboxes: &Sandboxes, base: &str, package: &str) -> Result<()> {
        check_name(base)?;
        let pinned = Pinned::parse(package)?;
        let package = pinned.text();
        let dir = self.dir_of(base);
        let place = dir.join(&package);
        if !place.is_dir() {
            return Err(PackageError::Unknown(format!(
                "there is no package {package} for {base}"
            )));
        }
        let work = self.work()?;
        // Dropped before what was removed is deleted, which takes a while.
        let Some(_removal) = self.claims.remove(base, &package) else {
            let by = "a request that has just come, or somebody who removes it".to_owned();
            return Err(PackageError::InUse { package, by });
        };
        if let Some(by) = user_of(sandboxes, &dir, &package) {
            return Err(PackageError::InUse { package, by });
        }
        for zygote in sandboxes.zygotes() {
            if zygote.base == base && zygote.packages.contains(&package) {
                // That it has gone by itself is as good.
                let _gone = sandboxes.evict(&zygote.id);
            }
        }
        let resolutions = self.of(base, "resolutions");
        for name in names_in(&resolutions)? {
            let path = resolutions.join(name);
            let has_it = |kept: &Resolution| kept.packages.contains(&package);
            if records::read(&path).as_ref().is_some_and(has_it) {
                fs::remove_file(&path).map_err(at("removing", path))?;
            }
        }
        fs::rename(&place, work.0.join("removed")).map_err(at("removing", place))?;
        let record = self.of(base, "records").join(format!("{package}.json"));
        fs::remove_file(&record).map_err(at("removing", record))
    }

    /// Removes the least valuable packages for their size, until at most `bytes_max` remain, but none that is
    /// needed (as base and package) or that a sandbox uses. Returns how many.
    ///
    /// # Errors
    /// If the store cannot be read, or a package cannot be removed.
    pub fn evict(
        &self,
        sandboxes: &Sandboxes,
        bytes_max: u64,
        needed: &BTreeSet<(String, String)>,
    ) -> Result<u64> {
        let mut all = self.list()?;
        let mut total: u64 = all.iter().map(|one| one.bytes).sum();
        let mut gone = 0;
        all.retain(|one| !needed.contains(&(one.base.clone(), one.package.clone())));
        while total > bytes_max && !all.is_empty() {
            let now = Instant::now();
            let uses = self.uses.lock().clone();
            let kept: Vec<Kept> = all.iter().map(|one| kept(one, &uses, now)).collect();
            let Some(place) = first_to_go(&kept) else {
                break;
            };
            let one = all.swap_remove(place);
            match self.remove(sandboxes, &one.base, &one.package) {
                Ok(()) => {
                    total -= one.bytes;
                    gone += 1;
                }
                Err(PackageError::InUse { .. } | PackageError::Unknown(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// Notes that packages were of use.
    pub(super) fn used(&self, base: &str, packages: &Packages) {
        let now = Instant::now();
        let mut uses = self.uses.lock();
        if uses.len() > USES_MAX {
            uses.clear();
        }
        for package in packages {
            uses.entry((base.to_owned(), package.clone()))
                .or_default()
                .add(now);
        }
    }
}

/// What is known of a package, to choose which goes first.
fn kept(one: &Installed, uses: &BTreeMap<(String, String), Hits>, now: Instant) -> Kept {
    let hits = uses.get(&(one.base.clone(), one.package.clone()));
    #[expect(clippy::cast_precision_loss, reason = "only the order counts")]
    let saved_ms = one.install_ms as f64;
    Kept {
        id: one.package.clone(),
        bytes: one.bytes,
        saved_ms,
        hits: hits.map_or(0.0, |hits| hits.count(now)),
        children: 0,
    }
}

/// Returns the sandbox that has a package, if there is one.
fn user_of(sandboxes: &Sandboxes, dir: &Path, package: &str) -> Option<String> {
    let mut live = sandboxes.list();
    live.retain(|sandbox| !matches!(sandbox.phase(), Phase::Ended(_)));
    let has_it = |sandbox: &&std::sync::Arc<sandbox::Sandbox>| {
        let request = sandbox.request();
        let python = request.python.as_ref();
        request.packages.as_deref() == Some(dir)
            && python.is_some_and(|python| python.packages.contains(package))
    };
    let found = live.iter().find(has_it);
    found.map(|sandbox| format!("the sandbox {}", sandbox.id()))
}
