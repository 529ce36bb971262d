//! Layers of some KiB that ask for very much: each is refused before it has taken much memory.
//!
//! Each is read in a process of its own, which has a bound on its memory, and tells how much it used.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use blocks::Digest;
use oci::unpack::{Limits, UnpackError, read_layer};
use oci::{LayerBlob, digest_of};
use tar::{EntryType, Header};

/// Says to a process of this test which layer it is to read, and what it has.
const LAYER: &str = "TINY_LAYER";
/// Address space of the reader: what the limits allow, and what a test program has beside it.
const SPACE: u64 = 1536 << 20;
const MIB: u64 = 1 << 20;
/// What a layer of such a kind can be compressed to.
const BLOB_MAX: u64 = 4 << 20;

/// A tar that is compressed while it is written, and hashed.
struct Tar {
    blob: zstd::Encoder<'static, File>,
    hash: sha2::Sha256,
}

impl Tar {
    fn create(path: &Path) -> Self {
        use sha2::Digest as _;
        let blob = zstd::Encoder::new(File::create(path).unwrap(), 3).unwrap();
        let hash = sha2::Sha256::new();
        Self { blob, hash }
    }

    fn write(&mut self, bytes: &[u8]) {
        use sha2::Digest as _;
        self.hash.update(bytes);
        self.blob.write_all(bytes).unwrap();
    }

    /// Adds a header, and what belongs to it.
    fn add(&mut self, kind: EntryType, name: &[u8], content: &[u8]) {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_mode(0o755);
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.write(header.as_bytes());
        self.write(content);
        self.write(&vec![
            0;
            content.len().next_multiple_of(512) - content.len()
        ]);
    }

    /// Adds an empty file with a long name.
    fn file(&mut self, name: &[u8]) {
        self.add(EntryType::GNULongName, b"././@LongLink", name);
        self.add(EntryType::Regular, b"short", b"");
    }

    fn link(&mut self, name: &[u8], target: &[u8]) {
        self.add(EntryType::GNULongName, b"././@LongLink", name);
        self.add(EntryType::GNULongLink, b"././@LongLink", target);
        self.add(EntryType::Symlink, b"short", b"");
    }

    fn finish(mut self) -> Digest {
        use sha2::Digest as _;
        self.write(&[0; 1024]);
        self.blob.finish().unwrap();
        Digest(self.hash.finalize().into())
    }
}

/// Makes a small layer, has it read, and returns why it was refused, with the most memory
/// that its reader had.
fn refused(test: &str, fill: impl FnOnce(&mut Tar)) -> (String, u64) {
    let dir = tempfile::tempdir().unwrap();
    let blob = dir.path().join("blob");
    let mut tar = Tar::create(&blob);
    fill(&mut tar);
    let diff_id = tar.finish();
    let len = fs::metadata(&blob).unwrap().len();
    println!("{test}: {len} bytes");
    assert!(len <= BLOB_MAX, "the layer has {len} bytes");
    let mut reader = Command::new("prlimit");
    reader.arg(format!("--as={SPACE}"));
    reader.arg(std::env::current_exe().unwrap());
    reader.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    reader.env(LAYER, format!("{} {diff_id}", blob.display()));
    let output = reader.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().find_map(|line| line.strip_prefix("refused: "));
    let said = said.unwrap_or_else(|| panic!("{output:?}"));
    let (peak, why) = said.split_once(' ').unwrap();
    (why.to_owned(), peak.parse().unwrap())
}

/// Asserts that a small layer is refused with these words, before its reader has so much memory.
fn refuses(test: &str, (words, most): (&str, u64), fill: impl FnOnce(&mut Tar)) {
    if reads() {
        return;
    }
    let (why, peak) = refused(test, fill);
    println!("{peak}: {why}");
    assert!(why.contains(words), "{why}");
    assert!(peak < most, "{peak}");
}

