//! What should move: the facts of this machine, and the policy over its tiers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use blocks::ContentId;
use bootimg::{SharedGroup, Store, StoredImage};
use tiering::heat::Heat;
use tiering::parts::Index;
use tiering::policy::{
    self, Budget, Common, Fact, Group, Hold, Move, ObjectPlace, Preference, Taken,
};

use super::Tiers;
pub use super::candidate::{Candidate, Presence};
use super::seen::SeenTier;
use super::ways::{Hot, hot_files};
use super::whole::WholeFile;
use crate::store::name_of;

/// The heat that a boot image needs to be brought to a tier: one start within the last day.
const LEAST_HEAT: f64 = 0.5;
/// Bytes of the header and the footer of a boot image in one file.
const ENDS: u64 = 2 * 4096;

/// One move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The kind of move.
    pub change: Change,
    /// Which candidate, by its key.
    pub key: ContentId,
    /// The index of the tier.
    pub place: usize,
    /// Bytes that are moved.
    pub bytes: u64,
    /// For a copy that is made, those of the bytes that other objects have there already.
    pub shared_bytes: u64,
}

/// The kind of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A copy is removed.
    Demote,
    /// A copy is made.
    Promote,
}

/// The moves of a plan, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The moves.
    pub steps: Vec<Step>,
    /// Pinned objects that fit on no tier.
    pub unmet_pins: Vec<ContentId>,
    /// Bytes on each tier then.
    pub bytes_then: Vec<u64>,
}

/// Returns the inputs of the policy, from the store and the tiers.
///
/// # Errors
/// If the store cannot be read.
pub fn gather(tiers: &Tiers, seen: &[SeenTier], store: &Store) -> anyhow::Result<Vec<Candidate>> {
    let images = store.list().context("listing the store")?;
    let mut candidates: Vec<Candidate> = images
        .iter()
        .map(|image| of_image(tiers, seen, image))
        .collect();
    let hot = hot_files(tiers, store, &mut candidates);
    candidates.extend(of_files(tiers, seen, hot));
    let known: HashSet<ContentId> = candidates
        .iter()
        .filter_map(|candidate| candidate.object)
        .collect();
    let mut unknown = BTreeMap::new();
    for tier in seen {
        let strange = tier.objects.keys().filter(|id| !known.contains(id));
        unknown.extend(strange.filter_map(|id| Some((*id, tier.bytes_of(*id)?))));
    }
    candidates.extend(unknown.into_iter().map(|(object, bytes)| Candidate {
        key: object,
        label: object.short(),
        bytes,
        common: Vec::new(),
        heat: Heat::default(),
        pinned: false,
        image: None,
        file: None,
        hot_of: None,
        needless: false,
        object: Some(object),
        on: presence(seen, Some(object)),
    }));
    Ok(candidates)
}

/// Returns the files that have been objects, and those that are to be, because starts read them.
fn of_files(tiers: &Tiers, seen: &[SeenTier], mut hot: HashMap<ContentId, Hot>) -> Vec<Candidate> {
    let (files, now) = (tiers.files(), super::now());
    let of = |key| {
        let known = files.get(key)?;
        let label = known.file?;
        let file = WholeFile::at(Path::new(&label)).ok();
        let hot = hot.remove(&key);
        let heat = files.heat(key);
        let hotter = hot.as_ref().map(|hot| hot.heat);
        let hotter = hotter.filter(|hotter| hotter.at(now) > heat.at(now));
        Some(Candidate {
            key,
            bytes: known.bytes,
            common: Vec::new(),
            heat: hotter.unwrap_or(heat),
            pinned: known.pinned,
            image: None,
            file: file.filter(|file| file.key() == key),
            hot_of: hot.map(|hot| hot.of),
            needless: false,
            object: known.object,
            on: presence(seen, known.object),
            label,
        })
    };
    let mut candidates: Vec<Candidate> = files.keys().into_iter().filter_map(of).collect();
    candidates.extend(hot.into_values().map(|hot| Candidate {
        key: hot.file.key(),
        label: hot.file.path().to_string_lossy().into_owned(),
        bytes: hot.file.bytes(),
        common: Vec::new(),
        heat: hot.heat,
        pinned: false,
        image: None,
        file: Some(hot.file),
        hot_of: Some(hot.of),
        needless: false,
        object: None,
        on: presence(seen, None),
    }));
    // Files with the same content are one object: the hottest speaks for them.
    candidates.sort_by(|a, b| b.heat.at(super::now()).total_cmp(&a.heat.at(super::now())));
    let mut met = HashSet::new();
    candidates.retain(|candidate| candidate.object.is_none_or(|object| met.insert(object)));
    candidates
}

