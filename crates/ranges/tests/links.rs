//! What the engine makes of a far registry with a fetcher's bounds: requests are counted, and waits are in virtual time.

use std::ops::Range;
use std::time::Duration;

use fetch::testing::{Behaviour, Line, Report, Simulation, Step};
use fetch::{Lane, Piece, Priority, Server, Verdict};
use ranges::CONFIG;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RTT: Duration = Duration::from_millis(20);
/// 25 Mbit/s.
const RATE: u32 = 3_125_000;
const CHUNK: u32 = 4096;
/// Chunks of 1 MiB.
const MIB: u32 = 256;

fn want(keys: Range<u32>, priority: Priority) -> Step {
    let bytes = CHUNK;
    Step::Want {
        pieces: keys.map(|key| Piece { key, bytes }).collect(),
        priority,
        patience: 120 * SECOND,
    }
}

/// How long the line takes for chunks, behind a round trip.
fn floor(chunks: u32) -> Duration {
    RTT + SECOND * chunks * CHUNK / RATE
}

/// A registry behind a line of 25 Mbit/s and 20 ms, and who wants what when.
fn run(steps: &[(Duration, Step)]) -> Report {
    let mut simulation = Simulation::new(CONFIG, 1);
    let line = simulation.line(Line::new(RTT, RATE.into()));
    for lane in [Lane::Demand, Lane::Background] {
        simulation.peer(Server(0), lane, line, Behaviour::default());
    }
    for (at, step) in steps {
        simulation.at(*at, step.clone());
    }
    simulation.run()
}

#[test]
fn a_fill_is_few_long_requests_and_the_line_is_full() {
    let report = run(&[(Duration::ZERO, want(0..100 * MIB, Priority::Fill))]);
    assert_eq!(report.ends(Verdict::Here), 100 * 256);
    assert_eq!(report.counts.duplicates, 0);
    // One for what the line takes 0.3 s for.
    assert!(report.counts.requests <= 125, "{:?}", report.counts);
    assert!(
        report.last() <= floor(100 * MIB) * 105 / 100,
        "{:?}",
        report.last()
    );
}

#[test]
fn a_demand_beside_a_fill_takes_two_round_trips() {
    let mut steps = vec![(Duration::ZERO, want(0..20 * MIB, Priority::Fill))];
    let wanted: Vec<_> = (0..10)
        .map(|nth| (SECOND + nth * 170 * MS, 100_000 + nth * 4))
        .collect();
    steps.extend(
        wanted
            .iter()
            .map(|(at, key)| (*at, want(*key..key + 4, Priority::Demand))),
    );
    let report = run(&steps);
    for (at, key) in wanted {
        let ended = report.of(key + 3).expect("it was wanted");
        assert!(ended.at <= at + 2 * RTT, "{at:?}: {ended:?}");
    }
    assert_eq!(report.counts.duplicates, 0);
}

#[test]
fn what_is_at_the_end_of_a_long_request_does_not_wait_for_its_beginning() {
    let mut steps = vec![(Duration::ZERO, want(0..20 * MIB, Priority::Fill))];
    // Everywhere in what is on its way or queued, four chunks together as a read of 16 KiB has them.
    let wanted: Vec<_> = (0..40_u32)
        .map(|nth| (SECOND + nth * 100 * MS, 700 + nth * 97))
        .collect();
    steps.extend(
        wanted
            .iter()
            .map(|(at, key)| (*at, want(*key..key + 4, Priority::Demand))),
    );
    let report = run(&steps);
    for (at, key) in &wanted {
        let ended = report.of(key + 3).expect("it was wanted");
        assert!(ended.at <= *at + 4 * RTT, "{at:?}: {ended:?}");
    }
    let counts = report.counts;
    assert!(counts.overtakes > 0, "{counts:?}");
    // Only what overtook comes twice.
    assert!(counts.duplicates <= counts.overtakes, "{counts:?}");
    assert_eq!(report.published, 20 * 256);
}

#[test]
fn a_plan_is_requested_at_once_beside_a_fill_and_nothing_is_filled_before_it_is_on_its_way() {
    let report = run(&[
        (Duration::ZERO, want(0..40 * MIB, Priority::Fill)),
        (SECOND, want(100_000..100_000 + 8 * MIB, Priority::Plan)),
    ]);
    let last = report.of(100_000 + 8 * MIB - 1).expect("it was wanted");
    // Behind what had been requested of the fill.
    let ahead = floor(MIB + MIB / 8);
    assert!(
        last.at <= SECOND + ahead + floor(8 * MIB) * 105 / 100,
        "{last:?}"
    );
}

/// The start of `docs/results/block.md`: 16.2 MB in 182 ranges, and then all of the image.
#[test]
fn a_plan_takes_what_the_line_takes_with_a_fill_behind_it() {
    let planned: Vec<_> = (0..182_u32)
        .flat_map(|nth| nth * 150..nth * 150 + 22)
        .collect();
    let chunks = u32::try_from(planned.len()).expect("it was wanted");
    let pieces: Vec<_> = planned
        .iter()
        .map(|key| Piece {
            key: *key,
            bytes: CHUNK,
        })
        .collect();
    let plan = Step::Want {
        pieces,
        priority: Priority::Plan,
        patience: 120 * SECOND,
    };
    let report = run(&[
        (Duration::ZERO, plan),
        (MS, want(0..100 * MIB, Priority::Fill)),
    ]);
    let last = planned
        .iter()
        .map(|key| report.of(*key).expect("it was wanted").at)
        .max()
        .expect("it was wanted");
    assert!(
        last <= floor(chunks) * 105 / 100,
        "{last:?} of {:?}",
        floor(chunks)
    );
    assert_eq!(report.counts.duplicates, 0);
}
