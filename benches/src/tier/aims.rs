//! What issue 6 asks of cold starts, beside what was measured.

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
    for (place, most) in [(Place::HotFiles, 11.8), (Place::HotBlocks, 6.0)] {
        let bytes = match place {
            Place::HotFiles => percent(|footprint| footprint.hot_files),
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

#[cfg(test)]
mod tests {
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
        ];
        let footprint = Footprint {
            image: "one".to_owned(),
            category: Category::Language,
            all: 1000,
            hot_files: 100,
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
            (Some(310.0 / 101.0), Some(true)),
            (Some(1.01), Some(true)),
            (Some(7.0), Some(false)),
        ];
        assert_eq!(measured, expected);
    }
}
