//! What an engine makes of links: times in virtual time, and bytes.

use std::time::Duration;

use fetch::testing::{Behaviour, Line, Report, Simulation, Step};
use fetch::{Config, Lane, Outcome, Peer, Piece, Priority, Server, Verdict};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// 1 Gbit/s.
const GIGABIT: u64 = 125_000_000;
const CHUNK: u32 = 64 << 10;

fn pieces(keys: std::ops::Range<u32>) -> Vec<Piece<u32>> {
    keys.map(|key| Piece { key, bytes: CHUNK }).collect()
}

fn want(keys: std::ops::Range<u32>, priority: Priority) -> Step {
    Step::Want {
        pieces: pieces(keys),
        priority,
        patience: 60 * SECOND,
    }
}

/// The time for chunks over a gigabit, after a round trip of 20 ms.
fn floor(chunks: u32) -> Duration {
    20 * MS + SECOND * chunks * CHUNK / u32::try_from(GIGABIT).expect("fits")
}

/// Two connections to one server, over one line of 20 ms and a gigabit.
fn one_server(simulation: &mut Simulation, habits: &Behaviour) -> [Peer; 2] {
    let line = simulation.line(Line::new(20 * MS, GIGABIT));
    [Lane::Demand, Lane::Background]
        .map(|lane| simulation.peer(Server(0), lane, line, habits.clone()))
}

/// Two servers, each with a line of 20 ms and a gigabit of its own.
fn two_servers(first: Behaviour) -> Simulation {
    let mut simulation = Simulation::new(Config::default(), 1);
    for (server, habits) in [(0, first), (1, Behaviour::default())] {
        let line = simulation.line(Line::new(20 * MS, GIGABIT));
        simulation.peer(Server(server), Lane::Any, line, habits);
    }
    simulation
}

#[test]
fn a_batch_on_demand_fills_the_line() {
    let mut simulation = Simulation::new(Config::default(), 1);
    one_server(&mut simulation, &Behaviour::default());
    simulation.at(Duration::ZERO, want(0..500, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 500);
    assert_eq!(report.counts.duplicates, 0);
    assert!(report.last() <= floor(500) * 13 / 10, "{:?}", report.last());
    assert!(report.counts.requests <= 40, "{:?}", report.counts);
}

#[test]
fn a_demand_beside_a_full_stream_takes_two_round_trips() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let [_, background] = one_server(&mut simulation, &Behaviour::default());
    let stream = Step::Stream {
        peer: background,
        pieces: pieces(0..1000),
    };
    simulation.at(Duration::ZERO, stream);
    // Far behind, soon to come, and not in the stream at all.
    for (at, key) in [(100, 900), (150, 290), (200, 5000)] {
        simulation.at(at * MS, want(key..key + 1, Priority::Demand));
    }
    let report = simulation.run();
    for (at, key) in [(100, 900), (150, 290), (200, 5000)] {
        let ended = report.of(key).expect("it was wanted");
        assert_eq!(ended.verdict, Verdict::Here);
        assert!(ended.at <= at * MS + 40 * MS, "{key}: {ended:?}");
    }
    // What is far behind was skipped in the stream; what comes soon was not requested.
    assert_eq!((report.counts.skips, report.counts.requests), (1, 2));
    assert_eq!(report.counts.duplicates, 0);
    assert_eq!(report.published, 1001);
}

/// A reader who wants what a stream of 200 chunks brings in another order, over a line that takes 42 ms for
/// each, from a server that promotes chunks or not.
fn a_reader_in_another_order(promotes: bool) -> (fetch::Counts, Duration) {
    let mut simulation = Simulation::new(Config::default(), 1);
    let line = simulation.line(Line::new(20 * MS, GIGABIT / 80));
    let [_, background] = [Lane::Demand, Lane::Background]
        .map(|lane| simulation.peer(Server(0), lane, line, Behaviour::default()));
    if promotes {
        simulation.allow_promotion(background);
    }
    let stream = Step::Stream {
        peer: background,
        pieces: pieces(0..200),
    };
    simulation.at(Duration::ZERO, stream);
    let read = [150, 120, 199, 130, 180, 131, 132, 190, 110, 140];
    for (at, key) in (0_u32..).zip(read) {
        simulation.at(
            100 * MS + 400 * at * MS,
            want(key..key + 1, Priority::Demand),
        );
    }
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), read.len());
    let waits = (0_u32..).zip(read).map(|(at, key)| {
        let ended = report.of(key).expect("it was wanted");
        ended.at.saturating_sub(100 * MS + 400 * at * MS)
    });
    (report.counts, waits.max().unwrap_or_default())
}

