//! Several servers of the same pieces: one that lies is left for a while, and asked again when nobody else is there.

use std::time::Duration;

use fetch::{
    Action, Arrival, Config, Engine, Lane, Outcome, Peer, Piece, Priority, Server, StreamId, Via,
};

const MS: Duration = Duration::from_millis(1);
const CHUNK: u32 = 64 << 10;

fn pieces(keys: std::ops::Range<u32>) -> Vec<Piece<u32>> {
    keys.map(|key| Piece { key, bytes: CHUNK }).collect()
}

/// An engine with two servers, the first of which streams the pieces 0 to 99, for which somebody waits.
fn streaming() -> (Engine<u32>, [Peer; 2]) {
    let mut engine = Engine::new(Config::default());
    let peers = [0, 1].map(|server| engine.add_peer(Server(server), Lane::Any));
    for peer in peers {
        engine.on_peer_up(Duration::ZERO, peer, Some(20 * MS));
    }
    engine.promised(MS, peers[0], StreamId(1), &pieces(0..100));
    engine.want(MS, &pieces(0..100), Priority::Plan, 60_000 * MS);
    assert_eq!(engine.poll(MS), None);
    (engine, peers)
}

fn actions(engine: &mut Engine<u32>, now: Duration) -> Vec<Action<u32>> {
    std::iter::from_fn(|| engine.poll(now)).collect()
}

/// Returns who is asked for a new piece.
fn asked(engine: &mut Engine<u32>, now: Duration, key: u32) -> Option<Peer> {
    engine.want(
        now,
        &pieces(key..key + 1),
        Priority::Demand,
        now + 1000 * MS,
    );
    let asks = |action| match action {
        Action::Request { peer, .. } => Some(peer),
        _ => None,
    };
    actions(engine, now).into_iter().find_map(asks)
}

#[test]
fn who_lies_is_left_for_a_while_and_its_stream_is_brought_by_another() {
    let (mut engine, [liar, other]) = streaming();
    let via = Via::Stream(StreamId(1));
    let arrival = engine.on_piece(20 * MS, liar, via, 0, Outcome::Here, CHUNK);
    assert_eq!(arrival, Arrival::First);
    let _done = actions(&mut engine, 20 * MS);
    // Whoever reads it finds out.
    engine.on_wrong(21 * MS, liar);
    let left = actions(&mut engine, 21 * MS);
    let stream = StreamId(1);
    assert!(left.contains(&Action::EndStream { peer: liar, stream }));
    let requests = left.iter().filter_map(|action| match action {
        Action::Request { peer, .. } => Some(*peer),
        _ => None,
    });
    let requests: Vec<_> = requests.collect();
    assert!(!requests.is_empty() && requests.iter().all(|peer| *peer == other));
    assert!(!engine.is_up(liar) && engine.any_up());
    assert_eq!(engine.peer_counts(liar).wrong, 1);
    // What it had sent before it knew is as doubtful, and is not taken.
    let arrival = engine.on_piece(22 * MS, liar, via, 1, Outcome::Here, CHUNK);
    assert_eq!(arrival, Arrival::Unneeded);
    // The other one brings all of them: if it went silent, the liar would be asked before its pause is over.
    let mut now = 22 * MS;
    let mut todo = left;
    while !todo.is_empty() {
        for action in todo {
            let Action::Request {
                peer,
                request,
                pieces,
                ..
            } = action
            else {
                continue;
            };
            for piece in pieces {
                let via = Via::Request(request);
                let arrival = engine.on_piece(now, peer, via, piece.key, Outcome::Here, CHUNK);
                assert_eq!(arrival, Arrival::First);
            }
        }
        now += MS;
        todo = actions(&mut engine, now);
    }
    // After the pause, and not before.
    let _early = actions(&mut engine, 1020 * MS);
    assert!(!engine.is_up(liar));
    let _late = actions(&mut engine, 1021 * MS);
    assert!(engine.is_up(liar));
}

#[test]
fn who_lies_is_asked_again_when_nobody_else_is_there() {
    let (mut engine, [liar, other]) = streaming();
    engine.on_wrong(21 * MS, liar);
    assert_eq!(asked(&mut engine, 22 * MS, 500), Some(other));
    engine.on_peer_lost(23 * MS, other);
    assert!(engine.is_up(liar));
    let _requests = actions(&mut engine, 23 * MS);
    assert_eq!(asked(&mut engine, 24 * MS, 501), Some(liar));
    // And left again when the other one is back.
    engine.on_peer_up(30 * MS, other, Some(20 * MS));
    engine.on_wrong(31 * MS, liar);
    assert!(!engine.is_up(liar));
    assert_eq!(asked(&mut engine, 32 * MS, 502), Some(other));
}

