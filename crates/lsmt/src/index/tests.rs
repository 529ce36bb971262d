//! The index beside a naive one: a vector with an entry for each sector.

use proptest::prelude::*;

use super::*;
use crate::segment::Content;

fn content(zeros: bool) -> Content {
    match zeros {
        true => Content::Zeros,
        false => Content::Data,
    }
}

/// Segments with these gaps before them and lengths.
fn index(gaps: &[(u64, u64, bool)]) -> Index {
    let mut at = 0;
    let mut segments = Vec::new();
    for (number, &(gap, len, zeros)) in gaps.iter().enumerate() {
        at += gap;
        segments.push(Segment::new(
            at,
            len,
            8 + 100 * number as u64,
            content(zeros),
        ));
        at += len;
    }
    Index::new(segments).unwrap()
}

fn gaps() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let gap = prop_oneof![8 => 0..4_u64, 1 => 0..40_u64, 1 => Just(5000_u64)];
    prop::collection::vec((gap, 1..9_u64, any::<bool>()), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn finds_what_a_walk_finds(gaps in gaps()) {
        let index = index(&gaps);
        let end = index.segments().last().map_or(10, |last| last.end() + 10);
        for sector in 0..end {
            let walked = index.segments().iter().copied()
                .find(|segment| segment.offset() <= sector && sector < segment.end());
            prop_assert_eq!(index.find(sector), walked, "sector {}", sector);
        }
    }

    #[test]
    fn parts_are_those_of_each_sector(gaps in gaps(), from in 0..300_u64, len in 0..300_u64) {
        let index = index(&gaps);
        let mut parts = index.within(from..from + len);
        let mut part = parts.next();
        for sector in from..from + len {
            let found = index.find(sector);
            let here = part.filter(|part| part.offset() <= sector);
            prop_assert_eq!(found.is_some(), here.is_some());
            if let (Some(found), Some(here)) = (found, here) {
                prop_assert_eq!(found.clipped(sector, sector + 1), here.clipped(sector, sector + 1));
                if here.end() == sector + 1 {
                    part = parts.next();
                }
            }
        }
        prop_assert_eq!(part, None);
    }

    #[test]
    fn the_topmost_layer_wins(layers in prop::collection::vec(gaps(), 1..7)) {
        let layers: Vec<_> = layers.iter().map(|gaps| index(gaps)).collect();
        let merged = Index::merged(&layers.iter().collect::<Vec<_>>()).unwrap();
        for sector in 0..3000 {
            let wanted = layers.iter().enumerate().find_map(|(tag, layer)| {
                let found = layer.find(sector)?.clipped(sector, sector + 1);
                Some(found.tagged(u8::try_from(tag).unwrap()))
            });
            let found = merged.find(sector).map(|found| found.clipped(sector, sector + 1));
            prop_assert_eq!(found, wanted);
        }
        // The merged ones are in order, too.
        prop_assert!(Index::new(merged.segments().to_vec()).is_ok());
    }
}

#[test]
fn refuses_disorder_and_high_stacks() {
    let data = |offset, len| Segment::new(offset, len, 8, Content::Data);
    assert!(Index::new(vec![data(0, 4), data(3, 4)]).is_err());
    assert!(Index::new(vec![data(8, 4), data(0, 4)]).is_err());
    assert!(Index::new(vec![data(0, 0)]).is_err());
    assert!(Index::new(vec![data(OFFSET_END - 1, 2)]).is_err());
    let empty = Index::default();
    assert!(Index::merged(&[&empty; 255]).is_ok());
    assert!(Index::merged(&[&empty; 256]).is_err());
    assert_eq!(empty.find(0), None);
    assert_eq!(empty.within(0..9).count(), 0);
}

/// Segments at extreme places: a dense run, and a few far before it or behind it.
fn extremes() -> impl Strategy<Value = Vec<Segment>> {
    let run = prop::collection::vec((0..4_u64, 1..9_u64), 0..600);
    let start = prop_oneof![
        Just(0),
        0..10_000_u64,
        Just(1 << 40),
        Just(OFFSET_END - 8000)
    ];
    let far = || prop::collection::btree_set((0..50_u32).prop_map(|bits| 1_u64 << bits), 0..12);
    (run, start, far(), far()).prop_map(|(run, start, low, high)| {
        let mut at = start;
        let run: Vec<_> = run
            .into_iter()
            .map(|(gap, len)| {
                at += gap + len;
                (at - len, len)
            })
            .collect();
        let before = low
            .into_iter()
            .map(|at| (at, 1))
            .filter(|far| far.0 < start);
        let behind = high.into_iter().map(|far| (OFFSET_END - far, 1));
        let mut behind: Vec<_> = behind.filter(|far| far.0 >= at).collect();
        behind.reverse();
        before
            .chain(run)
            .chain(behind)
            .map(|(at, len)| Segment::new(at, len, 8 + at, Content::Data))
            .collect()
    })
}

