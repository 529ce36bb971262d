//! Lines that connections share, and what the servers at their ends do.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::random::Random;
use crate::exchange::{Outcome, Peer, StreamId, Via};
use crate::link::transfer;
use crate::want::Piece;

/// Whether the responses of a connection may overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// They come as they were sent.
    Kept,
    /// They come as the jitter has it.
    Mixed,
}

/// The path from servers to the engine. Connections on the same line take turns, piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Bytes per second.
    pub rate: u64,
    /// How long a byte travels, each way.
    pub delay: Duration,
    /// By how much a response may be later than that.
    pub jitter: Duration,
    /// Whether responses overtake each other.
    pub order: Order,
}

impl Line {
    /// Returns a line without jitter.
    #[must_use]
    pub fn new(rtt: Duration, rate: u64) -> Self {
        Self {
            rate,
            delay: rtt / 2,
            jitter: Duration::ZERO,
            order: Order::Kept,
        }
    }
}

/// How a server behaves. The default one is honest, and always there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Every so many keys, this is the response.
    pub every: Vec<(u32, Outcome)>,
    /// Every so many keys, there is no response at all.
    pub forgets_every: Option<u32>,
    /// Between these moments it sends nothing.
    pub stalls: Option<Range<Duration>>,
    /// Between these moments its connections are lost.
    pub dies: Option<Range<Duration>>,
}

impl Behaviour {
    /// Returns the answer for a key; `None` if there is none.
    fn answer(&self, key: u32) -> Option<Outcome> {
        let is_each = |every: u32| every > 0 && key.is_multiple_of(every);
        if self.forgets_every.is_some_and(is_each) {
            return None;
        }
        let odd = self.every.iter().find(|(every, _)| is_each(*every));
        Some(odd.map_or(Outcome::Here, |(_, outcome)| *outcome))
    }
}

/// What travels to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Piece {
        via: Via,
        piece: Piece<u32>,
        outcome: Outcome,
    },
    StreamEnd(StreamId),
    /// A part of a piece that is not the last.
    Part,
}

/// What a line carries before it is another connection's turn.
const PART_BYTES: u64 = 16 << 10;

impl Message {
    fn bytes(&self) -> u64 {
        match self {
            Self::Piece {
                piece,
                outcome: Outcome::Here | Outcome::Wrong,
                ..
            } => u64::from(piece.bytes),
            Self::Piece { .. } | Self::StreamEnd(_) | Self::Part => 0,
        }
    }
}

/// One connection, as its server sees it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) line: usize,
    pub(super) habits: Behaviour,
    /// Its queued messages.
    queue: VecDeque<Message>,
    /// How many bytes of the first are sent.
    sent: u64,
    last_arrival: Duration,
}

impl Connection {
    pub(super) fn new(line: usize, habits: Behaviour) -> Self {
        Self {
            line,
            habits,
            queue: VecDeque::new(),
            sent: 0,
            last_arrival: Duration::ZERO,
        }
    }

    /// Adds a request or the pieces of a stream.
    pub(super) fn ask(&mut self, via: Via, pieces: &[Piece<u32>]) {
        for piece in pieces {
            if let Some(outcome) = self.habits.answer(piece.key) {
                self.queue.push_back(Message::Piece {
                    via,
                    piece: *piece,
                    outcome,
                });
            }
        }
        if let Via::Stream(stream) = via {
            self.queue.push_back(Message::StreamEnd(stream));
        }
    }

    /// Sends some keys of a stream next, in this order, if they were not sent yet.
    pub(super) fn promote(&mut self, of: Via, keys: &[u32]) {
        let started = (self.sent > 0).then(|| self.queue.pop_front()).flatten();
        for key in keys.iter().rev() {
            let is_it = |message: &Message| matches!(message, Message::Piece { via, piece, .. } if *via == of && piece.key == *key);
            if let Some(at) = self.queue.iter().position(is_it)
                && let Some(message) = self.queue.remove(at)
            {
                self.queue.push_front(message);
            }
        }
        if let Some(message) = started {
            self.queue.push_front(message);
        }
    }

