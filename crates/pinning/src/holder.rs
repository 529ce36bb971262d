//! The pages that are held, and what becomes of them when files change.

mod held;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use self::held::{Charge, Held, Identity};
use crate::follow;
use crate::group::Group;
use crate::limits::Limits;
use crate::pages::{PAGE, Pages};
use crate::pin_dir::PinDir;
use crate::profile::{Profile, ProfileFile};
use crate::talk::{Bound, BoundKind, LeftOut, PinStatus, ProfileStatus};

/// The most problems that are reported, and the most files that are named.
const PROBLEMS_MAX: usize = 20;

/// By how much more room in a cgroup more of a file is locked: what is free varies from one look to the next.
const STEP: u64 = 1 << 20;

/// Holds the pages of the profiles that are applied.
#[derive(Debug)]
pub struct Holder {
    pins: PinDir,
    budget: u64,
    limits: Limits,
    group: Option<Group>,
    /// By the path that leads to the file now.
    held: HashMap<PathBuf, Held>,
    /// The file that a path of a profile led to last.
    places: HashMap<PathBuf, Place>,
    status: PinStatus,
}

/// A file that a path of a profile led to.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    file: Option<Identity>,
}

impl Holder {
    /// Returns one without locked pages, which will lock at most `budget` bytes, and no more than this process may. They are
    /// charged to `group`, which this process has joined.
    #[must_use]
    pub fn new(pins: PinDir, budget: u64, group: Option<Group>) -> Self {
        Self {
            pins,
            budget,
            limits: Limits::of_this_process(budget),
            group,
            held: HashMap::new(),
            places: HashMap::new(),
            status: PinStatus::default(),
        }
    }

    /// Returns the status at the last [`refresh`](Self::refresh).
    #[must_use]
    pub fn status(&self) -> &PinStatus {
        &self.status
    }

