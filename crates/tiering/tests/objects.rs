//! Objects on tiers, while nothing ends.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use blocks::ContentId;
use tiering::medium::Medium;
use tiering::objects::{Copied, ObjectError, Objects, TierConfig, TierIndex};
use tiering::pace::{CHUNK, Cancelled, Demand, Pace, Throttle, Unhurried};
use tiering::testing::MemMedium;

const FAST: TierIndex = TierIndex(0);
const DISK: TierIndex = TierIndex(1);
const FAST_BYTES: u64 = 3 << 20;

struct Rig {
    fast: Arc<MemMedium>,
    disk: Arc<MemMedium>,
    objects: Objects,
}

fn rig() -> Rig {
    let (fast, disk) = (Arc::<MemMedium>::default(), Arc::<MemMedium>::default());
    let tier = |medium: &Arc<MemMedium>, capacity_bytes| TierConfig {
        medium: Arc::clone(medium) as Arc<dyn Medium>,
        capacity_bytes,
    };
    let tiers = vec![tier(&fast, FAST_BYTES), tier(&disk, 1 << 30)];
    let objects = Objects::open(Arc::<MemMedium>::default(), tiers).unwrap().0;
    Rig {
        fast,
        disk,
        objects,
    }
}

/// Some bytes that differ from those of another seed.
fn bytes(seed: u8, len: usize) -> Vec<u8> {
    let pattern = (0..251).map(|at| seed ^ at);
    pattern.cycle().take(len).collect()
}

fn add(objects: &Objects, content: &[u8], to: TierIndex) -> Result<ContentId, ObjectError> {
    let id = ContentId::of(content);
    let len = content.len() as u64;
    objects.add(id, len, to, &mut &content[..], &Unhurried)?;
    Ok(id)
}

fn read(objects: &Objects, id: ContentId) -> Vec<u8> {
    let len = usize::try_from(objects.get(id).unwrap().len).unwrap();
    let mut buf = vec![0; len];
    assert_eq!(objects.read_at(id, 0, &mut buf).unwrap(), len);
    buf
}

#[test]
fn a_large_object_goes_up_and_down_and_is_read_from_the_fastest() {
    let Rig { objects, .. } = rig();
    let content = bytes(1, 2 * CHUNK + 17);
    let id = add(&objects, &content, DISK).unwrap();
    assert_eq!(objects.open_copy(id).unwrap().tier(), DISK);
    let copied = objects.copy(id, FAST, &Unhurried).unwrap();
    assert_eq!(copied, Copied::Bytes(content.len() as u64));
    assert_eq!(objects.open_copy(id).unwrap().tier(), FAST);
    assert_eq!(objects.copy(id, FAST, &Unhurried).unwrap(), Copied::There);
    assert_eq!(read(&objects, id), content);
    let mut end = [0; 100];
    let from = content.len() as u64 - 10;
    assert_eq!(objects.read_at(id, from, &mut end).unwrap(), 10);
    assert_eq!(end[..10], content[content.len() - 10..]);
    assert_eq!(objects.read_at(id, u64::MAX, &mut end).unwrap(), 0);
    objects.leave(id, FAST).unwrap();
    assert_eq!(objects.used_bytes(FAST), 0);
    assert_eq!(read(&objects, id), content);
    let only = objects.leave(id, DISK).unwrap_err();
    assert!(
        matches!(only, ObjectError::OnlyCopy { tier: DISK, .. }),
        "{only}"
    );
}

#[test]
fn content_that_two_images_have_is_kept_once() {
    let Rig { objects, fast, .. } = rig();
    let content = bytes(2, 1000);
    let id = add(&objects, &content, FAST).unwrap();
    assert_eq!(add(&objects, &content, FAST).unwrap(), id);
    assert_eq!(objects.used_bytes(FAST), 1000);
    assert_eq!(fast.list().unwrap().len(), 2, "it, and the tier's mark");
}

