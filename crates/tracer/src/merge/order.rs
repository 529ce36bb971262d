//! The order in which to bring blocks back.

use std::collections::HashMap;
use std::num::NonZeroU32;

use blocks::{BlockRange, Extent, FileId};

use super::first_reads::Piece;

/// Returns the pieces as extents in replay order: by bin, then by the file's first use in the
/// bin, then by place. Neighbours of equal bin and stability become one.
pub(super) fn extents(pieces: &[Piece], bin_ms: NonZeroU32) -> Vec<Extent> {
    let bin_us = u64::from(bin_ms.get()) * 1000;
    let bin_of = |piece: &Piece| u32::try_from(piece.at_us / bin_us).unwrap_or(u32::MAX);
    let mut first_use: HashMap<(u32, FileId), u64> = HashMap::new();
    for piece in pieces {
        let first_us = first_use
            .entry((bin_of(piece), piece.file))
            .or_insert(piece.at_us);
        *first_us = piece.at_us.min(*first_us);
    }
    let mut ordered: Vec<(u32, u64, &Piece)> = pieces
        .iter()
        .map(|piece| {
            let bin = bin_of(piece);
            (bin, first_use[&(bin, piece.file)], piece)
        })
        .collect();
    ordered.sort_unstable_by_key(|(bin, first_us, piece)| {
        (*bin, *first_us, piece.file, piece.range.start())
    });
    let mut extents: Vec<Extent> = Vec::new();
    for (bin, _, piece) in ordered {
        match extents.last_mut() {
            Some(last)
                if (last.bin, last.file, last.seen) == (bin, piece.file, piece.seen)
                    && last.range.end() == piece.range.start() =>
            {
                last.range = BlockRange::new(last.range.start(), piece.range.end());
            }
            _ => extents.push(Extent {
                file: piece.file,
                range: piece.range,
                bin,
                seen: piece.seen,
            }),
        }
    }
    extents
}