#[test]
fn a_lone_server_that_lies_stays() {
    let mut engine = Engine::new(Config::default());
    let peer = engine.add_peer(Server(0), Lane::Any);
    engine.on_peer_up(Duration::ZERO, peer, Some(20 * MS));
    engine.on_wrong(MS, peer);
    assert!(engine.is_up(peer));
    assert_eq!(asked(&mut engine, 2 * MS, 1), Some(peer));
}

#[test]
fn silence_is_that_of_the_server_that_does_best() {
    let (mut engine, [_, other]) = streaming();
    assert_eq!(
        engine.silence(50 * MS),
        Duration::ZERO,
        "the other owes nothing"
    );
    engine.on_peer_lost(51 * MS, other);
    assert_eq!(engine.silence(61 * MS), 60 * MS);
}

/// How many pieces each peer is asked for.
fn requested(actions: &[Action<u32>], of: Peer) -> usize {
    let pieces = |action: &Action<u32>| match action {
        Action::Request { peer, pieces, .. } if *peer == of => pieces.len(),
        _ => 0,
    };
    actions.iter().map(pieces).sum()
}

fn stalled(actions: &[Action<u32>], of: Peer) -> bool {
    actions.contains(&Action::Stalled { peer: of })
}

#[test]
fn a_silent_server_is_left_soon_once_another_one_comes() {
    let silent_at = |other_comes: bool| {
        let mut engine = Engine::new(Config::default());
        let [silent, other] = [0, 1].map(|server| engine.add_peer(Server(server), Lane::Any));
        engine.on_peer_up(Duration::ZERO, silent, Some(20 * MS));
        assert_eq!(asked(&mut engine, MS, 1), Some(silent));
        if other_comes {
            engine.on_peer_up(10 * MS, other, Some(20 * MS));
        }
        let mut looks = (10..2000).map(|ms| ms * MS);
        looks.find(|now| stalled(&actions(&mut engine, *now), silent))
    };
    let (alone, beside) = (silent_at(false).unwrap(), silent_at(true).unwrap());
    assert!(alone >= 500 * MS, "{alone:?}");
    assert!(beside < 200 * MS, "{beside:?}");
}

#[test]
fn all_lines_to_a_silent_server_are_left_at_once() {
    let mut engine = Engine::new(Config::default());
    let lines = [Lane::Demand, Lane::Background].map(|lane| engine.add_peer(Server(0), lane));
    let other = engine.add_peer(Server(1), Lane::Any);
    for peer in [lines[0], lines[1], other] {
        engine.on_peer_up(Duration::ZERO, peer, Some(20 * MS));
    }
    engine.promised(MS, lines[1], StreamId(1), &pieces(0..100));
    engine.want(MS, &pieces(0..100), Priority::Plan, 60_000 * MS);
    assert_eq!(engine.poll(MS), None);
    // Nobody has asked the first line for anything, so that its silence alone says nothing.
    let mut looks = (2..1000).map(|ms| actions(&mut engine, ms * MS));
    let left = looks
        .find(|actions| stalled(actions, lines[1]))
        .expect("the line that owes a stream is left");
    assert!(stalled(&left, lines[0]), "{left:?}");
    assert!(!stalled(&left, other));
}

#[test]
fn who_takes_over_begins_with_the_rate_of_the_other_line() {
    let taken_over = |was_measured: bool| {
        let mut engine = Engine::new(Config::default());
        let [first, second] = [0, 1].map(|server| engine.add_peer(Server(server), Lane::Any));
        for peer in [first, second] {
            engine.on_peer_up(Duration::ZERO, peer, Some(20 * MS));
        }
        engine.promised(MS, first, StreamId(1), &pieces(0..400));
        engine.want(MS, &pieces(0..400), Priority::Plan, 60_000 * MS);
        let _nothing = actions(&mut engine, MS);
        let mut now = 20 * MS;
        if was_measured {
            // 64 MB a second.
            for key in 0..200 {
                now += MS;
                let via = Via::Stream(StreamId(1));
                let _arrival = engine.on_piece(now, first, via, key, Outcome::Here, CHUNK);
                let _done = actions(&mut engine, now);
            }
        }
        engine.on_peer_lost(now, first);
        requested(&actions(&mut engine, now), second)
    };
    let (blind, knowing) = (taken_over(false), taken_over(true));
    assert!(blind > 0);
    assert!(knowing > 2 * blind, "{knowing} and {blind}");
}
