//! Opening objects: compares the journal with the files on the tiers.

use std::collections::HashMap;
use std::io;
use std::str::FromStr as _;
use std::sync::Arc;

use blocks::ContentId;
use parking_lot::Mutex;

use super::{
    Entry, Found, Mark, Objects, OpenError, OpenReport, Table, Tier, TierConfig, TierIndex,
    part_name, whole_name,
};
use crate::journal::{
    Journal, JournalError, Known, OBJECTS_MAX, OpenJournalError, TIER_FILE_LEN, TIERS_MAX, TierId,
    decode_tier,
};
use crate::medium::Medium;
use crate::objects::copy::hash_file;
use crate::objects::mark::{TIER_FILE, write_tier_file};

/// What is found out while tiers are looked at.
struct Survey {
    known: HashMap<ContentId, Known>,
    report: OpenReport,
}

impl Objects {
    /// Opens the objects whose journal lies on `state`, on `tiers`, the fastest first.
    ///
    /// Recovers from interrupted operations. A tier that the journal knows and that is not among
    /// `tiers` is missing: its copies count again when it is back. Meanwhile a directory without a
    /// mark may be its mount point, and is refused; a new tier is marked before ([`Mark::write`]).
    ///
    /// # Errors
    /// If a directory cannot be used, may be the mount point of a missing tier, or a later program
    /// wrote in it.
    pub fn open(
        state: Arc<dyn Medium>,
        tiers: Vec<TierConfig>,
    ) -> Result<(Self, OpenReport), OpenError> {
        let marked = identify(&tiers)?;
        let (journal, contents) = Journal::open(state).map_err(|error| match error {
            OpenJournalError::Io(source) => io_error("read", "journal")(source),
            OpenJournalError::Format(source) => OpenError::Format {
                what: "journal".to_owned(),
                source,
            },
        })?;
        refuse_mount_points(&marked, &contents.tiers)?;
        let found = name_others(&tiers, marked)?;
        let mut ids = contents.tiers.clone();
        ids.extend(found.iter().filter(|id| !contents.tiers.contains(id)));
        if ids.len() > TIERS_MAX {
            return Err(OpenError::Tiers {
                rule: "a journal has at most 8 tiers, unavailable ones included",
            });
        }
        let mut survey = Survey {
            known: contents.known,
            report: OpenReport {
                journal: contents.found,
                objects: 0,
                lost: 0,
                swept: 0,
                adopted: 0,
                away: 0,
            },
        };
        let mut present = Vec::new();
        for (config, id) in tiers.into_iter().zip(&found) {
            let slot = ids.iter().position(|other| other == id);
            let slot = slot.and_then(|slot| u8::try_from(slot).ok()).unwrap_or(0);
            let what = TierIndex(present.len()).to_string();
            // The last record of a torn journal may also have rotted after it was synced.
            let vouched = contents.tiers.contains(id) && contents.found == Found::Sound;
            let surveyed = survey.tier(&*config.medium, slot, vouched);
            surveyed.map_err(io_error("look at", &what))?;
            present.push(Tier {
                medium: config.medium,
                capacity_bytes: config.capacity_bytes,
                slot,
            });
        }
        let objects = assemble(present, ids, journal, survey.known);
        objects.renew_on_opening(contents.tiers.len(), &mut survey.report)?;
        Ok((objects, survey.report))
    }

    /// Writes the journal anew if something was mended, and completes the report.
    fn renew_on_opening(&self, known: usize, report: &mut OpenReport) -> Result<(), OpenError> {
        let mut journal = self.journal.lock();
        let changed = report.lost + report.adopted > 0 || known < self.ids.len();
        let here = self
            .tiers
            .iter()
            .fold(0, |bits, tier| bits | 1 << tier.slot);
        let (wanted, live) = {
            let table = self.table.lock();
            report.objects = table.entries.len();
            let away = table
                .entries
                .values()
                .filter(|entry| entry.held & here == 0);
            report.away = away.count();
            (table.known(), table.copies)
        };
        if changed || journal.is_stale() || journal.is_wordy(live) {
            let renewed = journal.renew(&self.ids, &wanted);
            renewed.map_err(io_error("write", "journal"))?;
        }
        Ok(())
    }
}

fn assemble(
    tiers: Vec<Tier>,
    ids: Vec<TierId>,
    journal: Journal,
    known: HashMap<ContentId, Known>,
) -> Objects {
    let mut table = Table::default();
    for (id, known) in known {
        for slot in crate::journal::tiers_of(known.tiers) {
            table.copies += 1;
            let used = &mut table.used[usize::from(slot)];
            *used = used.saturating_add(known.len);
        }
        table.entries.insert(id, Entry::new(known));
    }
    Objects {
        tiers,
        ids,
        journal: Mutex::new(journal),
        table: Mutex::new(table),
    }
}

