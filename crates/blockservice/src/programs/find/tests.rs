//! Sources with programs and modules, right and hostile.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use blocks::testing::{MemSource, Node, tree};
use chunks::index::build;
use chunks::testing::MemStore;
use chunks::{CHUNK_MAX, ChunkStore as _, Class};

use super::super::python::Import;
use super::super::python::tests::module;
use super::*;

/// A source whose files have this content, by inode.
struct Source {
    index: Index,
    store: MemStore,
}

fn source(nodes: &[Node], contents: &[(u32, Vec<u8>)]) -> Source {
    let mut nodes = nodes.to_vec();
    for (file, content) in contents {
        nodes[*file as usize].attr.size = content.len() as u64;
    }
    let tree = Arc::new(tree(&nodes).unwrap());
    let mut files = MemSource::default();
    for (file, content) in contents {
        files.insert(tree.key(FileId(*file)).unwrap(), content.clone());
    }
    let (store, go_on) = (MemStore::default(), &mut |_| ControlFlow::Continue(()));
    let index = build(b"x", &tree, &files, &store, go_on).unwrap().index;
    Source { index, store }
}

impl Source {
    fn content(&self, number: u32) -> Option<Arc<Vec<u8>>> {
        let id = self.index.chunk(number)?;
        let stored = self.store.get(&id, Class::Prefetch)?;
        stored.open(&id).ok().map(Arc::new)
    }

    fn links(&self) -> Links {
        find(&self.index, &|number| self.content(number), &|| true).unwrap()
    }
}

fn of(links: &Links, file: u32) -> Vec<u32> {
    links.of(FileId(file)).map(|file| file.0).collect()
}

/// An ELF file that is linked with this library, whose dynamic section lies in its last chunk.
fn program(library: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::elf::write_program(&mut bytes, len - 4096, library, None);
    bytes
}

/// A directory with a program, and one with libraries and modules.
fn nodes() -> Vec<Node> {
    let mut run = Node::file(0);
    run.attr.perm = 0o755;
    vec![
        Node::dir(&[("bin", 1), ("lib", 2)]),
        Node::dir(&[("run", 3), ("script", 7)]),
        Node::dir(&[
            ("liba.so.1", 4),
            ("libb.so", 5),
            ("a.so", 6),
            ("python3.11", 8),
        ]),
        run.clone(),
        Node::symlink("a.so"),
        Node::file(0),
        Node::file(0),
        run,
        Node::dir(&[("__pycache__", 9), ("_ssl.cpython-311.so", 12)]),
        Node::dir(&[("ssl.cpython-311.pyc", 10), ("x.cpython-311.pyc", 11)]),
        Node::file(0),
        Node::file(0),
        Node::file(0),
    ]
}

fn import(module: &str) -> Import {
    Import {
        module: module.as_bytes().to_vec(),
        ..Import::default()
    }
}

#[test]
fn programs_libraries_and_modules_have_links() {
    let large = 3 * CHUNK_MAX;
    let source = source(
        &nodes(),
        &[
            (3, program("liba.so.1", large)),
            (5, program("liba.so.1", large)),
            (6, program("libb.so", large)),
            (7, b"#!/bin/sh\n".repeat(20)),
            (
                10,
                module(3495, &[import("_ssl"), import("x"), import("_ssl")]),
            ),
            (11, module(3495, &[import("ssl"), import("gone")])),
            (12, program("libb.so", 8192)),
        ],
    );
    let links = source.links();
    assert_eq!(
        (of(&links, 3), of(&links, 5), of(&links, 6)),
        (vec![6], vec![6], vec![5])
    );
    assert_eq!(
        (of(&links, 10), of(&links, 11), of(&links, 12)),
        (vec![12, 11], vec![10], vec![5])
    );
    assert_eq!((of(&links, 7), links.len()), (vec![], 7));
    // What is written is accepted by who reads it.
    let bytes = links.encode(&source.index.id());
    assert_eq!(Links::decode(&bytes, &source.index), Ok(links));
}

