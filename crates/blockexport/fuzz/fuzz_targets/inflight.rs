//! Resumes from arbitrary memory that an earlier server is said to have left: no panic, and each descriptor at most once.

#![no_main]

use std::collections::BTreeSet;

use blockexport::vhost_user::testing::resume;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((used, region)) = bytes.split_first_chunk() else {
        return;
    };
    let mut region = region.to_vec();
    for version in [None, Some(1)] {
        if let (Some(version), Some(place)) = (version, region.get_mut(8..10)) {
            place.copy_from_slice(&[version, 0]);
        }
        let heads = resume(&region, u16::from_le_bytes(*used)).unwrap_or_default();
        let different: BTreeSet<_> = heads.iter().collect();
        assert_eq!(different.len(), heads.len());
        assert!(heads.iter().all(|head| *head < 16));
    }
});
