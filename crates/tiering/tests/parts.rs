//! Objects in parts: what several have in common is there once, as long as one of them is.

mod parted;

use std::collections::BTreeSet;
use std::sync::Arc;

use blocks::ContentId;
use tiering::medium::{DirMedium, Medium};
use tiering::objects::{Copied, ObjectError, TierIndex};
use tiering::pace::{Cancelled, Pace, Unhurried};
use tiering::parts::Part;

use parted::{BLOCK, FAST, Model, Rig, bring, id, index, pool};

#[test]
fn what_objects_share_is_there_once_and_stays_as_long_as_one_of_them_does() {
    let rig = Rig::in_memory();
    let (objects, _) = rig.open();
    let mut model = Model::default();
    let add = |number: usize| {
        let index = index(number);
        let mut brought = 0;
        let mut bring = bring(number);
        let added = objects.add(
            index,
            TierIndex(1),
            &mut |at, part, buf| {
                brought += part.blocks.len();
                bring(at, part, buf)
            },
            &Unhurried,
        );
        let Ok(Copied::Bytes(bytes)) = added else {
            panic!("{added:?}");
        };
        (brought, bytes - index.encode().len() as u64)
    };
    assert_eq!(add(0), (3, 3 * 4096));
    assert_eq!(add(1), (3, 2 * 4096), "block 2 is there: it is not written");
    assert_eq!(add(2), (1, 4096), "what is all there is not even brought");
    model.0.kept = BTreeSet::from([0, 1, 2]);
    model.check(&objects, &rig, "three that share");
    let shared = |number: usize| objects.shared_bytes(id(number), TierIndex(1)) / 4096;
    assert_eq!((shared(0), shared(1), shared(2)), (3, 3, 5));
    model.remove(&objects, 2);
    assert_eq!((shared(0), shared(1), shared(2)), (1, 1, 0));
    model.check(&objects, &rig, "one is gone");
    model.remove(&objects, 0);
    model.check(&objects, &rig, "another is gone");
    model.remove(&objects, 1);
    model.check(&objects, &rig, "all are gone");
}

#[test]
fn room_is_taken_once() {
    let rig = Rig::in_memory();
    let (objects, _) = rig.open();
    let mut model = Model::default();
    assert!(model.add(&objects, 0, 0) && model.add(&objects, 1, 0));
    assert!(
        model.add(&objects, 2, 0),
        "there is room for what is new of it"
    );
    let error = objects.add(index(3), TierIndex(0), &mut bring(3), &Unhurried);
    let room = FAST - objects.objects().used_bytes(TierIndex(0));
    let need = 2 * 4096 + index(3).encode().len() as u64;
    let error = error.unwrap_err();
    assert!(
        matches!(error, ObjectError::Full { need: n, room: r, .. } if (n, r) == (need, room)),
        "{error}"
    );
    model.check(&objects, &rig, "full");
    // An object that is not in parts finds the room that they leave.
    let bytes = vec![1; usize::try_from(room + 1).unwrap()];
    let (whole, len) = (ContentId::of(&bytes), bytes.len() as u64);
    let add = objects.objects();
    let added = add.add(whole, len, TierIndex(0), &mut &bytes[..], &Unhurried);
    assert!(matches!(added, Err(ObjectError::Full { .. })), "{added:?}");
    let (reopened, _) = rig.open();
    model.check(&reopened, &rig, "opened again");
}

/// Stops after so many turns.
#[derive(Debug)]
struct Stops(std::sync::atomic::AtomicU64);

impl Pace for Stops {
    fn turn(&self, _: u64) -> Result<(), Cancelled> {
        let before = self.0.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        if before == 0 { Err(Cancelled) } else { Ok(()) }
    }
}