fn of_image(tiers: &Tiers, seen: &[SeenTier], image: &StoredImage) -> Candidate {
    let key = image.info.id.0;
    let known = tiers.known().get(key).unwrap_or_default();
    let about = image.info.file_bytes + image.info.data_blocks * 4096 + ENDS;
    Candidate {
        key,
        label: name_of(image),
        bytes: known.object.map_or(about, |_| known.bytes),
        common: groups_of(seen, image, known.object),
        heat: tiers.known().heat(key),
        pinned: known.pinned,
        image: Some(image.info.id),
        file: None,
        hot_of: None,
        needless: false,
        object: known.object,
        on: presence(seen, known.object),
    }
}

/// Returns what a boot image has in common with others. A copy that was made before the store moved
/// blocks to another segment shares no more of them, and one of an earlier release none.
fn groups_of(
    seen: &[SeenTier],
    image: &StoredImage,
    object: Option<ContentId>,
) -> Vec<SharedGroup> {
    let object = object.unwrap_or_default();
    let with = seen
        .iter()
        .filter(|tier| tier.objects.contains_key(&object));
    let copies: Vec<_> = with.map(|tier| tier.indexes.get(object)).collect();
    let names = |segment: &ContentId| {
        let names = |index: &Index| index.pools().contains(segment);
        copies.iter().all(|copy| copy.is_some_and(names))
    };
    let groups = image.groups.iter().copied();
    groups.filter(|group| names(&group.segment)).collect()
}

fn presence(seen: &[SeenTier], object: Option<ContentId>) -> Vec<Presence> {
    let on = |tier: &SeenTier| match object {
        Some(object) if tier.objects.contains_key(&object) => match tier.is_open(object) {
            true => Presence::Open,
            false => Presence::There,
        },
        _ => Presence::Absent,
    };
    seen.iter().map(on).collect()
}

/// Decides what moves: tier by tier, the fastest first, each from the objects that did not fit on a faster one.
/// Missing tiers (`None`) are skipped.
#[must_use]
pub fn decide(candidates: &[Candidate], rooms: &[Option<u64>], now: Duration) -> Steps {
    let mut placed: BTreeSet<ContentId> = BTreeSet::new();
    let mut by_tier: Vec<Vec<Step>> = Vec::new();
    let mut bytes_then = Vec::new();
    let common = common(candidates);
    for (place, room) in rooms.iter().enumerate() {
        let Some(room) = room else {
            by_tier.push(Vec::new());
            bytes_then.push(0);
            continue;
        };
        let facts: Vec<Fact> = candidates
            .iter()
            .map(|candidate| fact(candidate, place, &placed))
            .collect();
        let budget = Budget {
            bytes: *room,
            least_heat: LEAST_HEAT,
        };
        let plan = policy::plan_in_common(&facts, &common, &budget, now);
        let goes: BTreeSet<_> = plan.moves.iter().filter_map(demoted).collect();
        let comes: BTreeSet<_> = plan.moves.iter().filter_map(promoted).collect();
        placed.extend(facts.iter().filter_map(|fact| {
            let stays = fact.place == ObjectPlace::Fast && !goes.contains(&fact.object);
            (stays || comes.contains(&fact.object)).then_some(fact.object)
        }));
        by_tier.push(steps(&plan.moves, place, &facts, &common));
        bytes_then.push(plan.fast_bytes);
    }
    let pinned = candidates.iter().filter(|candidate| candidate.pinned);
    Steps {
        // The slowest first: what a faster one gives up is there to be copied.
        steps: by_tier.into_iter().rev().flatten().collect(),
        unmet_pins: pinned
            .map(|candidate| candidate.key)
            .filter(|key| !placed.contains(key))
            .collect(),
        bytes_then,
    }
}