    /// Returns the paths at which a change may concern a file that is to be held.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<PathBuf> {
        let links = self
            .places
            .keys()
            .flat_map(|path| follow::shorter_names(path));
        let files = self.places.keys().chain(self.held.keys()).cloned();
        files.chain(links).collect()
    }

    /// Checks which profiles are applied and which files their paths lead to now; locks new pages, and
    /// unlocks unwanted ones. In a file that was replaced the same ranges are locked, as far as it has them.
    pub fn refresh(&mut self) {
        let mut problems = Vec::new();
        let profiles = self.profiles(&mut problems);
        let applied = || profiles.iter().filter(|(applied, _)| *applied);
        let followed = self.follow(applied().flat_map(|(_, profile)| &profile.files));
        let wanted = wanted(applied().map(|(_, profile)| profile), |path| {
            self.places
                .get(path)
                .map_or_else(|| path.to_owned(), |place| place.path.clone())
        });
        let held = self.held.values().map(Held::bytes).sum();
        let (most, bound) = self.limits.bound(held);
        let step = match bound.kind {
            BoundKind::Budget => PAGE,
            BoundKind::Cgroup | BoundKind::Memlock => STEP,
        };
        let missing = self.give_back(&wanted, most, step);
        let charge = match self.group {
            Some(_) => Charge::Anew,
            None => Charge::AsItIs,
        };
        for (path, pages, share) in missing {
            let (held, problem) = Held::lock(path, pages, share, charge);
            problems.extend(problem);
            self.held.insert(path.clone(), held);
        }
        let (followed, errors) = (
            self.status.followed_files + followed,
            self.status.errors + problems.len() as u64,
        );
        self.status = PinStatus {
            followed_files: followed,
            errors,
            ..self.status_of(&profiles, problems)
        };
        self.tell_left_out(&wanted, bound);
    }

    /// Notes which files these paths lead to, and returns to how many other files than before.
    fn follow<'a>(&mut self, files: impl Iterator<Item = &'a ProfileFile>) -> u64 {
        let mut places = HashMap::new();
        let mut followed = BTreeSet::new();
        for path in files.map(|file| &file.path) {
            let now = follow::find(path);
            let file = Identity::of(&now);
            let before = self.places.get(path).and_then(|place| place.file);
            if let (Some(before), Some(file)) = (before, file)
                && file.is_other_file(&before)
            {
                followed.insert(now.clone());
            }
            // One that is gone for now is still the one before.
            let file = file.or(before);
            places.insert(path.clone(), Place { path: now, file });
        }
        self.places = places;
        followed.len() as u64
    }

    /// Unlocks what is not kept, which makes room, and returns what is to be locked: of each file, as many bytes as there is
    /// room for, `most` in all, in the order in which pages are wanted. For fewer than `step` bytes more of a file, it is left
    /// as it is, unless these are the last ones.
    fn give_back<'a>(
        &mut self,
        wanted: &'a [(PathBuf, Pages)],
        most: u64,
        step: u64,
    ) -> Vec<(&'a PathBuf, &'a Pages, u64)> {
        let mut left = most;
        let mut kept = HashMap::new();
        let mut missing = Vec::new();
        for (path, pages) in wanted {
            let held = self
                .held
                .remove(path)
                .filter(|held| held.is_of(path, pages));
            let needed = held.as_ref().map_or_else(
                || Held::needed_bytes(path, pages),
                |held| held.bytes() + held.left_out,
            );
            let share = needed.min(left);
            let is_enough = |held: &Held| {
                let is_little = share < needed.min(held.bytes() + step);
                held.bytes() == share || (held.bytes() < share && is_little)
            };
            match held.filter(is_enough) {
                Some(held) => {
                    left -= held.bytes();
                    kept.insert(path.clone(), held);
                }
                None => {
                    left -= share;
                    missing.push((path, pages, share));
                }
            }
        }
        self.held = kept;
        missing
    }

    /// Says which files are not held as far as they should be, and why.
    fn tell_left_out(&mut self, wanted: &[(PathBuf, Pages)], bound: Bound) {
        let mut files = Vec::new();
        for (path, _) in wanted {
            let bytes = self.held.get(path).map_or(0, |held| held.left_out);
            if bytes > 0 && files.len() < PROBLEMS_MAX {
                let path = path.clone();
                files.push(LeftOut { path, bytes });
            }
        }
        self.status.bound = (!files.is_empty()).then_some(bound);
        self.status.left_out = files;
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
            wanted_bytes: self
                .held
                .values()
                .map(|held| held.bytes() + held.left_out)
                .sum(),
            left_out_bytes: self.held.values().map(|held| held.left_out).sum(),
            group: self.group.as_ref().map(Group::status),
            profiles: profiles
                .iter()
                .map(|(applied, profile)| self.about(*applied, profile))
                .collect(),
            problems,
            ..PinStatus::default()
        }
    }

    fn about(&self, applied: bool, profile: &Profile) -> ProfileStatus {
        let mut about = about(applied, profile);
        let held = profile.files.iter().filter_map(|file| {
            let place = self.places.get(&file.path)?;
            Some((file, self.held.get(&place.path)?))
        });
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
    let now = |file: &ProfileFile| Identity::of(&follow::find(&file.path));
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

/// Returns what several profiles want, each file once, in the order in which they want them. `find` says where a file is.
fn wanted<'a>(
    profiles: impl Iterator<Item = &'a Profile>,
    find: impl Fn(&Path) -> PathBuf,
) -> Vec<(PathBuf, Pages)> {
    let mut places: HashMap<PathBuf, usize> = HashMap::new();
    let mut wanted: Vec<(PathBuf, Pages)> = Vec::new();
    for file in profiles.flat_map(|profile| &profile.files) {
        let path = find(&file.path);
        let place = *places.entry(path.clone()).or_insert(wanted.len());
        match wanted.get_mut(place) {
            Some((_, pages)) => {
                pages.insert_all(&file.pages);
            }
            None => wanted.push((path, file.pages.clone())),
        }
    }
    wanted
}

/// Returns how many bytes it takes to lock all of these profiles.
#[must_use]
pub fn bytes_of(profiles: &[Profile]) -> u64 {
    wanted(profiles.iter(), Path::to_owned)
        .iter()
        .map(|(_, pages)| pages.count() * PAGE)
        .sum()
}

#[cfg(test)]
mod tests;
