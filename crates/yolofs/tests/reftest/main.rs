//! The file system against an obvious model of one: random trees, random operations, every answer
//! compared. Files change under it, and the cache fails whenever it likes.

#![expect(clippy::unwrap_used, reason = "all of this is tests")]

mod harness;
mod model;
mod ops;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_of_the_model(
        specs in prop::collection::vec(model::any_spec(), 0..24),
        cache_calls in prop_oneof![Just(0_u64), 0..40_u64, Just(u64::MAX)],
        operations in prop::collection::vec(ops::any_operation(), 1..60),
    ) {
        let mut harness = harness::Harness::new(&specs, cache_calls);
        for operation in &operations {
            harness.run(operation);
        }
        harness.finish();
    }
}