fn agrees_with_a_walk(segments: &[Segment], sector: u64) -> bool {
    let index = Index::new(segments.to_vec()).unwrap();
    let walked = |at| {
        let has = |segment: &&Segment| segment.offset() <= at && at < segment.end();
        segments.iter().find(has).copied()
    };
    let ends = segments.iter().flat_map(|segment| {
        let (from, to) = (segment.offset(), segment.end());
        [from.saturating_sub(1), from, to - 1, to]
    });
    ends.chain([0, sector, OFFSET_END, 1 << 55, u64::MAX])
        .all(|at| index.find(at) == walked(at))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn finds_at_extremes_what_a_walk_finds(segments in extremes(), sector in any::<u64>()) {
        prop_assert!(agrees_with_a_walk(&segments, sector));
    }
}

#[test]
fn a_dense_million_with_outliers_is_found() {
    let mut starts: Vec<_> = (0..1_000_000)
        .map(|number| (1 << 30) + 3 * number)
        .collect();
    starts.insert(0, 5);
    starts.push(OFFSET_END - 1);
    let segment = |&at: &u64| Segment::new(at, 1, at, Content::Data);
    let index = Index::new(starts.iter().map(segment).collect()).unwrap();
    for at in &starts {
        assert_eq!(index.find(*at), Some(segment(at)));
        assert_eq!(index.find(at + 1), None);
    }
}

#[test]
fn far_segments_do_not_hide_the_others() {
    let mut gaps = vec![(1, 3, false)];
    gaps.push((1 << 40, 1, false));
    gaps.extend(vec![(1, 3, false); 4500]);
    gaps.push((1 << 40, 1, false));
    let index = index(&gaps);
    let start = index.segments()[2].offset() - 1;
    for sector in 0..20_000 {
        assert_eq!(
            index.find(start + sector).is_some(),
            sector % 4 != 0 && sector < 18_000
        );
    }
}

#[test]
fn nothing_is_found_behind_the_largest_device() {
    let mut gaps = vec![(1, 3, false); 4500];
    gaps.push((1 << 40, 1, false));
    let index = index(&gaps);
    for sector in [OFFSET_END, 1 << 60, (1 << 62) + 8, u64::MAX - 8] {
        assert_eq!(index.find(sector), None);
        assert_eq!(index.within(sector..sector + 8).count(), 0, "{sector}");
    }
}

#[test]
fn many_parts_with_few_segments_are_found() {
    for count in [9, 4500, 40_000] {
        let gaps = vec![(1 << 30, 3, false); count];
        let index = index(&gaps);
        for segment in index.segments() {
            assert_eq!(index.find(segment.end() - 1), Some(*segment));
            assert_eq!(index.find(segment.end()), None);
        }
    }
}

/// Segments of which some lie close together, and groups of them far from each other.
fn shapes() -> impl Strategy<Value = Vec<Segment>> {
    let group = (1..3000_u64, 1..200_usize, 1..40_u64, any::<u64>());
    prop::collection::vec(group, 1..20).prop_map(|groups| {
        let mut at = 0;
        let mut segments = Vec::new();
        for (before, count, gaps, mut seed) in groups {
            at += before;
            for _ in 0..count {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                at += (seed >> 33) % gaps;
                let len = (seed >> 50) % 63 + 1;
                segments.push(Segment::new(at, len, 8 + at, Content::Data));
                at += len;
            }
        }
        segments
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn finds_in_groups_what_a_binary_search_finds(segments in shapes()) {
        let index = Index::new(segments.clone()).unwrap();
        let end = segments.last().unwrap().end();
        for sector in (0..end + 100).step_by(3).chain(segments.iter().map(|segment| segment.offset())) {
            let behind = segments.partition_point(|segment| segment.offset() <= sector);
            let last = behind.checked_sub(1).map(|at| segments[at]);
            prop_assert_eq!(index.find(sector), last.filter(|last| sector < last.end()), "{}", sector);
        }
    }
}