/// Returns what the policy is given about a candidate for one tier.
fn fact(candidate: &Candidate, place: usize, placed: &BTreeSet<ContentId>) -> Fact {
    let presence = candidate.on.get(place).copied().unwrap_or(Presence::Absent);
    // What a faster tier has is not wanted here, and neither is what cannot be made again.
    let lost = candidate.image.is_none() && candidate.file.is_none();
    let preference = match (placed.contains(&candidate.key) || lost, candidate.pinned) {
        (true, _) => Preference::Evict,
        (false, true) => Preference::Pin,
        (false, false) if candidate.needless => Preference::Evict,
        (false, false) => Preference::None,
    };
    Fact {
        object: candidate.key,
        bytes: candidate.bytes,
        place: match presence {
            Presence::Absent => ObjectPlace::Slow,
            Presence::There | Presence::Open => ObjectPlace::Fast,
        },
        heat: candidate.heat,
        preference,
        hold: match presence {
            Presence::Open => Hold::Open,
            Presence::Absent | Presence::There => Hold::Free,
        },
    }
}

fn common(candidates: &[Candidate]) -> Common {
    let group = |group: &SharedGroup| Group {
        number: group.number,
        bytes: group.bytes,
    };
    let mut common = Common::default();
    for candidate in candidates {
        common.insert(candidate.key, candidate.common.iter().map(group).collect());
    }
    common
}

/// Returns what is to be done on a tier, in this order.
fn steps(moves: &[Move], place: usize, facts: &[Fact], common: &Common) -> Vec<Step> {
    let goes: BTreeSet<_> = moves.iter().filter_map(demoted).collect();
    let mut taken = Taken::default();
    for fact in facts {
        if fact.place == ObjectPlace::Fast && !goes.contains(&fact.object) {
            taken.add(fact.object, common);
        }
    }
    let step = |moved: &Move| {
        let (change, key) = match moved {
            Move::Demote(key) => (Change::Demote, *key),
            Move::Promote(key) => (Change::Promote, *key),
        };
        let fact = facts.iter().find(|fact| fact.object == key);
        Step {
            change,
            key,
            place,
            bytes: fact.map_or(0, |fact| fact.bytes),
            shared_bytes: match change {
                Change::Promote => taken.add(key, common),
                Change::Demote => 0,
            },
        }
    };
    moves.iter().map(step).collect()
}

fn demoted(moved: &Move) -> Option<ContentId> {
    match moved {
        Move::Demote(key) => Some(*key),
        Move::Promote(_) => None,
    }
}

