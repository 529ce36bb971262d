//! What fills a cache: long requests behind all that is wanted more.

use std::time::Duration;

use fetch::testing::{Behaviour, Line, Simulation, Step};
use fetch::{Action, Config, Engine, Lane, Outcome, Piece, Priority, Server, Verdict, Via};

const MS: Duration = Duration::from_millis(1);
const CHUNK: u32 = 64 << 10;

fn pieces(keys: std::ops::Range<u32>) -> Vec<Piece<u32>> {
    keys.map(|key| Piece { key, bytes: CHUNK }).collect()
}

/// An engine with two connections to a server, and what it requests of each.
fn engine() -> Engine<u32> {
    let mut engine = Engine::new(Config::default());
    for lane in [Lane::Demand, Lane::Background] {
        let peer = engine.add_peer(Server(0), lane);
        engine.on_peer_up(Duration::ZERO, peer, Some(20 * MS));
    }
    engine
}

fn want(engine: &mut Engine<u32>, now: Duration, keys: std::ops::Range<u32>, priority: Priority) {
    engine.want(now, &pieces(keys), priority, now + 60_000 * MS);
}

fn requested(engine: &mut Engine<u32>, now: Duration) -> Vec<(Priority, Vec<u32>)> {
    let action = |action| match action {
        Action::Request {
            priority, pieces, ..
        } => Some((priority, pieces.iter().map(|piece| piece.key).collect())),
        _ => None,
    };
    std::iter::from_fn(|| engine.poll(now))
        .filter_map(action)
        .collect()
}

#[test]
fn a_plan_is_requested_at_once_and_the_fill_continues_when_all_of_it_is_on_its_way() {
    let mut engine = engine();
    want(&mut engine, MS, 0..1000, Priority::Fill);
    assert!(!requested(&mut engine, MS).is_empty());
    // More than a window: what is left of it keeps the fill from going on.
    want(&mut engine, 2 * MS, 5000..5100, Priority::Plan);
    let sent = requested(&mut engine, 2 * MS);
    assert!(!sent.is_empty(), "the plan waits for the fill");
    assert!(sent.iter().all(|(priority, _)| *priority == Priority::Plan));
}

#[test]
fn a_fill_takes_few_requests_at_the_limit_of_what_may_be_on_its_way() {
    let config = Config {
        in_flight_bytes: 4 << 20,
        ..Config::default()
    };
    let mut simulation = Simulation::new(config, 1);
    let line = simulation.line(Line::new(20 * MS, 125_000_000));
    for lane in [Lane::Demand, Lane::Background] {
        simulation.peer(Server(0), lane, line, Behaviour::default());
    }
    simulation.at(
        Duration::ZERO,
        Step::Want {
            pieces: pieces(0..1000),
            priority: Priority::Fill,
            patience: 60_000 * MS,
        },
    );
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 1000);
    // Each of three eighths of the limit, which is 24 pieces, but for the first ones, on a line that was not measured.
    let requests = report.counts.requests;
    assert!(requests <= 45, "{requests} requests");
}

#[test]
fn a_readahead_behind_a_fill_takes_few_requests_at_the_limit_of_what_may_be_on_its_way() {
    let run = |plan: Option<(u32, u32)>| {
        let config = Config {
            in_flight_bytes: 16 << 20,
            window_cap_bytes: 16 << 20,
            ..Config::default()
        };
        let mut simulation = Simulation::new(config, 1);
        let line = simulation.line(Line::new(20 * MS, 250_000_000));
        for lane in [Lane::Demand, Lane::Background] {
            simulation.peer(Server(0), lane, line, Behaviour::default());
        }
        let fill = (0, 10_000..11_000, Priority::Fill);
        let plan = plan.map(|(at, count)| (at, 0..count, Priority::Plan));
        for (at, keys, priority) in [Some(fill), plan].into_iter().flatten() {
            let pieces = keys.map(|key| Piece {
                key,
                bytes: 128 << 10,
            });
            let want = Step::Want {
                pieces: pieces.collect(),
                priority,
                patience: 60_000 * MS,
            };
            simulation.at(at * MS, want);
        }
        simulation.run().counts.requests
    };
    let alone = run(None);
    // Whenever it comes.
    for at in (100..170).step_by(7) {
        for count in [20, 60, 200] {
            let requests = run(Some((at, count))) - alone;
            let few = u64::from(count.div_ceil(64)) + 6;
            assert!(
                requests <= few,
                "{count} chunks at {at} ms: {requests} more than the {alone} of the fill"
            );
        }
    }
}