impl Survey {
    /// Looks at what lies on the tier in `slot`. What a journal that knows the tier does not
    /// vouch for is removed; if there is none, hashes decide.
    fn tier(&mut self, medium: &dyn Medium, slot: u8, vouched: bool) -> io::Result<()> {
        let mut files: HashMap<String, u64> = medium.list()?.into_iter().collect();
        let bit = 1 << slot;
        for (id, known) in &mut self.known {
            if known.tiers & bit == 0 {
                continue;
            }
            let name = whole_name(*id);
            if files.get(&name) == Some(&known.len) {
                files.remove(&name);
            } else {
                // What is there in its place is looked at below.
                known.tiers &= !bit;
                self.report.lost += 1;
            }
        }
        self.known.retain(|_, known| known.tiers != 0);
        for (name, len) in files {
            let Some(id) = object_of(&name) else {
                continue; // not ours
            };
            let whole = name == whole_name(id);
            let adopted = match whole && !vouched {
                true => self.adopt(medium, id, len, bit),
                false => Ok(false),
            };
            match adopted {
                Ok(true) => self.report.adopted += 1,
                Ok(false) => {
                    medium.remove(&name)?;
                    self.report.swept += 1;
                }
                // It may be readable another time.
                Err(error) => log::warn!("cannot tell whether {name} is whole: {error}"),
            }
        }
        // What a former process renamed or removed, and what was removed now, is seen; from here
        // on it is built upon, so it must not come undone.
        medium.sync_names()
    }

    /// Takes a copy in if it is what its name says.
    fn adopt(&mut self, medium: &dyn Medium, id: ContentId, len: u64, bit: u8) -> io::Result<bool> {
        let fits = self.known.len() < OBJECTS_MAX || self.known.contains_key(&id);
        if !fits || hash_file(medium, &whole_name(id), len)? != id {
            return Ok(false);
        }
        // It may never have been synced.
        medium.sync(&whole_name(id))?;
        medium.sync_names()?;
        let found = Known { len, tiers: 0 };
        let known = self.known.entry(id).or_insert(found);
        if known.len != len {
            // The hash is right: so no copy of another length is one, wherever it is said to be.
            *known = found;
        }
        known.tiers |= bit;
        Ok(true)
    }
}

/// Returns the object that a file is, or is to be, a copy of.
fn object_of(name: &str) -> Option<ContentId> {
    let id = ContentId::from_str(name.strip_suffix(".part").unwrap_or(name)).ok()?;
    // Of names, only those that we write: others may use capital letters.
    (name == whole_name(id) || name == part_name(id)).then_some(id)
}

/// What a directory says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marked {
    /// It is this tier.
    As(TierId),
    /// Its mark is damaged: it gets a new one, which no journal knows, so what lies on it is taken
    /// in by its hash.
    Damaged,
    /// It has none: it is new, or a file system is not mounted on it.
    Never,
}

/// Returns which tiers directories are, and writes nothing.
fn identify(tiers: &[TierConfig]) -> Result<Vec<Marked>, OpenError> {
    let rule = |rule| Err(OpenError::Tiers { rule });
    match tiers.len() {
        0 => return rule("there are none"),
        1..=TIERS_MAX => {}
        _ => return rule("there are more than 8"),
    }
    let mut all = Vec::new();
    for (index, config) in tiers.iter().enumerate() {
        let what = TierIndex(index).to_string();
        let marked = identify_one(&*config.medium, &what)?;
        if matches!(marked, Marked::As(_)) && all.contains(&marked) {
            return rule("two of them are the same directory");
        }
        all.push(marked);
    }
    Ok(all)
}

fn identify_one(medium: &dyn Medium, what: &str) -> Result<Marked, OpenError> {
    let mut bytes = [0; TIER_FILE_LEN];
    let len = match medium.read_at(TIER_FILE, 0, &mut bytes) {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Marked::Never),
        Err(error) => return Err(io_error("read", what)(error)),
    };
    match decode_tier(&bytes[..len]) {
        Ok(id) => Ok(Marked::As(id)),
        Err(JournalError::Damaged) => Ok(Marked::Damaged),
        Err(source) => Err(OpenError::Format {
            what: what.to_owned(),
            source,
        }),
    }
}

/// Refuses directories without a mark while a tier that the journal knows is missing.
fn refuse_mount_points(marked: &[Marked], known: &[TierId]) -> Result<(), OpenError> {
    let missing = known.iter().any(|id| !marked.contains(&Marked::As(*id)));
    match marked.iter().position(|marked| *marked == Marked::Never) {
        Some(index) if missing => Err(OpenError::NotMounted {
            tier: TierIndex(index),
        }),
        _ => Ok(()),
    }
}

/// Marks those that are new, and returns which tiers they are.
fn name_others(tiers: &[TierConfig], marked: Vec<Marked>) -> Result<Vec<TierId>, OpenError> {
    let mut ids: Vec<TierId> = Vec::new();
    for (index, (config, marked)) in tiers.iter().zip(marked).enumerate() {
        let what = TierIndex(index).to_string();
        let id = match marked {
            Marked::As(id) => id,
            // One that was marked by now is a directory that was given twice.
            Marked::Damaged | Marked::Never => match identify_one(&*config.medium, &what)? {
                Marked::As(id) => id,
                _ => name_tier(&*config.medium).map_err(io_error("mark", &what))?,
            },
        };
        if ids.contains(&id) {
            let rule = "two of them are the same directory";
            return Err(OpenError::Tiers { rule });
        }
        ids.push(id);
    }
    Ok(ids)
}

fn name_tier(medium: &dyn Medium) -> io::Result<TierId> {
    let Mark(id) = Mark::random()?;
    write_tier_file(medium, TierId(id))?;
    Ok(TierId(id))
}

fn io_error(doing: &'static str, what: &str) -> impl FnOnce(io::Error) -> OpenError {
    let what = what.to_owned();
    move |source| OpenError::Io {
        doing,
        what,
        source,
    }
}
