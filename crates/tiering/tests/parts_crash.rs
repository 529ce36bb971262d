//! Objects in parts have all of them, wherever a change of them stops.

mod parted;

use tiering::testing::{End, Random, Steps};

use parted::{Model, Rig, script};

#[test]
fn stopped_or_cut_at_any_step_every_part_that_counts_is_whole() {
    for (after, power) in (0..).flat_map(|after| [(after, false), (after, true)]) {
        let mut random = Random::new(after);
        let mut reached = true;
        for _ in 0..if power { 8 } else { 1 } {
            let rig = Rig::in_memory();
            let steps = Steps::ending(End::Killed, after);
            let mut model = Model::default();
            if let Some((objects, _)) = rig.open_with(&steps) {
                script(&objects, &mut model);
            }
            reached = steps.is_reached();
            if power {
                rig.cut_power(&mut random);
            }
            let (objects, _) = rig.open();
            model.check(&objects, &rig, &format!("step {after}, power cut: {power}"));
            let mut model = Model::of(&objects);
            script(&objects, &mut model);
            model.check(&objects, &rig, &format!("after step {after}"));
        }
        if !reached {
            assert!(after > 100, "there are steps to stop at: {after}");
            return;
        }
    }
}

#[test]
fn a_disk_that_is_full_at_any_step_costs_no_part() {
    for (after, steps) in (0..).flat_map(|after| [(after, 1), (after, 2), (after, 7)]) {
        let rig = Rig::in_memory();
        let steps = Steps::ending(End::Full { steps }, after);
        let mut model = Model::default();
        if let Some((objects, _)) = rig.open_with(&steps) {
            script(&objects, &mut model);
            model.check_parts(&objects, &rig, &format!("step {after}"));
            script(&objects, &mut model);
            model.check_parts(&objects, &rig, &format!("after step {after}"));
        }
        rig.cut_power(&mut Random::new(after));
        let (objects, _) = rig.open();
        model.check(&objects, &rig, &format!("step {after}, opened again"));
        if !steps.is_reached() {
            return;
        }
    }
}

#[test]
fn at_1_000_random_crash_points_no_block_is_wrong() {
    let mut random = Random::new(21);
    for round in 0..1_000 {
        let rig = Rig::in_memory();
        let mut model = Model::default();
        for _ in 0..=random.below(2) {
            let steps = Steps::ending(End::Killed, random.below(200));
            if let Some((objects, _)) = rig.open_with(&steps) {
                model.check_parts(&objects, &rig, &format!("round {round}, opened"));
                while !steps.is_reached() {
                    model.random_change(&objects, &mut random);
                }
            }
            if random.below(4) > 0 {
                rig.cut_power(&mut random);
            }
        }
        let (objects, _) = rig.open();
        model.check(&objects, &rig, &format!("round {round}"));
    }
}

#[test]
fn a_journal_that_rots_anywhere_costs_no_part() {
    let rig = Rig::in_memory();
    let mut model = Model::default();
    script(&rig.open().0, &mut model);
    for at in (0..1000).step_by(13) {
        rig.memory[0].rot("journal", at);
        let (objects, _) = rig.open();
        model.check(&objects, &rig, &format!("byte {at}"));
    }
}