#[test]
fn a_demand_for_the_end_of_a_long_request_is_requested_on_the_connection_for_those_who_wait() {
    let mut engine = engine();
    want(&mut engine, MS, 0..1000, Priority::Fill);
    let sent = requested(&mut engine, MS);
    let (first, last) = (sent[0].1[0], *sent[0].1.last().expect("pieces"));
    assert!(last - first > 8, "{sent:?}");
    // What comes next anyway is waited for.
    want(&mut engine, 2 * MS, first..first + 1, Priority::Demand);
    assert_eq!(requested(&mut engine, 2 * MS), []);
    want(&mut engine, 2 * MS, last..last + 1, Priority::Demand);
    assert_eq!(
        requested(&mut engine, 2 * MS),
        [(Priority::Demand, vec![last])]
    );
    let counts = engine.counts();
    assert_eq!((counts.overtakes, counts.hedges), (1, 0));
}

#[test]
fn what_overtook_a_long_request_ends_once() {
    let mut engine = engine();
    want(&mut engine, MS, 0..1000, Priority::Fill);
    let Some(Action::Request {
        peer,
        request,
        pieces,
        ..
    }) = engine.poll(MS)
    else {
        panic!("nothing is requested");
    };
    let last = *pieces.last().expect("pieces");
    want(
        &mut engine,
        2 * MS,
        last.key..last.key + 1,
        Priority::Demand,
    );
    let Some(Action::Request {
        peer: quick,
        request: own,
        ..
    }) = engine.poll(2 * MS)
    else {
        panic!("it does not overtake");
    };
    let (now, here) = (30 * MS, Outcome::Here);
    let mut done = 0;
    for (peer, request) in [(quick, own), (peer, request)] {
        let via = Via::Request(request);
        let _arrival = engine.on_piece(now, peer, via, last.key, here, CHUNK);
        let actions: Vec<_> = std::iter::from_fn(|| engine.poll(now)).collect();
        let is_end = |action: &&Action<u32>| matches!(action, Action::Done { key, verdict: Verdict::Here, .. } if *key == last.key);
        done += actions.iter().filter(is_end).count();
    }
    // For the fill and for who waited.
    assert_eq!(done, 2);
    assert_eq!(engine.counts().duplicates, 1);
}

#[test]
fn what_a_server_forgets_of_a_fill_is_requested_again() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let line = simulation.line(Line::new(20 * MS, 125_000_000));
    let habits = Behaviour {
        forgets_every: Some(7),
        ..Behaviour::default()
    };
    simulation.peer(Server(0), Lane::Any, line, habits);
    simulation.at(
        Duration::ZERO,
        Step::Want {
            pieces: pieces(1..50),
            priority: Priority::Fill,
            patience: 60_000 * MS,
        },
    );
    // Other answers show that the server is there.
    for nth in 0..100 {
        let key = 1000 + nth * 7 - 1;
        simulation.at(
            nth * 100 * MS,
            Step::Want {
                pieces: pieces(key..key + 1),
                priority: Priority::Demand,
                patience: 1000 * MS,
            },
        );
    }
    let report = simulation.run();
    assert_eq!(report.counts.stalls, 0);
    assert_eq!(report.ends(Verdict::Here), 42 + 100);
    assert_eq!(report.ends(Verdict::Failed), 7, "{:?}", report.counts);
    assert_eq!(report.counts.retries, 21);
}
