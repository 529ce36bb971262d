//! The aims of pulls and cold starts, beside what was measured.

use super::deploy::{Pull, Strategy};
use super::place::{Footprint, Place, Start, ready};
use crate::aims::Aim;
use crate::report::count;
use crate::rounds::median;

/// Returns the aims of cold starts: of each ratio the middle image's.
#[must_use]
pub fn of_starts(starts: &[Start], footprints: &[Footprint]) -> Vec<Aim> {
    let over_images = |over: Place, under: Place| {
        let ratio = |footprint: &Footprint| {
            let time = |place| ready(starts, &footprint.image, place);
            Some(time(over)? / time(under)?)
        };
        median(&footprints.iter().filter_map(ratio).collect::<Vec<_>>())
    };
    let all: u64 = footprints.iter().map(|footprint| footprint.all).sum();
    let percent = |part: fn(&Footprint) -> u64| {
        let part: u64 = footprints.iter().map(part).sum();
        (all > 0).then(|| 100.0 * count(part) / count(all))
    };
    let mut aims = Vec::new();
    for (place, most) in [
        (Place::HotFiles, 11.8),
        (Place::Mixed, 11.8),
        (Place::HotBlocks, 6.0),
    ] {
        let bytes = match place {
            Place::HotFiles => percent(|footprint| footprint.hot_files),
            Place::Mixed => percent(|footprint| footprint.mixed),
            _ => percent(|footprint| footprint.hot_blocks),
        };
        aims.extend([
            Aim::at_least(
                2.96,
                format!("cold start, {place}: disk's time to theirs"),
                over_images(Place::Disk, place),
            ),
            Aim::at_most(
                1.02,
                format!("cold start, {place}: their time to that of all on NVM"),
                over_images(place, Place::Nvm),
            ),
            Aim::at_most(
                most,
                format!("cold start, {place}: % of the images' bytes on NVM"),
                bytes,
            ),
        ]);
    }
    aims
}

/// Returns the aims of pulls: of sums over all images.
#[must_use]
pub fn of_pulls(pulls: &[Pull]) -> Vec<Aim> {
    let mut images: Vec<_> = pulls.iter().map(|pull| pull.image.as_str()).collect();
    images.sort_unstable();
    images.dedup();
    let sum = |strategy, value: fn(&Pull) -> f64| -> Option<f64> {
        let of = images
            .iter()
            .map(|image| middle(pulls, image, strategy, value));
        of.sum()
    };
    let ratio = |value: fn(&Pull) -> f64, over, under| {
        let (over, under) = (sum(over, value)?, sum(under, value)?);
        (under > 0.0).then(|| over / under)
    };
    let mut aims = Vec::new();
    for ours in [Strategy::Lass, Strategy::Ours] {
        let total = |pull: &Pull| pull.total_ms;
        let storing = ratio(|pull| pull.storing_ms, ours, Strategy::Disk);
        let bytes = ratio(|pull| count(pull.nvm_bytes), ours, Strategy::Nvm);
        aims.extend([
            Aim::at_least(
                90.0,
                format!("pull, {ours}: % less time of storing after the download than on the disk"),
                storing.map(|share| 100.0 * (1.0 - share)),
            ),
            Aim::at_least(
                1.21,
                format!("pull, {ours}: the disk's time to theirs"),
                ratio(total, Strategy::Disk, ours),
            ),
            Aim::at_most(
                1.02,
                format!("pull, {ours}: their time to that of all on NVM"),
                ratio(total, ours, Strategy::Nvm),
            ),
            Aim::at_most(
                71.0,
                format!("pull, {ours}: % of the bytes of all on NVM"),
                bytes.map(|share| 100.0 * share),
            ),
        ]);
    }
    aims.push(Aim::at_least(
        93.0,
        "pull, LASS: % of pulls whose last layer was foreseen by the manifest",
        foreseen(pulls),
    ));
    aims
}

/// Returns of how many pulls in a hundred the last layer was foreseen.
fn foreseen(pulls: &[Pull]) -> Option<f64> {
    let known: Vec<bool> = pulls.iter().filter_map(|pull| pull.foreseen).collect();
    let right = known.iter().filter(|right| **right).count();
    (!known.is_empty()).then(|| 100.0 * count(right as u64) / count(known.len() as u64))
}

/// Returns the middle of what is said of the pulls of an image.
pub(super) fn middle(
    pulls: &[Pull],
    image: &str,
    strategy: Strategy,
    value: fn(&Pull) -> f64,
) -> Option<f64> {
    let of = |pull: &&Pull| pull.image == image && pull.strategy == strategy;
    median(&pulls.iter().filter(of).map(value).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::image::Category;
    use super::*;

    fn start(place: Place, ready_ms: f64) -> Start {
        Start {
            image: "one".to_owned(),
            category: Category::Language,
            place,
            round: 1,
            ready_ms,
            prepare_ms: 0.0,
            disk_reads: 0,
            disk_bytes: 0,
            requests: BTreeMap::new(),
        }
    }

    #[test]
    fn ratios_are_of_medians_and_shares_of_all_bytes() {
        let starts = [
            start(Place::Disk, 900.0),
            start(Place::Disk, 300.0),
            start(Place::Disk, 310.0),
            start(Place::Nvm, 100.0),
            start(Place::HotBlocks, 101.0),
            start(Place::Mixed, 155.0),
        ];
        let footprint = Footprint {
            image: "one".to_owned(),
            category: Category::Language,
            all: 1000,
            hot_files: 100,
            hot_files_overlay: 90,
            mixed: 80,
            mixed_whole_files: 1,
            hot_blocks: 70,
        };
        let measured: Vec<_> = of_starts(&starts, &[footprint])
            .iter()
            .map(|aim| (aim.measured, aim.reached()))
            .collect();
        let expected = [
            (None, None),
            (None, None),
            (Some(10.0), Some(true)),
            (Some(2.0), Some(false)),
            (Some(1.55), Some(false)),
            (Some(8.0), Some(true)),
            (Some(310.0 / 101.0), Some(true)),
            (Some(1.01), Some(true)),
            (Some(7.0), Some(false)),
        ];
        assert_eq!(measured, expected);
    }

    #[test]
    fn pulls_are_compared_by_their_sums() {
        let pull = |image: &str, strategy, total_ms, storing_ms, nvm_bytes| Pull {
            image: image.to_owned(),
            strategy,
            round: 1,
            total_ms,
            storing_ms,
            nvm_bytes,
            foreseen: (strategy == Strategy::Lass).then_some(image == "a"),
        };
        let pulls = [
            pull("a", Strategy::Disk, 400.0, 100.0, 0),
            pull("b", Strategy::Disk, 200.0, 100.0, 0),
            pull("a", Strategy::Lass, 300.0, 10.0, 3),
            pull("b", Strategy::Lass, 100.0, 6.0, 4),
            pull("a", Strategy::Nvm, 300.0, 10.0, 6),
            pull("b", Strategy::Nvm, 100.0, 6.0, 8),
            pull("a", Strategy::Ours, 200.0, 2.0, 0),
            pull("b", Strategy::Ours, 100.0, 0.0, 7),
        ];
        let measured: Vec<_> = of_pulls(&pulls).iter().map(|aim| aim.measured).collect();
        let lass = [92.0, 1.5, 1.0, 50.0].map(Some);
        let ours = [99.0, 2.0, 0.75, 50.0].map(Some);
        assert_eq!(measured[..4], lass);
        assert_eq!(measured[4..8], ours);
        assert_eq!(
            measured[8..],
            [Some(50.0)],
            "of pulls whose last was foreseen"
        );
    }
}