#[test]
fn what_a_stream_brings_too_late_is_promoted_and_comes_once() {
    let (counts, longest) = a_reader_in_another_order(true);
    assert_eq!((counts.requests, counts.duplicates), (0, 0), "{counts:?}");
    assert!(counts.reordered >= 6, "{counts:?}");
    assert!(longest < 150 * MS, "{longest:?}");
    // A server of an earlier release is asked for each of them.
    let (counts, _) = a_reader_in_another_order(false);
    assert_eq!(counts.reordered, 0);
    assert!(counts.requests >= 6, "{counts:?}");
}

/// On a line on which a piece takes half a millisecond, 60 ms without one are many round trips. They are what a busy
/// machine, or a piece that does not compress, takes.
#[test]
fn a_stream_that_pauses_for_a_moment_is_waited_for() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let line = simulation.line(Line::new(MS, GIGABIT));
    let habits = Behaviour {
        stalls: Some(50 * MS..110 * MS),
        ..Behaviour::default()
    };
    let [_, background] = [Lane::Demand, Lane::Background]
        .map(|lane| simulation.peer(Server(0), lane, line, habits.clone()));
    simulation.allow_promotion(background);
    let stream = Step::Stream {
        peer: background,
        pieces: pieces(0..1000),
    };
    simulation.at(Duration::ZERO, stream);
    simulation.at(55 * MS, want(900..901, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 1);
    assert_eq!(
        (report.counts.requests, report.counts.duplicates),
        (0, 0),
        "{:?}",
        report.counts
    );
}

#[test]
fn whoever_follows_a_stream_requests_nothing() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let [_, background] = one_server(&mut simulation, &Behaviour::default());
    let stream = Step::Stream {
        peer: background,
        pieces: pieces(0..200),
    };
    simulation.at(Duration::ZERO, stream);
    simulation.at(Duration::ZERO, want(0..200, Priority::Plan));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 200);
    assert_eq!((report.counts.requests, report.counts.duplicates), (0, 0));
}

#[test]
fn a_demand_does_not_wait_for_a_fill() {
    let mut simulation = Simulation::new(Config::default(), 1);
    one_server(&mut simulation, &Behaviour::default());
    simulation.at(Duration::ZERO, want(0..2000, Priority::Fill));
    for nth in 0..10 {
        let key = 5000 + nth;
        simulation.at((200 + 50 * nth) * MS, want(key..key + 1, Priority::Demand));
    }
    let report = simulation.run();
    for nth in 0..10 {
        let ended = report.of(5000 + nth).expect("it was wanted");
        assert!(ended.at <= (200 + 50 * nth) * MS + 40 * MS, "{ended:?}");
    }
    assert_eq!(report.counts.duplicates, 0, "{:?}", report.counts);
    assert!(report.last() <= floor(2010) * 13 / 10);
}

#[test]
fn a_demand_for_a_queued_fill_overtakes_the_queue() {
    let mut simulation = Simulation::new(Config::default(), 1);
    one_server(&mut simulation, &Behaviour::default());
    simulation.at(Duration::ZERO, want(0..2000, Priority::Fill));
    simulation.at(100 * MS, want(1900..1901, Priority::Demand));
    let report = simulation.run();
    let ended = report.of(1900).expect("it was wanted");
    assert!(ended.at <= 140 * MS, "{ended:?}");
    assert_eq!((report.counts.joins, report.counts.promotions), (1, 1));
    assert_eq!((report.counts.duplicates, report.published), (0, 2000));
}

