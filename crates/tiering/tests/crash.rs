//! Objects that are moved about, and stopped at any step: what was kept is readable and right.

mod rig;

use std::collections::HashSet;
use std::sync::Arc;

use rig::{Model, Rig, content, id};
use tiering::medium::{DirMedium, Medium};
use tiering::objects::{Found, Mark, Objects};
use tiering::pace::Unhurried;
use tiering::testing::{End, MemMedium, Random, Steps};

/// A start of a container, as far as tiers see it: layers arrive on fast memory and on the disk,
/// hot files stay, the rest goes to the disk, something is forgotten.
fn script(objects: &Objects, model: &mut Model) {
    for number in 0..6 {
        model.add(objects, number, if number < 4 { 0 } else { 1 });
    }
    for number in 0..3 {
        model.shift(objects, number, 0, 1);
    }
    model.copy(objects, 4, 0);
    model.copy(objects, 1, 0);
    model.leave(objects, 4, 1);
    model.remove(objects, 5);
    model.add(objects, 5, 0);
    model.shift(objects, 4, 0, 2);
}

#[test]
fn killed_or_cut_off_at_any_step_everything_is_there() {
    for after in 0.. {
        let mut reached = false;
        for power in [false, true, true] {
            let mut random = Random::new(after);
            let rig = Rig::in_memory();
            let steps = Steps::ending(End::Killed, after);
            let mut model = Model::default();
            if let Ok((objects, _)) = rig.open_with(&steps) {
                script(&objects, &mut model);
            }
            reached = steps.is_reached();
            if power {
                rig.cut_power(&mut random);
            }
            let objects = rig.open().unwrap().0;
            model.check(&objects, &rig, &format!("step {after}, power cut: {power}"));
            // It goes on as if nothing had been.
            let mut model = Model::of(&objects);
            script(&objects, &mut model);
            model.check(&objects, &rig, &format!("after step {after}"));
        }
        if !reached {
            assert!(after > 60, "there are steps to stop at: {after}");
            return;
        }
    }
}

#[test]
fn a_disk_that_is_full_at_any_step_costs_no_object() {
    for (after, steps) in (0..).flat_map(|after| [(after, 1), (after, 2), (after, 7)]) {
        let rig = Rig::in_memory();
        let steps = Steps::ending(End::Full { steps }, after);
        let mut model = Model::default();
        if let Ok((objects, _)) = rig.open_with(&steps) {
            script(&objects, &mut model);
            model.check_reads(&objects, &format!("step {after}"));
            script(&objects, &mut model);
            model.check_reads(&objects, &format!("after step {after}"));
        }
        rig.cut_power(&mut Random::new(after));
        let objects = rig.open().unwrap().0;
        model.check(&objects, &rig, &format!("step {after}, opened again"));
        if !steps.is_reached() {
            return;
        }
    }
}

#[test]
fn at_10_000_random_crash_points_no_byte_is_wrong() {
    let mut random = Random::new(20);
    let mut founds = HashSet::new();
    for round in 0..10_000 {
        let rig = Rig::in_memory();
        let mut model = Model::default();
        // Some rounds crash twice: the second time perhaps while the first is being mended.
        for _ in 0..=random.below(2) {
            let steps = Steps::ending(End::Killed, random.below(120));
            if let Ok((objects, report)) = rig.open_with(&steps) {
                founds.insert(format!("{:?}", report.journal));
                model.check_reads(&objects, &format!("round {round}, opened"));
                while !steps.is_reached() {
                    model.random_change(&objects, &mut random);
                }
            }
            if random.below(4) > 0 {
                rig.cut_power(&mut random);
            }
        }
        let objects = rig.open().unwrap().0;
        model.check(&objects, &rig, &format!("round {round}"));
    }
    assert!(
        founds.contains("Sound") && founds.contains("Torn"),
        "{founds:?}"
    );
}

