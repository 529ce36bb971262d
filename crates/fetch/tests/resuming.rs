//! The plan of a source, of which one stream brings what is lacking, whatever becomes of its sender.

use std::ops::Range;
use std::time::Duration;

use fetch::testing::{Behaviour, Line, Report, Simulation, Step};
use fetch::{
    Action, Arrival, Config, Engine, Lane, Outcome, Peer, Piece, Priority, Server, StreamId,
    Verdict, Via,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// 1 Gbit/s: a chunk takes half a millisecond.
const GIGABIT: u64 = 125_000_000;
const CHUNK: u32 = 64 << 10;
const CHUNKS: u32 = 1000;

fn pieces(keys: Range<u32>) -> Vec<Piece<u32>> {
    keys.map(|key| Piece { key, bytes: CHUNK }).collect()
}

fn want(keys: Range<u32>, priority: Priority) -> Step {
    Step::Want {
        pieces: pieces(keys),
        priority,
        patience: 60 * SECOND,
    }
}

/// The connections to one server, on a line of its own.
fn server(simulation: &mut Simulation, number: u16, habits: [Behaviour; 2]) -> [Peer; 2] {
    let line = simulation.line(Line::new(20 * MS, GIGABIT));
    let [demand, background] = habits;
    let demand = simulation.peer(Server(number), Lane::Demand, line, demand);
    let background = simulation.peer(Server(number), Lane::Background, line, background);
    simulation.allow_promotion(background);
    simulation.allow_resuming(background);
    [demand, background]
}

fn dies(from: Duration, until: Duration) -> Behaviour {
    Behaviour {
        dies: Some(from..until),
        ..Behaviour::default()
    }
}

/// A start by a plan of 1000 chunks, which takes half a second: a replay of the plan, and a program a little behind it.
fn start(mut simulation: Simulation, sender: Option<Peer>) -> Report {
    let pieces = pieces(0..CHUNKS);
    simulation.at(Duration::ZERO, Step::Plan { sender, pieces });
    simulation.at(Duration::ZERO, want(0..CHUNKS, Priority::Plan));
    for nth in 0..40 {
        let key = nth * 20;
        simulation.at(
            30 * MS + nth * 12 * MS,
            want(key..key + 1, Priority::Demand),
        );
    }
    simulation.run()
}

fn assert_all_came(report: &Report) {
    assert_eq!(report.ends(Verdict::Here), report.ended.len());
    assert_eq!(report.published, CHUNKS as usize);
}

#[test]
fn a_plan_without_a_stream_takes_one_request() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let [_, background] = server(&mut simulation, 0, Default::default());
    let report = start(simulation, None);
    assert_all_came(&report);
    assert_eq!(report.resumed, [(background, 0)]);
    let counts = report.counts;
    assert_eq!((counts.requests, counts.duplicates), (0, 0), "{counts:?}");
    let floor = 20 * MS + SECOND * CHUNKS * CHUNK / u32::try_from(GIGABIT).expect("fits");
    assert!(report.last() <= floor * 11 / 10, "{:?}", report.last());
}

#[test]
fn only_what_is_lacking_of_a_plan_comes() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let [_, background] = server(&mut simulation, 0, Default::default());
    // The first 300, and some in the middle.
    for keys in [0..300, 500..520] {
        simulation.at(Duration::ZERO, want(keys, Priority::Demand));
    }
    let plan = Step::Plan {
        sender: None,
        pieces: pieces(0..CHUNKS),
    };
    simulation.at(2 * SECOND, plan);
    let report = simulation.run();
    assert_eq!(report.resumed, [(background, 300)]);
    assert_eq!(report.published, CHUNKS as usize);
    assert_eq!(report.counts.duplicates, 0, "{:?}", report.counts);
    let all = u64::from(CHUNKS * CHUNK);
    assert_eq!(report.carried_bytes, all, "each came once");
}

