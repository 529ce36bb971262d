//! What holds of every plan, and some plans.

use std::collections::BTreeMap;
use std::time::Duration;

use blocks::ContentId;
use proptest::prelude::*;
use tiering::heat::{HALF_LIFE, Heat};
use tiering::policy::{
    Budget, Common, Fact, Group, Hold, Move, ObjectPlace, Plan, Preference, Taken, plan,
    plan_in_common,
};

const NOW: Duration = HALF_LIFE;

fn id(number: u8) -> ContentId {
    ContentId([number; 32])
}

fn fact(number: u8, bytes: u64, place: ObjectPlace, uses: f64) -> Fact {
    Fact {
        object: id(number),
        bytes,
        place,
        heat: Heat::of(uses, NOW),
        preference: Preference::None,
        hold: Hold::Free,
    }
}

/// What fast memory holds after the moves.
fn carry_out(facts: &[Fact], plan: &Plan) -> Vec<Fact> {
    let mut after = facts.to_vec();
    for step in &plan.moves {
        let (object, from, to) = match step {
            Move::Demote(object) => (object, ObjectPlace::Fast, ObjectPlace::Slow),
            Move::Promote(object) => (object, ObjectPlace::Slow, ObjectPlace::Fast),
        };
        let fact = after.iter_mut().find(|fact| fact.object == *object);
        let fact = fact.expect("an object of the facts");
        assert_eq!(fact.place, from, "nothing is moved to where it is");
        fact.place = to;
    }
    after
}

fn fast_bytes(facts: &[Fact]) -> u64 {
    let fast = facts.iter().filter(|fact| fact.place == ObjectPlace::Fast);
    fast.map(|fact| fact.bytes).sum()
}

/// What fast memory holds, with what objects have in common once.
fn fast_bytes_in_common(facts: &[Fact], common: &Common) -> u64 {
    let mut taken = Taken::default();
    let fast = facts.iter().filter(|fact| fact.place == ObjectPlace::Fast);
    fast.map(|fact| fact.bytes - taken.add(fact.object, common))
        .sum()
}

/// Has facts share some of ten groups, which are added to their bytes.
fn share(facts: &[Fact], names: &[u16]) -> (Vec<Fact>, Common) {
    let mut facts = facts.to_vec();
    let mut common = Common::default();
    for (fact, names) in facts.iter_mut().zip(names) {
        let groups = (0..10).filter(|number| names >> number & 1 == 1);
        let group = |number| Group {
            number,
            bytes: (number + 1) * 37,
        };
        let groups: Vec<Group> = groups.map(group).collect();
        fact.bytes += groups.iter().map(|group| group.bytes).sum::<u64>();
        common.insert(fact.object, groups);
    }
    (facts, common)
}

prop_compose! {
    fn any_fact()(
        number: u8,
        bytes in 0u64..1000,
        fast: bool,
        uses in 0u32..40,
        ago in 0u32..5,
        preference in prop_oneof![4 => Just(Preference::None), 1 => Just(Preference::Pin), 1 => Just(Preference::Evict)],
        open in prop::bool::weighted(0.2),
    ) -> Fact {
        Fact {
            object: id(number),
            bytes,
            place: if fast { ObjectPlace::Fast } else { ObjectPlace::Slow },
            heat: Heat::of(f64::from(uses), NOW.saturating_sub(HALF_LIFE * ago / 4)),
            preference,
            hold: if open { Hold::Open } else { Hold::Free },
        }
    }
}

fn any_facts() -> impl Strategy<Value = Vec<Fact>> {
    prop::collection::vec(any_fact(), 0..40).prop_map(|facts| {
        let by_name: BTreeMap<_, _> = facts.into_iter().map(|fact| (fact.object, fact)).collect();
        by_name.into_values().collect()
    })
}