#[test]
fn killed_at_any_step_a_real_directory_has_everything() {
    for after in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let medium = |name: &str| -> Arc<dyn Medium> {
            Arc::new(DirMedium::open(&dir.path().join(name)).unwrap())
        };
        let rig = Rig::on([
            medium("state"),
            medium("fast"),
            medium("disk"),
            medium("slow"),
        ]);
        let steps = Steps::ending(End::Killed, after);
        let mut model = Model::default();
        if let Ok((objects, _)) = rig.open_with(&steps) {
            for number in 0..3 {
                model.add(&objects, number, 0);
            }
            model.shift(&objects, 1, 0, 1);
            model.remove(&objects, 2);
        }
        let objects = rig.open().unwrap().0;
        model.check(&objects, &rig, &format!("step {after}"));
        if !steps.is_reached() {
            assert!(after > 20, "there are steps to stop at: {after}");
            return;
        }
    }
}

#[test]
fn a_journal_that_rots_anywhere_or_is_lost_costs_no_object() {
    let rig = Rig::in_memory();
    let mut model = Model::default();
    let (objects, report) = rig.open().unwrap();
    assert_eq!(report.journal, Found::Missing);
    script(&objects, &mut model);
    drop(objects);
    let len = rig
        .state()
        .list()
        .unwrap()
        .iter()
        .find(|(name, _)| name == "journal")
        .unwrap()
        .1;
    for at in (0..usize::try_from(len).unwrap()).step_by(13) {
        rig.memory(0).rot("journal", at);
        let (objects, report) = rig.open().unwrap();
        model.check(&objects, &rig, &format!("byte {at}"));
        assert_ne!(report.journal, Found::Missing);
        drop(objects);
        // It was written anew, and is shorter than it was.
        let (_, report) = rig.open().unwrap();
        assert_eq!(
            (report.journal, report.adopted),
            (Found::Sound, 0),
            "byte {at}"
        );
    }
    rig.state().remove("journal").unwrap();
    let (objects, report) = rig.open().unwrap();
    assert_eq!(report.journal, Found::Missing);
    assert!(report.adopted > 0);
    model.check(&objects, &rig, "no journal");
}

#[test]
fn a_journal_of_a_later_program_is_left_as_it_is() {
    let rig = Rig::in_memory();
    let mut model = Model::default();
    script(&rig.open().unwrap().0, &mut model);
    let mut head = vec![0; 192];
    rig.state().read_at("journal", 0, &mut head).unwrap();
    head[8] = 2;
    let hash = blake3::hash(&head[..176]);
    head[176..].copy_from_slice(&hash.as_bytes()[..16]);
    rig.state().write_at("journal", 0, &head).unwrap();
    let before = rig.tier(0).list().unwrap();
    let error = rig.open().unwrap_err();
    assert_eq!(error.to_string(), "cannot use the journal");
    assert_eq!(rig.tier(0).list().unwrap(), before);
}

#[test]
fn a_copy_that_is_cut_short_is_lost_and_what_is_left_of_it_goes_at_once() {
    let rig = Rig::in_memory();
    let mut model = Model::default();
    assert!(model.add(&rig.open().unwrap().0, 3, 1) && model.add(&rig.open().unwrap().0, 4, 1));
    let name = id(3).to_string();
    rig.tier(1).remove(&name).unwrap();
    rig.tier(1).write_at(&name, 0, &content(3)[..100]).unwrap();
    let (objects, report) = rig.open().unwrap();
    assert_eq!((report.lost, report.swept), (1, 1));
    Model::of(&objects).check(&objects, &rig, "cut short");
    assert!(objects.get(id(3)).is_none() && objects.get(id(4)).is_some());
}