#[test]
fn a_plan_that_is_here_asks_for_nothing() {
    let mut simulation = Simulation::new(Config::default(), 1);
    server(&mut simulation, 0, Default::default());
    simulation.at(Duration::ZERO, want(0..100, Priority::Demand));
    let plan = Step::Plan {
        sender: None,
        pieces: pieces(0..100),
    };
    simulation.at(2 * SECOND, plan);
    assert_eq!(simulation.run().resumed, []);
}

#[test]
fn a_connection_that_is_made_again_brings_the_rest_by_one_request() {
    let mut simulation = Simulation::new(Config::default(), 1);
    // That of those who wait stays.
    let habits = [Behaviour::default(), dies(200 * MS, 260 * MS)];
    let [demand, background] = server(&mut simulation, 0, habits);
    // The reader of the plan is not there yet: what nobody waits for is not requested one by one.
    let plan = Step::Plan {
        sender: Some(background),
        pieces: pieces(0..CHUNKS),
    };
    simulation.at(Duration::ZERO, plan);
    simulation.at(230 * MS, want(900..901, Priority::Demand));
    simulation.at(250 * MS, want(990..991, Priority::Demand));
    simulation.at(300 * MS, want(0..CHUNKS, Priority::Plan));
    let report = simulation.run();
    assert_all_came(&report);
    let [(resumer, first)] = report.resumed[..] else {
        panic!("{:?}", report.resumed)
    };
    assert_eq!(resumer, background);
    assert!((300..420).contains(&first), "{first}");
    let counts = report.counts;
    // Those who waited meanwhile; what was on the line when it broke comes again, and nothing else.
    assert_eq!((counts.requests, counts.duplicates), (2, 0), "{counts:?}");
    let _demand_stays = demand;
}

#[test]
fn another_server_brings_the_rest_by_one_request_when_the_first_one_dies_or_stalls() {
    let good = {
        let mut simulation = Simulation::new(Config::default(), 1);
        let [_, sender] = server(&mut simulation, 0, Default::default());
        server(&mut simulation, 1, Default::default());
        start(simulation, Some(sender))
    };
    assert_eq!((good.counts.requests, good.resumed.len()), (0, 0));
    let stalls = Behaviour {
        stalls: Some(200 * MS..5200 * MS),
        ..Behaviour::default()
    };
    for habits in [dies(200 * MS, 5200 * MS), stalls] {
        let mut simulation = Simulation::new(Config::default(), 1);
        let [_, sender] = server(&mut simulation, 0, [habits.clone(), habits]);
        let [_, other] = server(&mut simulation, 1, Default::default());
        let report = start(simulation, Some(sender));
        assert_all_came(&report);
        let resumed: Vec<_> = report.resumed.iter().map(|(peer, _)| *peer).collect();
        assert_eq!(resumed, [other]);
        // Some of those who waited when it fell silent.
        assert!(report.counts.requests <= 4, "{:?}", report.counts);
        let (last, aim) = (report.last(), good.last() * 3 / 2);
        assert!(last <= aim, "{last:?} of {aim:?}: {:?}", report.counts);
    }
}

#[test]
fn another_server_brings_the_rest_when_the_first_one_lies() {
    let lies = Behaviour {
        every: vec![(20, Outcome::Wrong)],
        ..Behaviour::default()
    };
    let mut simulation = Simulation::new(Config::default(), 1);
    let [_, sender] = server(&mut simulation, 0, [lies.clone(), lies]);
    let [_, other] = server(&mut simulation, 1, Default::default());
    let report = start(simulation, Some(sender));
    assert_all_came(&report);
    // Once it has sent eight wrong pieces, each of which is requested of the other one.
    let [(resumer, first)] = report.resumed[..] else {
        panic!("{:?}", report.resumed)
    };
    assert_eq!(resumer, other);
    assert!((80..160).contains(&first), "{first}");
    assert!(report.counts.requests <= 12, "{:?}", report.counts);
}

