//! The pages that are held, and what becomes of them when files change.

mod held;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use self::held::{Charge, Held, Identity};
use crate::group::Group;
use crate::pages::{PAGE, Pages};
use crate::pin_dir::PinDir;
use crate::profile::{Profile, ProfileFile};
use crate::talk::{PinStatus, ProfileStatus};

/// The most problems that are reported.
const PROBLEMS_MAX: usize = 20;

/// Holds the pages of the profiles that are applied.
#[derive(Debug)]
pub struct Holder {
    pins: PinDir,
    budget: u64,
    group: Option<Group>,
    held: HashMap<PathBuf, Held>,
    status: PinStatus,
}

impl Holder {
    /// Returns one without locked pages, which will lock at most `budget` bytes. They are charged to `group`,
    /// which this process has joined.
    #[must_use]
    pub fn new(pins: PinDir, budget: u64, group: Option<Group>) -> Self {
        Self {
            pins,
            budget,
            group,
            held: HashMap::new(),
            status: PinStatus::default(),
        }
    }

    /// Returns the status at the last [`refresh`](Self::refresh).
    #[must_use]
    pub fn status(&self) -> &PinStatus {
        &self.status
    }

    /// Returns the paths of all files that are to be held, whether they are there or not.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<PathBuf> {
        self.held.keys().cloned().collect()
    }

    /// Checks which profiles are applied and which files their paths lead to now; locks new pages, and
    /// unlocks unwanted ones. In a file that was replaced the same ranges are locked, as far as it has them.
    pub fn refresh(&mut self) {
        let mut problems = Vec::new();
        let profiles = self.profiles(&mut problems);
        let wanted = wanted(
            profiles
                .iter()
                .filter(|(applied, _)| *applied)
                .map(|(_, profile)| profile),
        );
        let is_held = |(path, pages): &(PathBuf, Pages)| {
            self.held
                .get(path)
                .is_some_and(|held| held.is_of(path, pages))
        };
        let nothing_new = wanted.len() == self.held.len() && wanted.iter().all(is_held);
        // What is not kept goes before anything is locked: it makes room in the budget.
        let mut left = self.budget;
        let mut kept = HashMap::new();
        let mut missing = Vec::new();
        for (path, pages) in &wanted {
            let is_kept =
                |held: &Held| held.is_of(path, pages) && (held.left_out == 0 || nothing_new);
            match self.held.remove(path).filter(is_kept) {
                Some(held) => {
                    left = left.saturating_sub(held.bytes());
                    kept.insert(path.clone(), held);
                }
                None => missing.push((path, pages)),
            }
        }
        self.held = kept;
        let charge = match self.group {
            Some(_) => Charge::Anew,
            None => Charge::AsItIs,
        };
        for (path, pages) in missing {
            let (held, problem) = Held::lock(path, pages, left, charge);
            left = left.saturating_sub(held.bytes());
            problems.extend(problem);
            self.held.insert(path.clone(), held);
        }
        self.status = self.status_of(&profiles, problems);
    }

    fn profiles(&self, problems: &mut Vec<String>) -> Vec<(bool, Profile)> {
        let (names, applied) = match (self.pins.names(), self.pins.applied()) {
            (Ok(names), Ok(applied)) => (names, applied),
            (Err(error), _) | (_, Err(error)) => {
                problems.push(format!("{error:#}"));
                return Vec::new();
            }
        };
        let mut profiles = Vec::new();
        for name in names {
            match self.pins.profile(&name) {
                Ok(profile) => profiles.push((applied.contains(&name), profile)),
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        profiles
    }

    fn status_of(&self, profiles: &[(bool, Profile)], mut problems: Vec<String>) -> PinStatus {
        for problem in &problems {
            log::warn!("{problem}");
        }
        problems.truncate(PROBLEMS_MAX);
        PinStatus {
            pid: Some(std::process::id()),
            budget_bytes: self.budget,
            locked_bytes: self.held.values().map(Held::bytes).sum(),
            left_out_bytes: self.held.values().map(|held| held.left_out).sum(),
            group: self.group.as_ref().map(Group::status),
            profiles: profiles
                .iter()
                .map(|(applied, profile)| self.about(*applied, profile))
                .collect(),
            problems,
        }
    }

    fn about(&self, applied: bool, profile: &Profile) -> ProfileStatus {
        let mut about = about(applied, profile);
        let held = profile
            .files
            .iter()
            .filter_map(|file| Some((file, self.held.get(&file.path)?)));
        about.locked_bytes = match applied {
            true => held
                .map(|(file, held)| held.common_bytes(&file.pages))
                .sum(),
            false => 0,
        };
        about
    }
}

/// Returns the status of profiles while no process holds them.
///
/// # Errors
/// If the directory cannot be read.
pub fn status_of_nobody(pins: &PinDir) -> anyhow::Result<PinStatus> {
    let applied = pins.applied()?;
    let mut status = PinStatus::default();
    for name in pins.names()? {
        match pins.profile(&name) {
            Ok(profile) => status
                .profiles
                .push(about(applied.contains(&name), &profile)),
            Err(error) => status.problems.push(format!("{error:#}")),
        }
    }
    Ok(status)
}

fn about(applied: bool, profile: &Profile) -> ProfileStatus {
    let now = |file: &ProfileFile| Identity::of(&file.path);
    let is_changed =
        |file: &&ProfileFile| now(file).is_some_and(|now| !now.has_content_of(&file.version));
    ProfileStatus {
        name: profile.name.clone(),
        applied,
        files: profile.files.len(),
        changed_files: profile.files.iter().filter(is_changed).count(),
        missing_files: profile
            .files
            .iter()
            .filter(|file| now(file).is_none())
            .count(),
        bytes: profile.bytes(),
        file_bytes: profile.file_bytes(),
        locked_bytes: 0,
    }
}

/// Returns what several profiles want, each file once, in the order in which they want them.
fn wanted<'a>(profiles: impl Iterator<Item = &'a Profile>) -> Vec<(PathBuf, Pages)> {
    let mut places: HashMap<&'a PathBuf, usize> = HashMap::new();
    let mut wanted: Vec<(PathBuf, Pages)> = Vec::new();
    for file in profiles.flat_map(|profile| &profile.files) {
        let place = *places.entry(&file.path).or_insert(wanted.len());
        match wanted.get_mut(place) {
            Some((_, pages)) => {
                pages.insert_all(&file.pages);
            }
            None => wanted.push((file.path.clone(), file.pages.clone())),
        }
    }
    wanted
}

/// Returns how many bytes it takes to lock all of these profiles.
#[must_use]
pub fn bytes_of(profiles: &[Profile]) -> u64 {
    wanted(profiles.iter())
        .iter()
        .map(|(_, pages)| pages.count() * PAGE)
        .sum()
}

#[cfg(test)]
mod tests;
