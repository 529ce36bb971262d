//! What should be on fast memory: a pure function from facts and a budget to moves.
//!
//! Each object is one fact, however many images use it: what several images share is stored, and counted,
//! once; and so are the bytes that objects share as [`Common`]. Moves only name the changes;
//! [`Objects`](crate::objects::Objects) carries them out.
//!
//! - Pinned objects come first, then those with the most heat for their size.
//! - Open objects are never moved away: they use their space in any case.
//! - An object on fast memory stays until another one is clearly hotter. So a plan that was carried
//!   out leaves nothing to do, and two objects of the same heat are not exchanged for ever.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use blocks::ContentId;

use crate::heat::Heat;

/// How much hotter a newcomer must be than what it displaces: moving costs a read and a write.
const STICKY: f64 = 1.25;

/// The facts about an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fact {
    /// The object.
    pub object: ContentId,
    /// Its length.
    pub bytes: u64,
    /// The place of its copies.
    pub place: ObjectPlace,
    /// How much it was used.
    pub heat: Heat,
    /// The user's preference.
    pub preference: Preference,
    /// Whether it can be moved away.
    pub hold: Hold,
}

/// The place of an object's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPlace {
    /// On fast memory, and perhaps elsewhere too.
    Fast,
    /// On other tiers only.
    Slow,
}

/// A user's preference for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// None: heat decides.
    None,
    /// It is to lie on fast memory, as long as there is room.
    Pin,
    /// It is not to lie on fast memory.
    Evict,
}

/// Whether an object is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It is not.
    Free,
    /// It is open or mapped from its present place.
    Open,
}

/// How much may be on fast memory, and the heat that is required.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// The maximum number of bytes.
    pub bytes: u64,
    /// The least heat of an object that is promoted. An object that is there already stays until its heat
    /// is below this by a fifth.
    pub least_heat: f64,
}

/// Bytes that objects share, which need space once: each group of bytes is in all objects
/// that name it.
#[derive(Clone, Debug, Default)]
pub struct Common(HashMap<ContentId, Vec<Group>>);

/// A group of bytes that several objects have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub number: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Common {
    /// Adds the groups of bytes of an object.
    pub fn insert(&mut self, object: ContentId, groups: Vec<Group>) {
        self.0.insert(object, groups);
    }

    fn of(&self, object: ContentId) -> &[Group] {
        self.0.get(&object).map_or(&[], Vec::as_slice)
    }
}

/// The shared groups that are on fast memory.
#[derive(Debug, Default)]
pub struct Taken(HashSet<u64>);

impl Taken {
    /// Adds an object, and returns how many of its bytes were there already.
    pub fn add(&mut self, object: ContentId, common: &Common) -> u64 {
        let groups = common.of(object).iter();
        let there = groups.filter(|group| !self.0.insert(group.number));
        there.map(|group| group.bytes).sum()
    }

    fn has_of(&self, object: ContentId, common: &Common) -> u64 {
        let groups = common.of(object).iter();
        let there = groups.filter(|group| self.0.contains(&group.number));
        there.map(|group| group.bytes).sum()
    }
}

/// A change of the place of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// From fast memory to the disk.
    Demote(ContentId),
    /// To fast memory.
    Promote(ContentId),
}

/// The moves, in this order, and their result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Moves: first demotions, then promotions, the most valuable first. After each of them there
    /// is not more on fast memory than the budget, or than before.
    pub moves: Vec<Move>,
    /// Bytes that lie on fast memory then.
    pub fast_bytes: u64,
    /// Objects that are pinned and find no room.
    pub unmet_pins: Vec<ContentId>,
}

/// Decides what moves. `facts` name each object once; of one that is named again, the first fact
/// holds.
#[must_use]
pub fn plan(facts: &[Fact], budget: &Budget, now: Duration) -> Plan {
    plan_in_common(facts, &Common::default(), budget, now)
}

/// Decides what moves, of objects that have bytes in common. The length of a fact has all of them.
#[must_use]
pub fn plan_in_common(facts: &[Fact], common: &Common, budget: &Budget, now: Duration) -> Plan {
    let mut seen = HashSet::new();
    let mut ranked: Vec<Ranked> = facts
        .iter()
        .filter(|fact| seen.insert(fact.object))
        .map(|fact| Ranked::new(fact, budget, now))
        .collect();
    ranked.sort_by(Ranked::order);
    let mut plan = Plan::default();
    let mut taken = Taken::default();
    let (mut demoted, mut promoted) = (Vec::new(), Vec::new());
    for Ranked { fact, rank, .. } in &ranked {
        let there = taken.has_of(fact.object, common);
        let bytes = fact.bytes.saturating_sub(there);
        let fits = bytes <= budget.bytes.saturating_sub(plan.fast_bytes);
        let stays = match rank {
            Rank::Held => true,
            Rank::Pinned | Rank::Wanted => fits,
            Rank::Unwanted => false,
        };
        if stays {
            plan.fast_bytes = plan.fast_bytes.saturating_add(bytes);
            taken.add(fact.object, common);
        }
        match (fact.place, stays) {
            (ObjectPlace::Fast, false) => demoted.push(Move::Demote(fact.object)),
            (ObjectPlace::Slow, true) => promoted.push(Move::Promote(fact.object)),
            (ObjectPlace::Fast, true) | (ObjectPlace::Slow, false) => {}
        }
        if *rank == Rank::Pinned && !stays {
            plan.unmet_pins.push(fact.object);
        }
    }
    plan.moves = [demoted, promoted].concat();
    plan
}

/// In which order objects get room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It is on fast memory and cannot be moved away.
    Held,
    Pinned,
    Wanted,
    Unwanted,
}

struct Ranked<'a> {
    fact: &'a Fact,
    rank: Rank,
    /// Heat for each byte, weighted higher for objects that are there already.
    worth: f64,
}

impl<'a> Ranked<'a> {
    fn new(fact: &'a Fact, budget: &Budget, now: Duration) -> Self {
        let heat = fact.heat.at(now)
            * if fact.place == ObjectPlace::Fast {
                STICKY
            } else {
                1.0
            };
        let rank = match (fact.place, fact.hold, fact.preference) {
            (ObjectPlace::Fast, Hold::Open, _) => Rank::Held,
            (_, _, Preference::Pin) => Rank::Pinned,
            (_, _, Preference::None) if heat >= budget.least_heat => Rank::Wanted,
            (_, _, Preference::None | Preference::Evict) => Rank::Unwanted,
        };
        // An empty object is worth its name: no byte of room.
        #[expect(clippy::cast_precision_loss, reason = "an order needs no last bits")]
        let worth = heat / fact.bytes.max(1) as f64;
        Self { fact, rank, worth }
    }

    /// By rank, then by worth, then by name: the same facts in another order are the same plan.
    fn order(&self, other: &Self) -> Ordering {
        let by_worth = || other.worth.total_cmp(&self.worth);
        let by_name = || self.fact.object.cmp(&other.fact.object);
        self.rank
            .cmp(&other.rank)
            .then_with(by_worth)
            .then_with(by_name)
    }
}