#[test]
fn a_copy_that_somebody_has_open_is_not_pulled_away() {
    let Rig { objects, fast, .. } = rig();
    let content = bytes(3, 5000);
    let id = add(&objects, &content, FAST).unwrap();
    let lease = objects.open_copy(id).unwrap();
    let error = objects.shift(id, FAST, DISK, &Unhurried).unwrap_err();
    assert!(
        matches!(error, ObjectError::InUse { tier: FAST, .. }),
        "{error}"
    );
    let error = objects.remove(id).unwrap_err();
    assert!(matches!(error, ObjectError::InUse { .. }), "{error}");
    let mut buf = vec![0; 5000];
    assert_eq!(lease.read_at(0, &mut buf).unwrap(), 5000);
    assert_eq!(buf, content);
    drop(lease);
    // It was copied; now it can be left as well.
    assert_eq!(
        objects.shift(id, FAST, DISK, &Unhurried).unwrap(),
        Copied::There
    );
    assert!(fast.list().unwrap().iter().all(|(name, _)| name == "tier"));
    assert_eq!(read(&objects, id), content);
}

#[test]
fn what_does_not_fit_is_refused_and_takes_nothing() {
    let Rig { objects, fast, .. } = rig();
    let mib = 1 << 20;
    let first = add(&objects, &bytes(4, 2 * mib), FAST).unwrap();
    let second = add(&objects, &bytes(5, 2 * mib), DISK).unwrap();
    let full = objects.copy(second, FAST, &Unhurried).unwrap_err();
    let want = format!(
        "object {} needs 2097152 bytes on tier 0, and 1048576 are left",
        second.short()
    );
    assert_eq!(full.to_string(), want);
    assert!(add(&objects, &bytes(6, 2 * mib), FAST).is_err());
    assert_eq!(fast.list().unwrap().len(), 2);
    objects.shift(first, FAST, DISK, &Unhurried).unwrap();
    objects.copy(second, FAST, &Unhurried).unwrap();
    assert_eq!(objects.used_bytes(FAST), 2 * mib as u64);
}

#[test]
fn what_is_not_what_its_name_says_is_not_kept() {
    let Rig { objects, disk, .. } = rig();
    let content = bytes(7, 3000);
    let id = ContentId::of(&content);
    let mut changed = content.clone();
    changed[2999] ^= 1;
    let longer = [content.as_slice(), b"x"].concat();
    for wrong in [&changed[..], &content[..2999], &longer] {
        let result = objects.add(id, 3000, DISK, &mut &wrong[..], &Unhurried);
        assert!(result.is_err());
        assert_eq!(objects.get(id), None);
        assert_eq!(disk.list().unwrap().len(), 1, "the tier's mark");
    }
    assert_eq!(objects.used_bytes(DISK), 0);
    assert_eq!(add(&objects, &content, DISK).unwrap(), id);
}

#[test]
fn a_rotten_copy_is_left_for_a_sound_one() {
    let Rig {
        objects,
        fast,
        disk,
    } = rig();
    let state = Arc::<MemMedium>::default();
    let third = Arc::<MemMedium>::default();
    let tier = |medium: &Arc<MemMedium>| TierConfig {
        medium: Arc::clone(medium) as Arc<dyn Medium>,
        capacity_bytes: 1 << 20,
    };
    drop(objects);
    let tiers = vec![tier(&fast), tier(&disk), tier(&third)];
    let objects = Objects::open(state, tiers).unwrap().0;
    let content = bytes(8, 4000);
    let id = add(&objects, &content, FAST).unwrap();
    objects.copy(id, DISK, &Unhurried).unwrap();
    fast.rot(&id.to_string(), 1234);
    // The fast copy is tried first, and found rotten.
    objects.copy(id, TierIndex(2), &Unhurried).unwrap();
    let tiers = objects.get(id).unwrap().tiers;
    assert_eq!(tiers, [DISK, TierIndex(2)]);
    assert_eq!(read(&objects, id), content);
    // With every copy rotten nothing is copied, and nothing is left.
    disk.rot(&id.to_string(), 1);
    third.rot(&id.to_string(), 2);
    let error = objects.copy(id, FAST, &Unhurried).unwrap_err();
    assert!(matches!(error, ObjectError::Damaged { .. }), "{error}");
    assert_eq!(objects.get(id).unwrap().tiers, [DISK, TierIndex(2)]);
}

#[test]
fn a_tier_that_loses_a_file_is_passed_over() {
    let Rig { objects, fast, .. } = rig();
    let content = bytes(9, 6000);
    let id = add(&objects, &content, FAST).unwrap();
    objects.copy(id, DISK, &Unhurried).unwrap();
    fast.remove(&id.to_string()).unwrap();
    assert_eq!(read(&objects, id), content);
    let gone = objects.open_copy(id).unwrap().read_at(0, &mut [0; 10]);
    assert!(
        gone.unwrap_err()
            .to_string()
            .starts_with("cannot read object")
    );
}