#[test]
fn what_is_cancelled_or_brought_wrong_leaves_nothing() {
    let rig = Rig::in_memory();
    let (objects, _) = rig.open();
    let mut model = Model::default();
    model.add(&objects, 1, 0);
    for turns in 0..4 {
        let pace = Stops(turns.into());
        let added = objects.add(index(2), TierIndex(0), &mut bring(2), &pace);
        assert!(
            matches!(added, Err(ObjectError::Cancelled { .. })),
            "{added:?}"
        );
        model.check(&objects, &rig, "cancelled");
    }
    let mut wrong = |_: usize, _: &Part, buf: &mut [u8]| {
        buf.fill(9);
        Ok(())
    };
    let added = objects.add(index(2), TierIndex(0), &mut wrong, &Unhurried);
    assert!(
        matches!(added, Err(ObjectError::Damaged { .. })),
        "{added:?}"
    );
    model.check(&objects, &rig, "something else was brought");
}

#[test]
fn a_part_that_has_rotted_is_not_shared_and_is_mended_by_who_comes_next() {
    let rig = Rig::in_memory();
    let (objects, _) = rig.open();
    let mut model = Model::default();
    model.add(&objects, 1, 0);
    for at in [2 * BLOCK + 7, 4 * BLOCK + 7] {
        rig.memory[1].rot(&format!("{}.pool", pool(1)), at);
        let sound = objects.has_all_parts(id(1), TierIndex(0), &Unhurried);
        assert_eq!(sound, Ok(false));
        // Index 0 has one of its blocks, index 2 all of them.
        for number in [0, 2] {
            assert!(model.add(&objects, number, 0));
        }
        model.check(&objects, &rig, "mended");
        model.remove(&objects, 0);
        model.remove(&objects, 2);
    }
    // From a copy that has rotted nothing is copied.
    rig.memory[1].rot(&format!("{}.pool", pool(1)), 2 * BLOCK);
    let copied = objects.copy(id(1), TierIndex(1), &Unhurried);
    assert!(
        matches!(copied, Err(ObjectError::Damaged { .. })),
        "{copied:?}"
    );
}

#[test]
fn an_index_whose_pool_is_lost_or_cut_or_that_has_rotted_is_lost() {
    type Harm = fn(&Rig);
    let name = |number: u8| format!("{}.pool", pool(number));
    let harms: [(Harm, &[usize]); 3] = [
        (
            |rig| rig.tier(0).remove(&format!("{}.pool", pool(2))).unwrap(),
            &[0],
        ),
        (|rig| rig.memory[1].rot(&id(2).to_string(), 200), &[0, 3]),
        (
            |rig| {
                // Made anew, and too short.
                let name = format!("{}.pool", pool(2));
                rig.tier(0).remove(&name).unwrap();
                rig.tier(0).write_at(&name, 0, &[1; BLOCK]).unwrap();
            },
            &[0],
        ),
    ];
    for (harm, left) in harms {
        let rig = Rig::in_memory();
        let mut model = Model::default();
        let (objects, _) = rig.open();
        assert!(model.add(&objects, 0, 0) && model.add(&objects, 2, 0));
        model.add(&objects, 3, 0);
        drop(objects);
        harm(&rig);
        let (objects, report) = rig.open();
        model.0.kept = left
            .iter()
            .copied()
            .filter(|n| model.0.kept.contains(n))
            .collect();
        assert!(report.lost > 0);
        model.check(&objects, &rig, &name(2));
        let (objects, report) = rig.open();
        assert_eq!(report.lost, 0);
        model.check(&objects, &rig, "opened again");
    }
}

#[test]
fn what_is_given_back_takes_no_room_in_a_real_directory() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let medium = |name: &str| -> Arc<dyn Medium> {
        Arc::new(DirMedium::open(&dir.path().join(name)).unwrap())
    };
    let rig = Rig {
        media: [medium("state"), medium("fast"), medium("slow")],
        memory: Vec::new(),
    };
    let (objects, _) = rig.open();
    let mut model = Model::default();
    assert!(model.add(&objects, 0, 1) && model.add(&objects, 1, 1));
    model.check(&objects, &rig, "both");
    let taken = || {
        let pool = dir.path().join("slow").join(format!("{}.pool", pool(1)));
        std::fs::metadata(pool).unwrap().blocks() * 512
    };
    assert_eq!(taken(), 5 * 4096);
    model.remove(&objects, 0);
    model.check(&objects, &rig, "one");
    assert_eq!(taken(), 3 * 4096);
    drop(objects);
    model.check(&rig.open().0, &rig, "opened again");
}
