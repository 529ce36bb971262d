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

#[test]
fn one_far_segment_does_not_slow_the_others() {
    let mut gaps = vec![(1, 3, false); 4500];
    gaps.push((1 << 40, 1, false));
    let index = index(&gaps);
    for sector in 0..20_000 {
        assert_eq!(
            index.find(sector).is_some(),
            sector % 4 != 0 && sector < 18_000
        );
    }
    assert!(index.search.window() <= 16, "{}", index.search.window());
}
