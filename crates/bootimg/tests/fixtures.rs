//! Images that version 1 wrote stay readable for ever.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocks::{Tree, TreeError};
use bootimg::{FormatError, Image, OpenError, Variant, testing, unwatched};
use sample::{PLANNED, Sample};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Everything an image says, as text.
fn dump(image: &Image) -> String {
    let mut out = String::new();
    let info = image.info();
    writeln!(out, "id {}", info.id).unwrap();
    writeln!(out, "source {:#?}", info.source).unwrap();
    let plan = image.plan();
    writeln!(out, "runs {} of bins of {} ms", plan.runs, plan.bin_ms).unwrap();
    dump_tree(&mut out, image.tree());
    for row in image.dump() {
        let path = row.path.escape_ascii();
        let range = row.range;
        let data = row
            .data
            .map_or_else(|| "zero".to_owned(), |(p, hash)| format!("{p} {hash}"));
        writeln!(
            out,
            "extent {path} {range:?} bin {} seen {} {data}",
            row.bin, row.seen
        )
        .unwrap();
    }
    for touch in &plan.touches {
        writeln!(out, "touch {touch:?}").unwrap();
    }
    out
}

fn dump_tree(out: &mut String, tree: &Tree) {
    for (file, inode) in tree.files() {
        let path = tree.path(file).unwrap_or_default();
        writeln!(
            out,
            "inode {} /{} {:?}",
            file.0,
            path.escape_ascii(),
            inode.attr
        )
        .unwrap();
        for (name, child) in tree.entries(file) {
            writeln!(out, "  name {} {}", name.escape_ascii(), child.0).unwrap();
        }
        if let Some(target) = tree.link_target(file) {
            writeln!(out, "  target {}", target.escape_ascii()).unwrap();
        }
        for (name, value) in tree.xattrs(file) {
            writeln!(
                out,
                "  xattr {} {}",
                name.escape_ascii(),
                value.escape_ascii()
            )
            .unwrap();
        }
    }
}

#[test]
fn version_1_opens_and_says_what_it_said() {
    let want = std::fs::read_to_string(fixture("v1.dump")).unwrap();
    for (name, variant) in [
        ("v1-mapped.bimg", Variant::Mapped),
        ("v1-packed.bimg", Variant::Packed),
    ] {
        let image = Image::open(fixture(name)).unwrap();
        assert_eq!(image.info().variant, variant);
        assert_eq!(dump(&image), want, "{name}");
        assert!(image.verify(&mut unwatched).unwrap().is_sound());
        assert_eq!(Sample::new().read_all(Arc::new(image)), PLANNED);
    }
}

#[test]
fn damaged_fixtures_are_refused() {
    for name in [
        "v1-forged-names.bimg",
        "v1-corrupt-header.bimg",
        "v1-corrupt-tree.bimg",
        "v1-corrupt-cut.bimg",
    ] {
        let error = Image::open(fixture(name)).unwrap_err();
        assert!(matches!(error, OpenError::Format { .. }), "{name}: {error}");
    }
}

#[test]
fn a_fixture_with_damaged_data_opens_and_serves_the_rest() {
    let image = Image::open(fixture("v1-corrupt-data.bimg")).unwrap();
    let report = image.verify(&mut unwatched).unwrap();
    assert_eq!((report.damaged.len(), report.parts.len()), (1, 1));
    let lost = report.damaged.first().unwrap().range.len();
    assert_eq!(Sample::new().read_all(Arc::new(image)), PLANNED - lost);
}

/// Boot images whose TREE is stored as it is, which a fuzzer can change: one is right, and the other
/// says of many names that they have the same bytes.
#[test]
fn forged_fixtures_are_what_they_say() {
    let right = Image::open(fixture("v1-plain-tree.bimg")).unwrap();
    assert!(right.verify(&mut unwatched).unwrap().is_sound());
    let (tree, [plain, forged]) = plain_and_forged();
    assert_eq!(**right.tree(), tree);
    for (name, bytes) in [
        ("v1-plain-tree.bimg", plain),
        ("v1-forged-names.bimg", forged),
    ] {
        assert_eq!(std::fs::read(fixture(name)).unwrap(), bytes, "{name}");
    }
    let error = Image::open(fixture("v1-forged-names.bimg")).unwrap_err();
    let shared = |source: &FormatError| matches!(source, FormatError::Tree(TreeError::Shared(_)));
    assert!(
        matches!(&error, OpenError::Format { source, .. } if shared(source)),
        "{error:?}"
    );
}

/// Returns a small deep tree, and two boot images of it: one that is right and one that is forged.
fn plain_and_forged() -> (Tree, [Vec<u8>; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.bimg");
    let tree = testing::deep(40, 1, 3);
    testing::write(&tree, &path);
    let written = std::fs::read(path).unwrap();
    let trees = [tree.encode(), testing::with_one_long_name(&tree)];
    (
        tree,
        trees.map(|tree| testing::replace_tree(&written, &tree)),
    )
}

#[test]
#[ignore = "only when they get another content"]
fn write_the_forged_fixtures() {
    let (_, [plain, forged]) = plain_and_forged();
    std::fs::write(fixture("v1-plain-tree.bimg"), plain).unwrap();
    std::fs::write(fixture("v1-forged-names.bimg"), forged).unwrap();
}

/// Writes the fixtures of a new version of the format; never those of an old one.
#[test]
#[ignore = "only when the format gets a new version"]
fn write_the_fixtures() {
    let sample = Sample::new();
    let put = |name: &str, bytes: &[u8]| {
        assert!(!fixture(name).exists(), "{name} stays for ever");
        std::fs::write(fixture(name), bytes).unwrap();
    };
    let mapped = sample.bytes(Variant::Mapped);
    put("v1-packed.bimg", &sample.bytes(Variant::Packed));
    put("v1.dump", dump(&sample.image()).as_bytes());
    let corrupt = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = mapped.clone();
        change(&mut bytes);
        put(name, &bytes);
    };
    corrupt("v1-corrupt-header.bimg", &|bytes| bytes[40] ^= 1);
    corrupt("v1-corrupt-data.bimg", &|bytes| bytes[4096 + 77] ^= 1);
    corrupt("v1-corrupt-cut.bimg", &|bytes| bytes.truncate(40_000));
    let tree = 4096 * (1 + usize::try_from(sample.image().info().data_blocks).unwrap());
    corrupt("v1-corrupt-tree.bimg", &|bytes| bytes[tree + 50] ^= 1);
    put("v1-mapped.bimg", &mapped);
}
