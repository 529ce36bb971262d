//! Clones of a recorded disk get its recording, and never a byte of it that they do not have.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocks::{
    BLOCK_SIZE, BlockIndex, BlockRange, BlockSource as _, CachedSource, Extent, FileId, ReplayPlan,
};
use bootimg::{Variant, WriteRequest};
use bootstore::store::{StoreSettings, add_written};
use host::interrupt::Interrupt;
use localfs::SourceRoot;
use mounting::boot::{Boot, BootRequest, Foreign, Unusable};
use mounting::clones::{Adopted, adopt};
use mounting::source::Source;
use node_api::boot_choice::BootChoice;
use tempfile::TempDir;

/// Blocks of the disks of these tests.
const BLOCKS: u64 = 256;

/// A store, and a directory of disks.
struct Place {
    dir: TempDir,
    store: StoreSettings,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("disks")).unwrap();
        let store = StoreSettings {
            tiers: None,
            ..StoreSettings::to_read(dir.path().join("store"))
        };
        Self { dir, store }
    }

    fn disks(&self) -> PathBuf {
        self.dir.path().join("disks")
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.disks().join(name)
    }

    /// Makes a disk with different blocks, and a boot image that has every other of them.
    fn record(&self, name: &str) -> PathBuf {
        let disk = self.disk(name);
        let bytes = (0..BLOCKS * BLOCK_SIZE as u64 / 8)
            .map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        fs::write(&disk, bytes.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).unwrap();
        let source = Source::open(&disk).unwrap();
        let (_, file) = source.disk().unwrap();
        let extents = (0..BLOCKS).step_by(4).map(|block| Extent {
            file,
            range: BlockRange::new(BlockIndex(block), BlockIndex(block + 2)),
            bin: 0,
            seen: 1,
        });
        let plan = ReplayPlan {
            runs: 1,
            bin_ms: 100,
            extents: extents.collect(),
            touches: Vec::new(),
        };
        let request = WriteRequest {
            tree: &source.tree,
            info: &source.info(),
            plan: &plan,
            blocks: &*source.reader(),
            variant: Variant::Mapped,
        };
        let store = self.store.open().unwrap();
        add_written(&store, Some(name), &request, &mut bootimg::unwatched).unwrap();
        disk
    }

    fn adopt(&self, path: &Path) -> Option<Adopted> {
        let root = Arc::new(SourceRoot::open(path).unwrap());
        adopt(&root, &self.store, &Interrupt::unarmed().unwrap()).unwrap()
    }

    /// Reads all of a source through its boot image, and returns how many bytes that served. Panics at a wrong byte.
    fn check(&self, path: &Path) -> u64 {
        let source = Source::open(path).unwrap();
        let request = BootRequest {
            choice: &BootChoice::Auto,
            store: &self.store,
            unusable: Unusable::LeftOut,
            foreign: Foreign::Refused,
        };
        let boot = request.resolve(&source.root, &source.tree).unwrap();
        let boot: Arc<Boot> = boot.expect("there is a boot image");
        let cached = CachedSource::new(Arc::clone(&boot), source.reader());
        for (name, file) in source.tree.entries(FileId::ROOT) {
            let truth =
                fs::read(self.disks().join(String::from_utf8_lossy(name).as_ref())).unwrap();
            let key = source.tree.key(file).unwrap();
            let mut found = vec![0; BLOCK_SIZE];
            for (block, truth) in truth.chunks(BLOCK_SIZE).enumerate() {
                let at = (block * BLOCK_SIZE) as u64;
                cached.read_at(&key, at, &mut found).unwrap();
                assert!(
                    found[..truth.len()] == *truth,
                    "{}: block {block}",
                    String::from_utf8_lossy(name)
                );
            }
        }
        boot.image().unwrap().counts().blocks
    }
}

