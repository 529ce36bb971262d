//! Reads arbitrary bytes as links of programs, with head and seal as they are and made right, as a program, and as a compiled
//! module: no panic, no memory beyond the limits, and links are written as they were read.

#![no_main]

use std::sync::Arc;

use blocks::testing::{Node, tree};
use blockservice::programs::{elf, python};
use chunks::index::{Index, ZEROS};
use chunks::links::{LINKS_OF_ONE_MAX, Links};
use libfuzzer_sys::fuzz_target;

const FILES: u32 = 200;
/// The head of links, and what it says before the counts.
const HEAD: usize = 64;
const SEAL: usize = 32;

fuzz_target!(|bytes: &[u8]| {
    let index = index();
    read_links(bytes, &index);
    if let Some(forged) = forge(bytes, &index) {
        read_links(&forged, &index);
    }
    read_program(bytes);
    read_module(bytes);
});

fn index() -> Index {
    let names: Vec<_> = (1..=FILES).map(|n| (format!("f{n:04}"), n)).collect();
    let names: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut nodes = vec![Node::dir(&names)];
    nodes.extend((0..FILES).map(|_| Node::file(1)));
    let tree = tree(&nodes).expect("it is valid");
    Index::new(b"x", Arc::new(tree), vec![ZEROS; FILES as usize]).expect("it is valid")
}

fn read_links(bytes: &[u8], index: &Index) {
    let Ok(links) = Links::decode(bytes, index) else {
        return;
    };
    for (file, _) in index.tree().files() {
        assert!(links.of(file).count() <= LINKS_OF_ONE_MAX);
        assert!(links.of(file).all(|target| target != file && index.tree().inode(target).is_some()));
    }
    assert!(Links::decode(&links.encode(&index.id()), index) == Ok(links), "it is written otherwise");
}

/// Makes links as a liar would: the first byte has the count of files, the second that of links, and the table follows.
fn forge(bytes: &[u8], index: &Index) -> Option<Vec<u8>> {
    let (&[files, links], table) = bytes.split_first_chunk::<2>()?;
    let mut out = b"\x89NFLNK\r\n\x01\0\0\0\0\0\0\0".to_vec();
    out.extend(index.id().0);
    let len = u32::try_from(table.len()).ok()?;
    for count in [u32::from(files), u32::from(links), len] {
        out.extend(count.to_le_bytes());
    }
    out.extend([0; 4]);
    assert!(out.len() == HEAD);
    out.extend(table);
    let seal: [u8; SEAL] = *blake3::hash(&out).as_bytes();
    out.extend(seal);
    Some(out)
}

fn read_program(bytes: &[u8]) {
    let read = |at: u64, len: usize| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let rest = bytes.get(at..).unwrap_or_default();
        Ok(rest[..rest.len().min(len)].to_vec())
    };
    if let Ok(loads) = elf::loads(&read) {
        assert!(loads.needed.len() <= 128 && loads.needed.iter().all(|name| name.len() <= 255));
        assert!(loads.parts.iter().all(|part| part.start <= part.end));
    }
}

fn read_module(bytes: &[u8]) {
    let mut forged = bytes.to_vec();
    for magic in [None, Some(3413_u16), Some(3495), Some(3571)] {
        if let (Some(magic), Some(head)) = (magic, forged.first_chunk_mut::<17>()) {
            head[..2].copy_from_slice(&magic.to_le_bytes());
            head[2..4].copy_from_slice(b"\r\n");
            head[16] = b'c';
        }
        if let Some(imports) = python::imports(&forged) {
            assert!(imports.len() <= 255 && imports.len() <= bytes.len());
        }
    }
}
