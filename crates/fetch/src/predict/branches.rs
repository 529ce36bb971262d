//! Directories whose subdirectories are read one after the other, as those of a language's library.

use std::collections::{HashMap, HashSet};

use super::FileChunks;

/// How many levels above its directory a file counts: a compiled module lies in a cache directory of its package.
const LEVELS: usize = 2;
/// Directories with a miss, after which small files are brought from all that lie beside them.
const AFTER: usize = 2;
/// The most directories whose misses are remembered.
const REMEMBERED: usize = 4096;

/// The directory tree, and where in it small files were missed.
#[derive(Debug, Default)]
pub(super) struct Branches {
    parents: HashMap<u32, u32>,
    /// The positions of the files below a directory, by no more than the levels.
    below: HashMap<u32, Vec<usize>>,
    /// By directory: those below it with a miss.
    missed: HashMap<u32, HashSet<u32>>,
}

impl Branches {
    /// Returns the state of a source whose directories have these parents.
    pub(super) fn new(parents: HashMap<u32, u32>, files: &[FileChunks]) -> Self {
        let mut branches = Self {
            parents,
            ..Self::default()
        };
        for (at, file) in files.iter().enumerate() {
            for above in branches.above(file.directory) {
                branches.below.entry(above).or_default().push(at);
            }
        }
        branches
    }

    /// Records a miss of a small file of a directory. Returns the nearest directory above it in which that
    /// happened in several places.
    pub(super) fn missed(&mut self, directory: u32) -> Option<u32> {
        if self.missed.len() >= REMEMBERED {
            self.missed.clear();
        }
        let mut nearest = None;
        for above in self.above(directory) {
            let places = self.missed.entry(above).or_default();
            // More than that says nothing new.
            if places.len() < AFTER {
                places.insert(directory);
            }
            if places.len() >= AFTER {
                nearest = nearest.or(Some(above));
            }
        }
        nearest
    }

    /// Returns the positions of the files below a directory, in the order of the source.
    pub(super) fn below(&self, directory: u32) -> &[usize] {
        self.below.get(&directory).map_or(&[], Vec::as_slice)
    }

    /// Returns the directories above one, the nearest first.
    fn above(&self, directory: u32) -> Vec<u32> {
        let parent = |directory: &u32| self.parents.get(directory).copied();
        let mut above: Vec<_> = std::iter::successors(parent(&directory), parent)
            .take(LEVELS)
            .collect();
        // The root may be given as its own parent.
        above.dedup();
        above
    }
}