fn change(disk: &Path, block: u64) {
    let file = fs::File::options().write(true).open(disk).unwrap();
    file.write_all_at(&[0xee; BLOCK_SIZE], block * BLOCK_SIZE as u64)
        .unwrap();
}

/// Names of the disks that were found to be clones.
fn names(adopted: &Adopted) -> Vec<&str> {
    adopted
        .disks
        .iter()
        .map(|(name, _)| name.as_str())
        .collect()
}

#[test]
fn a_clone_is_served_with_what_it_has() {
    let place = Place::new();
    let base = place.record("base.raw");
    let clone = place.disk("clone.raw");
    fs::copy(&base, &clone).unwrap();
    for block in [0, 1, 40, 133, 255] {
        change(&clone, block);
    }
    let adopted = place.adopt(&clone).unwrap();
    assert_eq!(
        adopted.disks,
        [("clone.raw".to_owned(), "base.raw".to_owned())]
    );
    assert_eq!(place.check(&clone), BLOCKS / 2);
    assert_eq!(place.adopt(&clone), None, "it has one now");
    // What two clones have in common is in the store once.
    let listed = place.store.open().unwrap().list().unwrap();
    let own: u64 = listed.iter().map(|image| image.own_bytes).sum();
    assert!(own < BLOCKS / 4 * BLOCK_SIZE as u64, "{own}");
}

#[test]
fn a_changed_clone_and_a_damaged_store_give_no_wrong_byte() {
    let place = Place::new();
    let base = place.record("base.raw");
    let clone = place.disk("clone.raw");
    fs::copy(&base, &clone).unwrap();
    place.adopt(&clone).unwrap();
    // Two faults at once: the store rots, and the clone is written to after all.
    for entry in fs::read_dir(place.store.dir.join("segments")).unwrap() {
        let path = entry.unwrap().path();
        let segment = fs::File::options().write(true).open(&path).unwrap();
        segment.write_all_at(&[0x55; 64], 4096 * 9).unwrap();
    }
    let served = place.check(&clone);
    assert!(served > 0 && served < BLOCKS / 2, "{served}");
    change(&clone, 8);
    assert_eq!(place.check(&clone), 0, "another version has no boot image");
    assert_eq!(names(&place.adopt(&clone).unwrap()), ["clone.raw"]);
    assert!(place.check(&clone) > 0);
}

#[test]
fn another_disk_of_the_same_size_is_no_clone() {
    let place = Place::new();
    let base = place.record("base.raw");
    let other = place.disk("other.raw");
    fs::write(&other, vec![3; fs::read(&base).unwrap().len()]).unwrap();
    assert_eq!(place.adopt(&other), None);
    let longer = place.disk("longer.raw");
    fs::copy(&base, &longer).unwrap();
    fs::File::options()
        .write(true)
        .open(&longer)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    assert_eq!(place.adopt(&longer), None);
}

#[test]
fn a_directory_has_one_boot_image_for_all_its_disks() {
    let place = Place::new();
    let base = place.record("base.raw");
    for number in 0..3 {
        fs::copy(&base, place.disk(&format!("vm{number}.raw"))).unwrap();
    }
    fs::write(place.disk("notes.txt"), "no disk").unwrap();
    change(&place.disk("vm1.raw"), 4);
    let adopted = place.adopt(&place.disks()).unwrap();
    assert_eq!(
        names(&adopted),
        ["base.raw", "vm0.raw", "vm1.raw", "vm2.raw"]
    );
    assert_eq!(place.check(&place.disks()), 4 * BLOCKS / 2);
    // A new one comes, one changes, one goes.
    fs::copy(&base, place.disk("vm3.raw")).unwrap();
    change(&place.disk("vm2.raw"), 100);
    fs::remove_file(place.disk("vm0.raw")).unwrap();
    assert_eq!(
        names(&place.adopt(&place.disks()).unwrap()),
        ["vm2.raw", "vm3.raw"]
    );
    assert_eq!(place.check(&place.disks()), 4 * BLOCKS / 2);
}
