//! Limits of the catalog, on the disk and in memory.
//!
//! Clients decide what a mirror learns: a manifest of 4 MiB may name fifty thousand blobs, and any
//! number of tags may point to it. So each part of the catalog has a limit, and the file has one for
//! the overhead of the database.

/// The smallest and the largest bound of the file.
const FILE_MIN: u64 = 8 << 20;
const FILE_MAX: u64 = 128 << 20;
/// Which part of what blobs may take the file may have beside them.
const FILE_PART: u64 = 16;
/// Manifests that are kept. An image has some 2 KiB of them.
const COUNT_MAX: usize = 10_000;
/// Tags that are kept.
const TAGS_MAX: u64 = 20_000;
/// Bytes of a tag with its repository: usual ones have a third.
const TAG_BYTES: u64 = 512;
/// Bytes of what a registry has said: a page of a database is two thirds full.
const PROOF_BYTES: u64 = 64;
/// What registries have said that is kept.
const PROOFS_MAX: u64 = 200_000;
/// What a manifest costs beside its bytes: its names, and its place in memory.
const MANIFEST_BYTES: u64 = 1024;
/// What each blob costs that it names: its place in memory.
const CHILD_BYTES: u64 = 256;
/// Above this a manifest is a long one. Real ones have some KiB.
const LONG_COST: u64 = 128 << 10;
/// Bytes of a media type. Longer ones are none.
const MEDIA_TYPE_MAX: usize = 255;

/// The size limits of a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Bytes of its file.
    pub(super) file: u64,
    /// What all manifests may cost, and the long ones of them.
    pub(super) manifests: u64,
    pub(super) long: u64,
    /// How many of each there may be.
    pub(super) count: usize,
    pub(super) tags: u64,
    pub(super) proofs: u64,
}

impl Bounds {
    /// Returns the bounds of a catalog beside blobs that may take so many bytes.
    pub(super) fn of(budget: u64) -> Self {
        let file = (budget / FILE_PART).clamp(FILE_MIN, FILE_MAX);
        // A database that is written to all the time is up to twice as long as its content.
        let content = file / 2;
        Self {
            file,
            manifests: content / 2,
            long: content / 8,
            count: COUNT_MAX,
            tags: (content / 4 / TAG_BYTES).min(TAGS_MAX),
            proofs: (content / 4 / PROOF_BYTES).min(PROOFS_MAX),
        }
    }

    /// Returns what a manifest of so many bytes costs that names so many blobs.
    pub(super) fn cost(bytes: usize, children: usize) -> u64 {
        // Long values are stored in pages whose number is a power of two.
        let stored = if bytes > 2048 {
            bytes.next_power_of_two()
        } else {
            bytes
        };
        MANIFEST_BYTES + stored as u64 + CHILD_BYTES * children as u64
    }

    pub(super) const fn is_long(cost: u64) -> bool {
        cost > LONG_COST
    }

    /// Returns whether a manifest of this size can be stored at all.
    pub(super) const fn take(&self, cost: u64) -> bool {
        cost <= if Self::is_long(cost) {
            self.long
        } else {
            self.manifests
        }
    }

    /// Returns whether something can be of this media type.
    pub(super) const fn take_type(media_type: &str) -> bool {
        media_type.len() <= MEDIA_TYPE_MAX
    }
}