#[test]
fn whoever_waits_does_not_wait_for_the_rest_of_a_plan() {
    let mut simulation = Simulation::new(Config::default(), 1);
    server(&mut simulation, 0, Default::default());
    let plan = Step::Plan {
        sender: None,
        pieces: pieces(0..CHUNKS),
    };
    simulation.at(Duration::ZERO, plan);
    // Before the first chunk has come, and far behind.
    simulation.at(5 * MS, want(900..901, Priority::Demand));
    simulation.at(100 * MS, want(800..801, Priority::Demand));
    let report = simulation.run();
    for (key, until) in [(900, 65 * MS), (800, 160 * MS)] {
        let ended = report.of(key).expect("it was wanted");
        assert!(ended.at <= until, "{ended:?}");
    }
    let counts = report.counts;
    assert_eq!((counts.requests, counts.duplicates), (0, 0), "{counts:?}");
    assert_eq!(counts.reordered, 2);
}

#[test]
fn a_server_that_does_not_send_the_rest_is_asked_for_what_is_wanted() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let forgets = Behaviour {
        every: vec![(1, Outcome::Failed)],
        ..Behaviour::default()
    };
    let [_, background] = server(&mut simulation, 0, [Behaviour::default(), forgets]);
    let plan = Step::Plan {
        sender: None,
        pieces: pieces(0..CHUNKS),
    };
    simulation.at(Duration::ZERO, plan);
    simulation.at(Duration::ZERO, want(0..100, Priority::Demand));
    let report = simulation.run();
    assert_eq!(report.ends(Verdict::Here), 100);
    // Once: it would not send it the next time either.
    assert_eq!(report.resumed, [(background, 0)]);
}

#[test]
fn whoever_waits_when_another_server_takes_over_gets_it_first() {
    let mut simulation = Simulation::new(Config::default(), 1);
    let habits = dies(200 * MS, 5200 * MS);
    let [_, sender] = server(&mut simulation, 0, [habits.clone(), habits]);
    server(&mut simulation, 1, Default::default());
    let plan = Step::Plan {
        sender: Some(sender),
        pieces: pieces(0..CHUNKS),
    };
    simulation.at(Duration::ZERO, plan);
    // Some 35 chunks behind the first that is lacking: these take 18 ms, and the first of them a round trip more.
    simulation.at(201 * MS, want(400..401, Priority::Demand));
    let report = simulation.run();
    let [(_, first)] = report.resumed[..] else {
        panic!("{:?}", report.resumed)
    };
    assert!((360..370).contains(&first), "{first}");
    let ended = report.of(400).expect("it was wanted");
    assert!(ended.at <= 225 * MS, "{ended:?}");
}

/// What was on its way when another server took over, and comes late.
#[test]
fn what_a_stream_that_was_given_up_brings_is_not_sent_by_the_next_one() {
    let mut engine = Engine::new(Config::default());
    let [first, second] = [0, 1].map(|number| engine.add_peer(Server(number), Lane::Any));
    for peer in [first, second] {
        engine.on_peer_up(Duration::ZERO, peer, Some(20 * MS));
        engine.allow_resuming(peer);
    }
    let (stream, plan) = (StreamId(1), pieces(0..100));
    engine.promised(MS, first, stream, &plan);
    engine.plan(&plan, Some(stream), |_| true);
    let polled = |engine: &mut Engine<u32>, now| {
        let actions = std::iter::from_fn(|| engine.poll(now));
        actions.collect::<Vec<_>>()
    };
    let mut now = MS;
    let left = loop {
        now += MS;
        let left = polled(&mut engine, now);
        if !left.is_empty() {
            break left;
        }
        assert!(now < SECOND, "it is silent, and not given up");
    };
    let ended = Action::EndStream {
        peer: first,
        stream,
    };
    assert!(left.contains(&ended), "{left:?}");
    let next = left.iter().find_map(|action| match action {
        Action::Resume {
            peer,
            stream,
            first: 0,
        } => Some((*peer, *stream)),
        _ => None,
    });
    let (peer, next) = next.expect("the other one is asked");
    assert_eq!(peer, second);
    let via = Via::Stream(stream);
    let arrival = engine.on_piece(now, first, via, 7, Outcome::Here, CHUNK);
    assert_eq!(arrival, Arrival::First);
    let skip = Action::Skip {
        peer: second,
        stream: next,
        keys: vec![7],
    };
    assert_eq!(polled(&mut engine, now), [skip]);
}