fn any_budget() -> impl Strategy<Value = Budget> {
    (0u64..8000, 0u32..10).prop_map(|(bytes, least)| Budget {
        bytes,
        least_heat: f64::from(least),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_budget_is_never_exceeded_at_any_step(facts in any_facts(), budget in any_budget()) {
        let plan = plan(&facts, &budget, NOW);
        let before = fast_bytes(&facts);
        for done in 0..=plan.moves.len() {
            let moves = plan.moves[..done].to_vec();
            let after = carry_out(&facts, &Plan { moves, ..Plan::default() });
            prop_assert!(fast_bytes(&after) <= before.max(budget.bytes));
        }
        let after = carry_out(&facts, &plan);
        prop_assert_eq!(fast_bytes(&after), plan.fast_bytes);
        // Only what is open may be too much.
        let held = |fact: &&Fact| fact.place == ObjectPlace::Fast && fact.hold == Hold::Open;
        let held: u64 = facts.iter().filter(held).map(|fact| fact.bytes).sum();
        prop_assert!(plan.fast_bytes <= budget.bytes.max(held));
    }

    #[test]
    fn what_was_carried_out_leaves_nothing_to_do(facts in any_facts(), budget in any_budget()) {
        let first = plan(&facts, &budget, NOW);
        let second = plan(&carry_out(&facts, &first), &budget, NOW);
        prop_assert_eq!(second.moves, []);
        prop_assert_eq!(second.fast_bytes, first.fast_bytes);
    }

    #[test]
    fn what_is_in_common_is_counted_once_and_no_step_exceeds_the_budget(
        facts in any_facts(),
        names in prop::collection::vec(any::<u16>(), 40),
        budget in any_budget(),
    ) {
        let (facts, common) = share(&facts, &names);
        let plan = plan_in_common(&facts, &common, &budget, NOW);
        let before = fast_bytes_in_common(&facts, &common);
        for done in 0..=plan.moves.len() {
            let moves = plan.moves[..done].to_vec();
            let after = carry_out(&facts, &Plan { moves, ..Plan::default() });
            prop_assert!(fast_bytes_in_common(&after, &common) <= before.max(budget.bytes));
        }
        let after = carry_out(&facts, &plan);
        prop_assert_eq!(fast_bytes_in_common(&after, &common), plan.fast_bytes);
        prop_assert_eq!(plan_in_common(&after, &common, &budget, NOW).moves, []);
    }

    #[test]
    fn what_is_open_stays_and_pins_hold(facts in any_facts(), budget in any_budget()) {
        let plan = plan(&facts, &budget, NOW);
        let after = carry_out(&facts, &plan);
        for (before, after) in facts.iter().zip(&after) {
            if before.hold == Hold::Open && before.place == ObjectPlace::Fast {
                prop_assert_eq!(after.place, ObjectPlace::Fast);
            } else if before.preference == Preference::Evict {
                prop_assert_eq!(after.place, ObjectPlace::Slow);
            } else if before.preference == Preference::Pin {
                let unmet = plan.unmet_pins.contains(&before.object);
                prop_assert_eq!(after.place == ObjectPlace::Slow, unmet);
            }
        }
        // No pin goes without while something that nobody pinned has its room.
        for pin in facts.iter().filter(|fact| plan.unmet_pins.contains(&fact.object)) {
            let rest = after.iter().filter(|fact| fact.place == ObjectPlace::Fast);
            let first = rest.filter(|fact| {
                let was = facts.iter().find(|other| other.object == fact.object);
                let open = was.is_some_and(|was| was.place == ObjectPlace::Fast && was.hold == Hold::Open);
                fact.preference == Preference::Pin || open
            });
            let taken: u64 = first.map(|fact| fact.bytes).sum();
            prop_assert!(taken + pin.bytes > budget.bytes);
        }
    }

    #[test]
    fn the_order_of_facts_does_not_matter(facts in any_facts(), budget in any_budget()) {
        let mut backwards = facts.clone();
        backwards.reverse();
        prop_assert_eq!(plan(&facts, &budget, NOW), plan(&backwards, &budget, NOW));
    }
}

#[test]
fn the_hottest_for_their_size_are_chosen() {
    let facts = [
        fact(1, 100, ObjectPlace::Slow, 10.0),
        fact(2, 10, ObjectPlace::Slow, 5.0),
        fact(3, 60, ObjectPlace::Slow, 9.0),
        fact(4, 5, ObjectPlace::Slow, 0.5),
    ];
    let budget = Budget {
        bytes: 120,
        least_heat: 1.0,
    };
    let plan = plan(&facts, &budget, NOW);
    assert_eq!(plan.moves, [Move::Promote(id(2)), Move::Promote(id(3))]);
    assert_eq!(plan.fast_bytes, 70);
}

#[test]
fn what_is_there_stays_until_something_is_clearly_hotter() {
    let budget = Budget {
        bytes: 100,
        least_heat: 1.0,
    };
    let swap = |uses| {
        let facts = [
            fact(1, 100, ObjectPlace::Fast, 10.0),
            fact(2, 100, ObjectPlace::Slow, uses),
        ];
        plan(&facts, &budget, NOW).moves
    };
    assert_eq!(swap(12.0), []);
    assert_eq!(swap(13.0), [Move::Demote(id(1)), Move::Promote(id(2))]);
}

#[test]
fn what_is_cold_goes_to_the_disk_though_there_is_room() {
    let budget = Budget {
        bytes: 1000,
        least_heat: 1.0,
    };
    let old = Fact {
        heat: Heat::of(4.0, Duration::ZERO),
        ..fact(1, 100, ObjectPlace::Fast, 0.0)
    };
    let at = |now| plan(&[old], &budget, now).moves;
    assert_eq!(at(Duration::ZERO), []);
    assert_eq!(at(HALF_LIFE * 2), []);
    assert_eq!(at(HALF_LIFE * 3), [Move::Demote(id(1))]);
}

#[test]
fn one_object_of_two_images_is_counted_once() {
    let budget = Budget {
        bytes: 100,
        least_heat: 1.0,
    };
    let shared = fact(1, 100, ObjectPlace::Slow, 2.0);
    let plan = plan(&[shared, shared], &budget, NOW);
    assert_eq!(plan.moves, [Move::Promote(id(1))]);
    assert_eq!(plan.fast_bytes, 100);
}

#[test]
fn two_that_have_most_in_common_find_room_where_one_does() {
    let budget = Budget {
        bytes: 120,
        least_heat: 1.0,
    };
    let facts = [
        fact(1, 100, ObjectPlace::Slow, 2.0),
        fact(2, 100, ObjectPlace::Slow, 2.0),
    ];
    let group = Group {
        number: 0,
        bytes: 80,
    };
    let mut common = Common::default();
    common.insert(id(1), vec![group]);
    common.insert(id(2), vec![group]);
    let plan = plan_in_common(&facts, &common, &budget, NOW);
    assert_eq!(plan.moves, [Move::Promote(id(1)), Move::Promote(id(2))]);
    assert_eq!(plan.fast_bytes, 120);
}