/// Cancels at a turn.
struct CancelAt(AtomicU64);

impl Pace for CancelAt {
    fn turn(&self, _: u64) -> Result<(), Cancelled> {
        match self.0.fetch_sub(1, Relaxed) {
            0 => Err(Cancelled),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_copy_that_is_cancelled_leaves_nothing() {
    let Rig { objects, fast, .. } = rig();
    let content = bytes(10, 3 * CHUNK);
    let id = add(&objects, &content, DISK).unwrap();
    for turn in 0..3 {
        let pace = CancelAt(AtomicU64::new(turn));
        let error = objects.copy(id, FAST, &pace).unwrap_err();
        assert!(matches!(error, ObjectError::Cancelled { .. }), "{error}");
        assert_eq!(fast.list().unwrap().len(), 1, "the tier's mark");
        assert_eq!(objects.used_bytes(FAST), 0);
    }
    let pace = Throttle::new(None, Arc::<Demand>::default());
    objects.copy(id, FAST, &pace).unwrap();
    assert_eq!(read(&objects, id), content);
}

#[test]
fn reads_are_right_while_objects_move_under_them() {
    let Rig { objects, .. } = rig();
    let contents: Vec<Vec<u8>> = (0..3).map(|seed| bytes(seed, 40_000)).collect();
    let ids: Vec<ContentId> = contents
        .iter()
        .map(|content| add(&objects, content, DISK).unwrap())
        .collect();
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (objects, contents, ids, done, reads) = (&objects, &contents, &ids, &done, &reads);
            scope.spawn(move || {
                let mut buf = vec![0; 40_000];
                let mut at = reader;
                while !done.load(Relaxed) {
                    at = (at + 1) % 3;
                    objects.read_at(ids[at], 0, &mut buf).unwrap();
                    assert!(buf == contents[at]);
                    reads.fetch_add(1, Relaxed);
                }
            });
        }
        let mut moves = 0;
        while moves < 200 || reads.load(Relaxed) < 200 {
            let id = ids[moves % 3];
            // Somebody may be reading the copy: then it stays, until the next time.
            for (from, to) in [(DISK, FAST), (FAST, DISK)] {
                match objects.shift(id, from, to, &Unhurried) {
                    Ok(_) | Err(ObjectError::InUse { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            moves += 1;
        }
        done.store(true, Relaxed);
    });
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(&read(&objects, *id), content);
    }
}

#[test]
fn what_does_not_exist_is_said() {
    let Rig { objects, .. } = rig();
    let id = ContentId::of(b"nothing");
    assert!(matches!(
        objects.copy(id, FAST, &Unhurried),
        Err(ObjectError::Unknown { .. })
    ));
    assert!(matches!(
        objects.leave(id, FAST),
        Err(ObjectError::Unknown { .. })
    ));
    assert!(matches!(
        objects.remove(id),
        Err(ObjectError::Unknown { .. })
    ));
    assert!(matches!(
        objects.open_copy(id),
        Err(ObjectError::Unknown { .. })
    ));
    let id = add(&objects, b"", DISK).unwrap();
    assert_eq!(read(&objects, id), b"");
    let nowhere = objects.copy(id, TierIndex(9), &Unhurried).unwrap_err();
    assert_eq!(nowhere.to_string(), "there is no tier 9");
    assert_eq!(objects.list().len(), 1);
    objects.remove(id).unwrap();
    assert!(objects.list().is_empty());
}

#[test]
fn a_journal_of_many_changes_stays_short() {
    let state = Arc::<MemMedium>::default();
    let tier = |capacity_bytes| TierConfig {
        medium: Arc::<MemMedium>::default(),
        capacity_bytes,
    };
    let tiers = vec![tier(1 << 20), tier(1 << 20)];
    let objects = Objects::open(Arc::clone(&state) as Arc<dyn Medium>, tiers)
        .unwrap()
        .0;
    let id = add(&objects, b"hot and cold", DISK).unwrap();
    for _ in 0..2000 {
        objects.copy(id, FAST, &Unhurried).unwrap();
        objects.leave(id, FAST).unwrap();
    }
    let len = state
        .list()
        .unwrap()
        .iter()
        .map(|(_, len)| *len)
        .max()
        .unwrap();
    assert!(len <= 192 + 64 * 1026, "{len}");
}