#[test]
fn a_journal_that_lies_of_a_length_is_not_believed_where_the_hash_is_right() {
    let rig = Rig::in_memory();
    assert!(Model::default().add(&rig.open().unwrap().0, 3, 1));
    // The only record is of the tier that will be away, which has slot 2; what follows is torn.
    let mut journal = vec![0; 192 + 2 * 64];
    rig.state()
        .read_at("journal", 0, &mut journal[..192])
        .unwrap();
    let mut record = [0; 64];
    record[..6].copy_from_slice(b"\x89TJR\x01\x02");
    record[8..16].copy_from_slice(&100_u64.to_le_bytes());
    record[16..48].copy_from_slice(&id(3).0);
    let sealed = [&journal[16..24], &[0; 8], &record[..48]].concat();
    record[48..].copy_from_slice(&blake3::hash(&sealed).as_bytes()[..16]);
    journal[192..256].copy_from_slice(&record);
    rig.state().remove("journal").unwrap();
    rig.state().write_at("journal", 0, &journal).unwrap();
    let away = Arc::new(MemMedium::default());
    Mark::random().unwrap().write(&*away).unwrap();
    let (objects, report) = rig.open_in_place_of(2, away).unwrap();
    assert_eq!((report.journal, report.adopted), (Found::Torn, 1));
    let mut read = vec![0; 1000];
    let len = objects.read_at(id(3), 0, &mut read).unwrap();
    assert!(read[..len] == *content(3));
}

#[test]
fn a_journal_of_the_last_generation_is_followed_by_one_of_the_first() {
    let rig = Rig::in_memory();
    let mut model = Model::default();
    script(&rig.open().unwrap().0, &mut model);
    // Its records are of another generation then: it is damaged, and written anew.
    let mut head = vec![0; 192];
    rig.state().read_at("journal", 0, &mut head).unwrap();
    head[16..24].fill(0xFF);
    let hash = blake3::hash(&head[..176]);
    head[176..].copy_from_slice(&hash.as_bytes()[..16]);
    rig.state().write_at("journal", 0, &head).unwrap();
    model.check(&rig.open().unwrap().0, &rig, "the last generation");
    rig.state().read_at("journal", 0, &mut head).unwrap();
    assert_eq!(head[16..24], [0; 8]);
    let (objects, report) = rig.open().unwrap();
    assert_eq!(report.journal, Found::Sound);
    model.check(&objects, &rig, "the first generation");
}

#[test]
fn a_tier_that_is_away_has_everything_when_it_is_back() {
    let rig = Rig::in_memory();
    let objects = rig.open().unwrap().0;
    let add = |number, tier| Model::default().add(&objects, number, tier);
    assert!(add(0, 0) && add(1, 1) && add(2, 0));
    objects
        .copy(id(2), tiering::objects::TierIndex(1), &Unhurried)
        .unwrap();
    drop(objects);

    // It is not mounted: its mount point is an empty directory.
    let mount_point = Arc::new(MemMedium::default());
    let refused = rig.open_in_place_of(0, mount_point.clone()).unwrap_err();
    assert!(refused.to_string().contains("not mounted"), "{refused}");
    assert_eq!(mount_point.list().unwrap(), [], "nothing is written there");

    // Another tier is mounted where the fast one was.
    let other = Arc::new(MemMedium::default());
    Mark::random().unwrap().write(&*other).unwrap();
    let (objects, report) = rig.open_in_place_of(0, other).unwrap();
    assert_eq!((report.objects, report.away, report.lost), (3, 1, 0));
    let mut buf = [0; 8];
    let error = objects.read_at(id(0), 0, &mut buf).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is on no tier that is available now"),
        "{error}"
    );
    for number in [1, 2] {
        let read = objects.read_at(id(number), 0, &mut buf).unwrap();
        assert_eq!(buf[..read], content(number)[..read]);
    }
    // What only a tier that is away has besides cannot be left.
    assert!(
        objects
            .leave(id(2), tiering::objects::TierIndex(1))
            .is_err()
    );
    drop(objects);

    let (objects, report) = rig.open().unwrap();
    assert_eq!((report.objects, report.away, report.lost), (3, 0, 0));
    let read = objects.read_at(id(0), 0, &mut buf).unwrap();
    assert_eq!(buf[..read], content(0)[..read]);
}
