//! A synthetic host: machines start containers of popular and less popular images, which share base
//! layers; a start reads the hot part of its image, and some then read all of it.

use super::{ChunkAccess, Random, Zipf};
use crate::{CHUNK_MAX, Class};

/// The host's parameters. The defaults are those under which caches were compared for this design:
/// Zipf's law with 0.9 for images, 12 bases, 6.4 % of an image read by a start (Slacker, FAST 2016),
/// 30 % of the starts followed by a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyVms {
    /// How many images there are.
    pub images: usize,
    /// How many bases; an image has one.
    pub bases: u64,
    /// Chunks of a base.
    pub base_chunks: u64,
    /// Chunks of an image above its base.
    pub own_chunks: u64,
    /// How many of a thousand chunks a start reads.
    pub hot_permille: u64,
    /// How many of a hundred starts are followed by a scan.
    pub scans_percent: u64,
    /// Whether a client waits for a scan.
    pub scan_class: Class,
    /// How popular the first image is beside the others.
    pub zipf: f64,
    /// How many starts there are.
    pub starts: u64,
    /// Other seeds give other hosts of the same kind.
    pub seed: u64,
}

impl Default for ManyVms {
    fn default() -> Self {
        Self {
            images: 200,
            bases: 12,
            base_chunks: 600, // 75 MiB
            own_chunks: 1000, // 125 MiB
            hot_permille: 64,
            scans_percent: 30,
            scan_class: Class::Demand,
            zipf: 0.9,
            starts: 2000,
            seed: 1,
        }
    }
}

impl ManyVms {
    /// Returns a host that tests have time for.
    #[must_use]
    pub fn small() -> Self {
        Self {
            images: 40,
            bases: 4,
            base_chunks: 60,
            own_chunks: 100,
            starts: 400,
            ..Self::default()
        }
    }

    /// Returns the accesses, in order: the same each time.
    pub fn accesses(self) -> impl Iterator<Item = ChunkAccess> {
        let zipf = Zipf::new(self.images, self.zipf);
        let mut random = Random::new(self.seed);
        (0..self.starts).flat_map(move |_| {
            let image = zipf.pick(&mut random) as u64;
            let scans = random.below(100) < self.scans_percent;
            self.start(image, scans)
        })
    }

    fn start(self, image: u64, scans: bool) -> impl Iterator<Item = ChunkAccess> {
        let chunks = self.base_chunks + self.own_chunks;
        let hot = (0..chunks).filter(move |at| self.is_hot(image, *at));
        let hot = hot.map(move |at| self.chunk(image, at, Class::Demand));
        let scan = (0..if scans { chunks } else { 0 })
            .map(move |at| self.chunk(image, at, self.scan_class));
        hot.chain(scan)
    }

    /// Which chunks are hot depends on the chunk alone: all starts need the same of a base.
    fn is_hot(&self, image: u64, at: u64) -> bool {
        let number = self.number(image, at);
        Random::new(number ^ self.seed).below(1000) < self.hot_permille
    }

    fn chunk(&self, image: u64, at: u64, class: Class) -> ChunkAccess {
        let chunk = self.number(image, at);
        // Most files are shorter than a chunk, and their chunk is: 4 KiB to all of it.
        let pages = 1 + Random::new(!chunk).below(CHUNK_MAX as u64 / 4096);
        ChunkAccess {
            chunk,
            bytes: u32::try_from(pages * 4096).unwrap_or(u32::MAX),
            class,
        }
    }

    /// A base's chunks have the number of the base, an image's own that of the image.
    fn number(&self, image: u64, at: u64) -> u64 {
        let owner = if at < self.base_chunks {
            image % self.bases
        } else {
            self.bases + image
        };
        owner << 32 | at
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_host_is_what_its_parameters_say() {
        let host = ManyVms {
            scan_class: Class::Prefetch,
            ..ManyVms::small()
        };
        let accesses: Vec<_> = host.accesses().collect();
        assert_eq!(accesses, host.accesses().collect::<Vec<_>>());
        let scanned = accesses
            .iter()
            .filter(|access| access.class == Class::Prefetch)
            .count();
        let scans = scanned / 160;
        assert_eq!(scanned, scans * 160, "whole images");
        assert!((90..150).contains(&scans), "{scans} scans of 400 starts");
        let hot = accesses.len() - scanned;
        assert!(
            (400 * 160 / 1000 * 40..400 * 160 / 1000 * 90).contains(&hot),
            "{hot}"
        );
        let chunks: HashSet<u64> = accesses.iter().map(|access| access.chunk).collect();
        assert!(
            chunks.len() <= 4 * 60 + 40 * 100 && chunks.len() > 2000,
            "{}",
            chunks.len()
        );
    }
}