/// In a process that has a layer to read: reads it, and tells what came of it.
fn reads() -> bool {
    let Ok(layer) = std::env::var(LAYER) else {
        return false;
    };
    let (path, diff_id) = layer.split_once(' ').unwrap();
    let layer = LayerBlob::from_file(Path::new(path), diff_id.parse().unwrap()).unwrap();
    // As nicfetch does: it remembers something of each file.
    let mut content = |content: &mut dyn io::Read| {
        let mut chunks = Vec::new();
        let mut chunk = Vec::new();
        while content.take(128 << 10).read_to_end(&mut chunk)? > 0 {
            chunks.push(digest_of(&chunk));
            chunk.clear();
        }
        Ok(chunks)
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    let said = match read_layer(&layer, &Limits::default(), &mut content, go_on) {
        Ok(read) => format!("not: {} files", read.tree.len()),
        Err(UnpackError::Layer { source, .. } | UnpackError::Entry { source, .. }) => {
            source.to_string()
        }
        Err(other) => format!("{other:?}"),
    };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    // Before the line there is what the harness says of the test.
    println!("\nrefused: {} {said}", peak.parse::<u64>().unwrap() << 10);
    true
}

/// Returns a name of so many levels below a directory of its own.
fn deep(number: u32, levels: usize) -> Vec<u8> {
    [format!("{number}").as_bytes(), &b"/d".repeat(levels - 1)].concat()
}

#[test]
fn names_as_deep_as_names_can_be_are_refused() {
    let test = "names_as_deep_as_names_can_be_are_refused";
    let expected = ("more levels of directories than allowed", 64 * MIB);
    refuses(test, expected, |tar| {
        (0..1500).for_each(|number| tar.file(&deep(number, 2040)));
    });
}

#[test]
fn directories_that_no_entry_is_about_are_counted() {
    let test = "directories_that_no_entry_is_about_are_counted";
    let expected = ("more directories without entries than allowed", 128 * MIB);
    refuses(test, expected, |tar| {
        (0..1500).for_each(|number| tar.file(&deep(number, 512)));
    });
}

#[test]
fn links_do_not_lead_deeper_than_names() {
    let test = "links_do_not_lead_deeper_than_names";
    let expected = ("more levels of directories than allowed", 64 * MIB);
    refuses(test, expected, |tar| {
        let down = b"/d".repeat(500);
        tar.file(&[b"0", &down[..], b"/f"].concat());
        for number in 0..100 {
            let (from, to) = (format!("l{number}"), format!("l{}", number + 1));
            let from = if number == 0 { "0".to_owned() } else { from };
            tar.link(to.as_bytes(), &[from.as_bytes(), &down].concat());
            tar.file(&[to.as_bytes(), &down, b"/f"].concat());
        }
    });
}

#[test]
fn headers_that_pile_up_before_an_entry_are_counted_together() {
    let test = "headers_that_pile_up_before_an_entry_are_counted_together";
    let expected = ("extended headers of an entry", 64 * MIB);
    refuses(test, expected, |tar| {
        let value = "v".repeat(900 << 10);
        for number in 0..500 {
            let text = format!(" SCHILY.xattr.user.{number:06}={value}\n");
            let len = text.len() + 6;
            tar.add(
                EntryType::XHeader,
                b"pax",
                format!("{len}{text}").as_bytes(),
            );
        }
        tar.file(b"file");
    });
}

#[test]
fn attributes_of_many_entries_are_counted_together() {
    let test = "attributes_of_many_entries_are_counted_together";
    let expected = ("more bytes of names and attributes than allowed", 384 * MIB);
    refuses(test, expected, |tar| {
        let value = "v".repeat(60 << 10);
        let records: String = (0..16)
            .map(|number| {
                let text = format!(" SCHILY.xattr.user.{number:06}={value}\n");
                format!("{}{text}", text.len() + 5)
            })
            .collect();
        for number in 0..400 {
            tar.add(EntryType::XHeader, b"pax", records.as_bytes());
            tar.add(EntryType::Regular, number.to_string().as_bytes(), b"");
        }
    });
}

#[test]
fn attributes_without_values_are_counted_by_the_memory_they_take() {
    let test = "attributes_without_values_are_counted_by_the_memory_they_take";
    let expected = ("more to remember than allowed", 768 * MIB);
    refuses(test, expected, |tar| {
        let records: String = (0..5_000)
            .map(|number| format!("29 SCHILY.xattr.user.{number:06}=\n"))
            .collect();
        for number in 0..2_000 {
            tar.add(EntryType::XHeader, b"pax", records.as_bytes());
            tar.add(EntryType::Regular, number.to_string().as_bytes(), b"");
        }
    });
}

#[test]
fn a_million_directories_are_counted_by_the_memory_they_take() {
    let test = "a_million_directories_are_counted_by_the_memory_they_take";
    let expected = ("more to remember than allowed", 768 * MIB);
    refuses(test, expected, |tar| {
        // Each an entry, and each with one in it: that takes the most.
        for number in 0..500 {
            let mut name = format!("{number}").into_bytes();
            for _ in 0..511 {
                tar.add(EntryType::GNULongName, b"././@LongLink", &name);
                tar.add(EntryType::Directory, b"short", b"");
                name.extend_from_slice(b"/d");
            }
            for more in 0..1500 {
                tar.add(
                    EntryType::Directory,
                    format!("{number}/{more}").as_bytes(),
                    b"",
                );
            }
        }
    });
}