#[test]
fn a_server_that_dies_is_replaced_by_another() {
    let mut simulation = two_servers(Behaviour {
        dies: Some(80 * MS..3600 * SECOND),
        ..Behaviour::default()
    });
    simulation.at(Duration::ZERO, want(0..500, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 500);
    // The other one's line alone is what is left.
    assert!(report.last() <= floor(500) * 3 / 2, "{:?}", report.last());
}

#[test]
fn a_server_that_stalls_is_replaced_by_another() {
    let mut simulation = two_servers(Behaviour {
        stalls: Some(80 * MS..5080 * MS),
        ..Behaviour::default()
    });
    simulation.at(Duration::ZERO, want(0..1500, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 1500);
    assert!(report.last() <= floor(1500) * 3 / 2, "{:?}", report.last());
    assert_eq!(report.counts.stalls, 1);
}

#[test]
fn single_reads_hardly_notice_a_stall_where_another_server_can_be_asked() {
    let mut simulation = two_servers(Behaviour {
        stalls: Some(500 * MS..5500 * MS),
        ..Behaviour::default()
    });
    for nth in 0..100 {
        simulation.at(nth * 10 * MS, want(nth..nth + 1, Priority::Demand));
    }
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 100);
    for nth in 0..100 {
        let ended = report.of(nth).expect("it was wanted");
        assert!(ended.at <= nth * 10 * MS + 200 * MS, "{ended:?}");
    }
    assert_eq!(report.counts.stalls, 1);
}

/// Two servers with two connections each, on lines of their own; the first one has this habit, and streams what a
/// start needs, which takes half a second.
fn a_planned_start(first: Behaviour) -> Report {
    let mut simulation = Simulation::new(Config::default(), 1);
    let mut peers = Vec::new();
    for (server, habits) in [(0, first), (1, Behaviour::default())] {
        let line = simulation.line(Line::new(20 * MS, GIGABIT));
        for lane in [Lane::Demand, Lane::Background] {
            peers.push(simulation.peer(Server(server), lane, line, habits.clone()));
        }
    }
    let stream = Step::Stream {
        peer: peers[1],
        pieces: pieces(0..1000),
    };
    simulation.at(Duration::ZERO, stream);
    // Who replays the plan, and a program that is a little behind.
    simulation.at(Duration::ZERO, want(0..1000, Priority::Plan));
    for nth in 0..40 {
        let key = nth * 20;
        simulation.at(
            30 * MS + nth * 12 * MS,
            want(key..key + 1, Priority::Demand),
        );
    }
    simulation.run()
}

#[test]
fn a_stream_that_stalls_or_breaks_off_is_continued_by_another_server() {
    let good = a_planned_start(Behaviour::default());
    assert_eq!((good.counts.requests, good.counts.stalls), (0, 0));
    let span = Some(200 * MS..5200 * MS);
    let stalls = Behaviour {
        stalls: span.clone(),
        ..Behaviour::default()
    };
    let dies = Behaviour {
        dies: span,
        ..Behaviour::default()
    };
    for habits in [stalls, dies] {
        let report = a_planned_start(habits);
        assert_eq!(report.published, good.published);
        assert_eq!(report.ends(Verdict::Here), report.ended.len());
        let (last, aim) = (report.last(), good.last() * 3 / 2);
        assert!(last <= aim, "{last:?} of {aim:?}: {:?}", report.counts);
    }
}

#[test]
fn a_server_that_lies_is_found_out_and_left() {
    let mut simulation = two_servers(Behaviour {
        every: vec![(1, Outcome::Wrong)],
        ..Behaviour::default()
    });
    simulation.at(Duration::ZERO, want(0..500, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 500);
    assert!(report.counts.wrong <= 64, "{:?}", report.counts);
    assert!(report.last() <= floor(500) * 3 / 2, "{:?}", report.last());
}

#[test]
fn a_silent_service_costs_a_read_half_a_second_once() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let habits = Behaviour {
        stalls: Some(SECOND..3600 * SECOND),
        ..Behaviour::default()
    };
    one_server(&mut simulation, &habits);
    // So that the round trip is known well.
    for nth in 0..50 {
        simulation.at(nth * 15 * MS, want(nth..nth + 1, Priority::Demand));
    }
    for (at, key) in [(1000, 100), (1800, 101)] {
        simulation.at(at * MS, want(key..key + 1, Priority::Demand));
    }
    let report = simulation.run();
    let first = report.of(100).expect("it was wanted");
    assert_eq!(first.verdict, Verdict::Away);
    assert!(first.at <= 1000 * MS + 1100 * MS, "{first:?}");
}

#[test]
fn a_slow_line_is_not_a_dead_one() {
    let mut simulation = Simulation::new(Config::default(), 1);
    // 1 Mbit/s: one chunk takes half a second, the queue half a minute.
    let line = simulation.line(Line::new(20 * MS, 125_000));
    simulation.peer(Server(0), Lane::Demand, line, Behaviour::default());
    simulation.peer(Server(0), Lane::Background, line, Behaviour::default());
    simulation.at(Duration::ZERO, want(0..60, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 60);
    assert!(report.carried_bytes <= u64::from(CHUNK) * 72);
}

#[test]
fn two_lines_are_used_together() {
    let mut simulation = two_servers(Behaviour::default());
    simulation.at(Duration::ZERO, want(0..2000, Priority::Fill));
    let report = simulation.run();
    assert!(
        report.last() <= floor(1000) * 13 / 10,
        "{:?}",
        report.last()
    );
}

#[test]
fn a_stream_that_breaks_off_is_completed_by_requests() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let [_, background] = one_server(
        &mut simulation,
        &Behaviour {
            every: vec![(7, Outcome::Failed)],
            ..Behaviour::default()
        },
    );
    let stream = Step::Stream {
        peer: background,
        pieces: pieces(1..50),
    };
    simulation.at(Duration::ZERO, stream);
    simulation.at(Duration::ZERO, want(1..50, Priority::Plan));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 42);
    assert_eq!(report.ends(Verdict::Failed), 7);
    // Each of the seven once in the stream and three times more.
    assert_eq!(report.counts.retries, 21);
}

