//! Reads what the programs of a source are linked with, and which files they name.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use blocks::{FileId, NodeKind};
use chunks::index::{CHUNK_BYTES, Index};
use chunks::links::Links;

use super::elf::{Loads, Unread, loads};
use super::modules::CACHE;
use super::{libraries, modules, named, python};

/// Chunks that are read of one program: its headers, its names and its dynamic section lie in a few.
const CHUNKS_OF_ONE: usize = 16;
/// Chunks that are read of one source. More has a hostile one.
const CHUNKS_OF_ALL: usize = 1 << 17;
/// Bytes of a file of the loader's configuration.
const CONFIGURATION_MAX: usize = 16 << 10;
/// The shortest program: a head.
const PROGRAM_MIN: u64 = 64;

/// Returns the content of a chunk, by its number.
type Content<'a> = dyn Fn(u32) -> Option<Arc<Vec<u8>>> + 'a;

/// Reads what the programs and the compiled modules of a source are linked with, as far as their chunks are here. Returns `None`
/// if `goes_on` says no.
///
/// The files are untrusted: what cannot be read has no links.
pub fn find(index: &Index, content: &Content<'_>, goes_on: &dyn Fn() -> bool) -> Option<Links> {
    let files = Files {
        index,
        content,
        left: Cell::new(CHUNKS_OF_ALL),
    };
    let tree = index.tree();
    let configuration = libraries::configuration(tree).into_iter();
    let configuration = configuration.filter_map(|file| files.start(file, CONFIGURATION_MAX));
    let configuration: Vec<_> = configuration.collect();
    let libraries = libraries::Finder::new(tree, &configuration);
    let mut modules = modules::Finder::new(tree);
    let mut named = named::Finder::new(tree);
    // Files that were named, and may name others.
    let mut texts = VecDeque::new();
    let mut found = BTreeMap::new();
    let mut known = HashSet::new();
    for (dir, _) in tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir)
    {
        let cache = tree.child(dir, CACHE);
        let compiled = cache.into_iter().flat_map(|cache| tree.entries(cache));
        for (name, file) in compiled {
            let tag = name.iter().position(|byte| *byte == b'.');
            let Some(tag) = tag.filter(|_| name.ends_with(b".pyc")) else {
                continue;
            };
            if !known.insert(file) {
                continue;
            }
            if !goes_on() {
                return None;
            }
            if let Some(imports) = files.imports(file) {
                found.insert(file, modules.of(dir, &name[tag + 1..], &imports));
            }
        }
        for (name, file) in tree.entries(dir) {
            if !is_program(index, name, file) || !known.insert(file) {
                continue;
            }
            if !goes_on() {
                return None;
            }
            if let Some(loads) = files.loads(file) {
                let mut targets = libraries.of(dir, &loads);
                targets.extend(modules.of_interpreter(name));
                let names = named.of(&files.named(file, &loads));
                texts.extend(&names);
                targets.extend(names);
                found.insert(file, targets);
            }
        }
    }
    while let Some(file) = texts.pop_front() {
        if found.contains_key(&file) || !known.insert(file) {
            continue;
        }
        if !goes_on() {
            return None;
        }
        if let Some(paths) = files.text(file) {
            let names = named.of(&paths);
            texts.extend(&names);
            found.insert(file, names);
        }
    }
    for targets in found.values_mut() {
        let mut once = HashSet::new();
        targets.retain(|target| once.insert(*target));
    }
    Some(Links::new(&found))
}

/// Returns whether a file may be a program or a library, by its name and its attributes.
fn is_program(index: &Index, name: &[u8], file: FileId) -> bool {
    let Some(inode) = index.tree().inode(file) else {
        return false;
    };
    let is_library = || name.windows(3).any(|part| part == b".so");
    inode.attr.kind == NodeKind::File
        && inode.attr.size >= PROGRAM_MIN
        && (inode.attr.perm & 0o111 != 0 || is_library())
}

/// The content of the files of a source.
struct Files<'a> {
    index: &'a Index,
    content: &'a Content<'a>,
    /// Chunks that may be read yet.
    left: Cell<usize>,
}

impl Files<'_> {
    fn chunk(&self, number: u32) -> Option<Arc<Vec<u8>>> {
        self.left.set(self.left.get().checked_sub(1)?);
        (self.content)(number)
    }

    /// Returns the beginning of a file, all of it if it has no more than `most` bytes.
    fn start(&self, file: FileId, most: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for number in self.index.covering(file, 0, most as u64) {
            let chunk = self.chunk(number)?;
            bytes.extend_from_slice(&chunk[..chunk.len().min(most - bytes.len())]);
        }
        Some(bytes)
    }

    /// Returns what a compiled module imports.
    fn imports(&self, file: FileId) -> Option<Vec<python::Import>> {
        let size = self.index.tree().inode(file)?.attr.size;
        if size > python::MODULE_MAX as u64 {
            return None;
        }
        python::imports(&self.start(file, python::MODULE_MAX)?)
    }

    /// Returns the paths in the constants of a program, as far as these are read.
    fn named(&self, file: FileId, loads: &Loads) -> Vec<Vec<u8>> {
        let mut paths = named::Paths::default();
        let mut left = named::CONSTANTS_MAX;
        for part in &loads.constants {
            let len = (part.end - part.start).min(left);
            left -= len;
            for number in self.index.covering(file, part.start, len) {
                let Some(chunk) = self.chunk(number) else {
                    return paths.take();
                };
                paths.add(&chunk);
            }
            // What lies behind it is something else.
            paths.add(&[0]);
        }
        paths.take()
    }

    /// Returns the paths in a text file; `None` if it is none.
    fn text(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        let size = self.index.tree().inode(file)?.attr.size;
        if size > named::TEXT_MAX as u64 {
            return None;
        }
        named::paths_of_text(&self.start(file, named::TEXT_MAX)?)
    }

    /// Returns what a program is loaded with.
    fn loads(&self, file: FileId) -> Option<Loads> {
        let read: std::cell::RefCell<HashMap<u32, Arc<Vec<u8>>>> = std::cell::RefCell::default();
        let chunk = |number: u32| {
            let mut read = read.borrow_mut();
            if let Some(chunk) = read.get(&number) {
                return Ok(Arc::clone(chunk));
            }
            if read.len() >= CHUNKS_OF_ONE {
                return Err(Unread::Other);
            }
            let chunk = self.chunk(number).ok_or(Unread::Other)?;
            read.insert(number, Arc::clone(&chunk));
            Ok(chunk)
        };
        let bytes = |offset: u64, len: usize| {
            let mut bytes = Vec::new();
            for number in self.index.covering(file, offset, len as u64) {
                let chunk = chunk(number)?;
                let at = offset.saturating_add(bytes.len() as u64) % CHUNK_BYTES;
                let at = usize::try_from(at).map_err(|_| Unread::Other)?;
                let rest = chunk.get(at..).unwrap_or_default();
                bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
            }
            Ok(bytes)
        };
        loads(&bytes).ok()
    }
}

#[cfg(test)]
mod tests;