fn promoted(moved: &Move) -> Option<ContentId> {
    match moved {
        Move::Promote(key) => Some(*key),
        Move::Demote(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Presence::{Absent, Open, There};
    use bootimg::ImageId;

    const NOW: Duration = Duration::from_hours(1000);

    fn candidate(name: &str, bytes: u64, starts: f64, on: [Presence; 2]) -> Candidate {
        let key = ContentId::of(name.as_bytes());
        Candidate {
            key,
            label: name.to_owned(),
            bytes,
            common: Vec::new(),
            heat: Heat::of(starts, NOW),
            pinned: false,
            image: Some(ImageId(key)),
            file: None,
            hot_of: None,
            needless: false,
            object: Some(key),
            on: on.to_vec(),
        }
    }

    fn said(candidates: &[Candidate], rooms: &[Option<u64>]) -> Vec<String> {
        let label = |key| {
            &candidates
                .iter()
                .find(|candidate| candidate.key == key)
                .unwrap()
                .label
        };
        let steps = decide(candidates, rooms, NOW).steps.into_iter();
        let say = |step: Step| format!("{:?} {} {}", step.change, label(step.key), step.place);
        steps.map(say).collect()
    }

    #[test]
    fn what_is_hottest_goes_to_the_fastest_and_the_rest_below_it() {
        let candidates = [
            candidate("hot", 10, 9.0, [Absent, Absent]),
            candidate("warm", 10, 2.0, [Absent, Absent]),
            candidate("cold", 10, 0.0, [Absent, Absent]),
        ];
        let rooms = [Some(10), Some(100)];
        assert_eq!(
            said(&candidates, &rooms),
            ["Promote warm 1", "Promote hot 0"]
        );
        assert_eq!(said(&candidates, &[None, Some(15)]), ["Promote hot 1"]);
    }

    #[test]
    fn what_cools_goes_down_before_it_leaves_and_what_is_carried_out_leaves_nothing_to_do() {
        let candidates = [
            candidate("was", 10, 1.0, [There, Absent]),
            candidate("is", 10, 9.0, [Absent, There]),
        ];
        let rooms = [Some(10), Some(10)];
        assert_eq!(
            said(&candidates, &rooms),
            [
                "Demote is 1",
                "Promote was 1",
                "Demote was 0",
                "Promote is 0"
            ]
        );
        let after = [
            candidate("was", 10, 1.0, [Absent, There]),
            candidate("is", 10, 9.0, [There, Absent]),
        ];
        assert_eq!(said(&after, &rooms), [""; 0]);
    }

    #[test]
    fn what_is_open_stays_and_what_nobody_knows_goes() {
        let mut strange = candidate("strange", 10, 0.0, [There, There]);
        strange.image = None;
        let candidates = [strange, candidate("open", 10, 0.0, [Open, Absent])];
        let steps = said(&candidates, &[Some(100), Some(100)]);
        assert_eq!(steps, ["Demote strange 1", "Demote strange 0"]);
    }

    #[test]
    fn a_boot_image_all_of_whose_files_go_whole_has_no_copy_unless_it_is_pinned() {
        let mut needless = candidate("image", 10, 9.0, [There, Absent]);
        needless.needless = true;
        let rooms = [Some(100), Some(100)];
        assert_eq!(said(&[needless.clone()], &rooms), ["Demote image 0"]);
        needless.pinned = true;
        assert_eq!(said(&[needless], &rooms), [""; 0]);
    }

    #[test]
    fn pins_that_find_no_room_anywhere_are_told() {
        let mut large = candidate("large", 200, 0.0, [Absent, Absent]);
        large.pinned = true;
        let mut small = candidate("small", 20, 0.0, [Absent, Absent]);
        small.pinned = true;
        let key = large.key;
        let steps = decide(&[large, small], &[Some(10), Some(100)], NOW);
        assert_eq!(steps.unmet_pins, [key]);
        assert_eq!(steps.bytes_then, [0, 20]);
    }

    #[test]
    fn two_that_share_find_room_where_one_does_and_the_second_adds_only_what_is_new() {
        let shared = vec![SharedGroup {
            segment: ContentId::default(),
            number: 1,
            bytes: 80,
        }];
        let mut candidates = [
            candidate("one", 100, 9.0, [There, Absent]),
            candidate("two", 100, 9.0, [Absent, Absent]),
        ];
        candidates
            .iter_mut()
            .for_each(|candidate| candidate.common.clone_from(&shared));
        let plan = decide(&candidates, &[Some(120)], NOW);
        assert_eq!(plan.bytes_then, [120]);
        let sizes = plan
            .steps
            .iter()
            .map(|step| (step.bytes, step.shared_bytes));
        assert_eq!(sizes.collect::<Vec<_>>(), [(100, 80)]);
        candidates[0].common.clear();
        assert_eq!(said(&candidates, &[Some(120)]), [""; 0]);
    }
}