#[test]
fn what_is_not_here_has_no_links_and_it_may_be_told_to_stop() {
    let large = 3 * CHUNK_MAX;
    let programs = [
        (3, program("liba.so.1", large)),
        (6, program("libb.so", large)),
    ];
    let source = source(&nodes(), &programs);
    let none = find(&source.index, &|_| None, &|| true).unwrap();
    assert!(none.is_empty());
    let asked = AtomicUsize::new(0);
    let stops = || asked.fetch_add(1, Relaxed) < 1;
    let content = |number| source.content(number);
    assert_eq!(find(&source.index, &content, &stops), None);
}

#[test]
fn hostile_programs_cost_a_bounded_number_of_chunks() {
    // Each name lies in a chunk of its own.
    let mut bytes = program("liba.so.1", 200 * CHUNK_MAX);
    let end = bytes.len() - 4096;
    for nth in 0..200_u64 {
        let at = end + 32 + usize::try_from(nth).unwrap() * 16;
        bytes[at..at + 8].copy_from_slice(&1_u64.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&(nth << 17).to_le_bytes());
        // A chunk of zeros is in no store.
        bytes[(usize::try_from(nth).unwrap() << 17) + 600] = 1;
    }
    bytes[120 + 32..120 + 40].copy_from_slice(&4096_u64.to_le_bytes());
    let source = source(&nodes(), &[(3, bytes)]);
    let read = AtomicUsize::new(0);
    let content = |number| {
        read.fetch_add(1, Relaxed);
        source.content(number)
    };
    let links = find(&source.index, &content, &|| true).unwrap();
    assert!(links.is_empty());
    assert_eq!(read.load(Relaxed), CHUNKS_OF_ONE);
}

#[test]
fn files_that_programs_and_their_configuration_name_are_linked() {
    let mut run = Node::file(0);
    run.attr.perm = 0o755;
    let nodes = [
        Node::dir(&[("bin", 1), ("etc", 2), ("lib", 3), ("localtime", 4)]),
        Node::dir(&[("server", 5), ("python3.11", 6)]),
        Node::dir(&[("server.conf", 7), ("on", 8), ("big", 9)]),
        Node::dir(&[("mod_a.so", 10), ("python3.11", 11)]),
        Node::symlink("/etc/zone"),
        run.clone(),
        run,
        Node::file(0),
        Node::dir(&[("a.conf", 12), ("b.txt", 13)]),
        Node::file(0),
        Node::file(0),
        Node::dir(&[("encodings", 14), ("__pycache__", 15)]),
        Node::file(0),
        Node::file(0),
        Node::dir(&[("__pycache__", 16)]),
        Node::dir(&[("sitecustomize.cpython-311.pyc", 17)]),
        Node::dir(&[
            ("__init__.cpython-311.pyc", 18),
            ("utf_8.cpython-311.pyc", 19),
        ]),
        Node::file(0),
        Node::file(0),
        Node::file(0),
    ];
    let mut server = program("gone.so", 3 * CHUNK_MAX);
    // One path lies in two chunks, one is of a file that is too large, and one of none.
    let paths = b"\0conf=/etc/server.conf\0/etc/big\0/etc/gone\0";
    server[CHUNK_MAX - 16..][..paths.len()].copy_from_slice(paths);
    let source = source(
        &nodes,
        &[
            (5, server),
            (6, program("gone.so", 8192)),
            (7, b"# /etc/on/b.txt\ninclude /etc/on/*.conf;\n".to_vec()),
            (9, vec![b'x'; (1 << 20) + 1]),
            (10, b"no library".to_vec()),
            (12, b"load modules/mod_a.so\nself /etc/server.conf".to_vec()),
            (13, b"text".to_vec()),
            (17, module(3495, &[])),
            (18, module(3495, &[])),
            (19, module(3495, &[])),
        ],
    );
    let links = source.links();
    assert_eq!(of(&links, 5), [7]);
    assert_eq!(of(&links, 7), [12]);
    assert_eq!(of(&links, 12), [10, 7]);
    // What an interpreter begins with.
    assert_eq!(of(&links, 6), [18, 19, 17]);
}