#[test]
fn nobody_waits_beyond_the_deadline() {
    let mut simulation = Simulation::new(Config::default(), 1);
    one_server(
        &mut simulation,
        &Behaviour {
            forgets_every: Some(1),
            ..Behaviour::default()
        },
    );
    simulation.at(
        MS,
        Step::Want {
            pieces: pieces(0..3),
            priority: Priority::Demand,
            patience: 100 * MS,
        },
    );
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Late), 3);
    assert_eq!(report.last(), 101 * MS);
}

#[test]
fn over_its_bounds_an_engine_refuses() {
    let config = Config {
        flights: 10,
        waiting: 12,
        tickets: 2,
        ..Config::default()
    };
    let mut simulation = Simulation::new(config, 1);
    one_server(&mut simulation, &Behaviour::default());
    simulation.at(Duration::ZERO, want(0..11, Priority::Demand));
    simulation.at(Duration::ZERO, want(0..3, Priority::Demand));
    simulation.at(Duration::ZERO, want(0..1, Priority::Demand));
    let report = simulation.run();
    // One flight, one waiting piece and one ticket too many.
    assert_eq!((report.ends(Verdict::Busy), report.counts.refused), (3, 3));
    assert_eq!(report.ends(Verdict::Here), 12);
}

#[test]
fn what_is_queued_for_a_dead_server_ends_at_once() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let habits = Behaviour {
        dies: Some(100 * MS..3600 * SECOND),
        ..Behaviour::default()
    };
    one_server(&mut simulation, &habits);
    simulation.at(Duration::ZERO, want(0..1000, Priority::Fill));
    let report = simulation.run();
    assert!(report.ends(Verdict::Away) > 500);
    assert_eq!(report.last(), 100 * MS);
}