    /// Drops what was not sent yet: all of it, or some keys.
    pub(super) fn drop_unsent(&mut self, of: Via, keys: Option<&[u32]>) {
        // What is half sent is sent to its end.
        let started = (self.sent > 0).then(|| self.queue.pop_front()).flatten();
        self.queue.retain(|message| match message {
            Message::Piece { via, piece, .. } => {
                *via != of || keys.is_some_and(|keys| !keys.contains(&piece.key))
            }
            Message::StreamEnd(_) | Message::Part => true,
        });
        if let Some(message) = started {
            self.queue.push_front(message);
        }
    }

    pub(super) fn close(&mut self) {
        self.queue.clear();
        self.sent = 0;
    }

    fn is_silent(&self, now: Duration) -> bool {
        self.habits
            .stalls
            .as_ref()
            .is_some_and(|stall| stall.contains(&now))
    }
}

/// All lines and connections.
#[derive(Debug, Default)]
pub(super) struct Network {
    lines: Vec<Line>,
    /// When each line has sent its present message.
    free: Vec<Duration>,
    turns: Vec<u16>,
    pub(super) connections: BTreeMap<Peer, Connection>,
}

/// A message that a line has begun to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) peer: Peer,
    pub(super) message: Message,
    pub(super) arrives: Duration,
}

impl Network {
    pub(super) fn add_line(&mut self, line: Line) -> usize {
        self.lines.push(line);
        self.free.push(Duration::ZERO);
        self.turns.push(0);
        self.lines.len() - 1
    }

    pub(super) fn delay(&self, peer: Peer) -> Duration {
        self.lines[self.connections[&peer].line].delay
    }

    /// Has each line that is free send one more message.
    pub(super) fn send(&mut self, now: Duration, random: &mut Random) -> Vec<Sent> {
        let mut sent = Vec::new();
        for line in 0..self.lines.len() {
            while self.free[line] <= now
                && let Some(peer) = self.next_sender(line, now)
            {
                sent.extend(self.send_one(now, line, peer, random));
            }
        }
        sent
    }

    /// Returns when a line will be free that has something to send.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        let mut next = None;
        for connection in self.connections.values() {
            if connection.queue.is_empty() {
                continue;
            }
            let mut at = self.free[connection.line].max(now);
            if let Some(stall) = &connection.habits.stalls
                && stall.contains(&at)
            {
                at = stall.end;
            }
            next = Some(next.map_or(at, |next: Duration| next.min(at)));
        }
        next
    }

    /// Whose turn it is on a line.
    fn next_sender(&self, line: usize, now: Duration) -> Option<Peer> {
        let ready = |(peer, connection): (&Peer, &Connection)| {
            (connection.line == line && !connection.queue.is_empty() && !connection.is_silent(now))
                .then_some(*peer)
        };
        let turn = Peer(self.turns[line]);
        self.connections
            .range(turn..)
            .find_map(ready)
            .or_else(|| self.connections.range(..turn).find_map(ready))
    }

    fn send_one(
        &mut self,
        now: Duration,
        line: usize,
        peer: Peer,
        random: &mut Random,
    ) -> Option<Sent> {
        let connection = self.connections.get_mut(&peer)?;
        let first = *connection.queue.front()?;
        let part = (first.bytes() - connection.sent).min(PART_BYTES);
        let message = if connection.sent + part < first.bytes() {
            connection.sent += part;
            Message::Part
        } else {
            connection.sent = 0;
            connection.queue.pop_front()?
        };
        let Line {
            rate,
            delay,
            jitter,
            order,
        } = self.lines[line];
        self.turns[line] = peer.0 + 1;
        self.free[line] = now + transfer(part, rate);
        let late = random.below(u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX));
        let mut arrives = self.free[line] + delay + Duration::from_nanos(late);
        // A stream's end is behind all of it in any order.
        if order == Order::Kept || matches!(message, Message::StreamEnd(_)) {
            arrives = arrives.max(connection.last_arrival);
        }
        connection.last_arrival = connection.last_arrival.max(arrives);
        Some(Sent {
            peer,
            message,
            arrives,
        })
    }
}
