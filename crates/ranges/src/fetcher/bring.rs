//! One request: its ranges, each read by a task of its own, and what comes of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fetch::{Outcome, Peer, Piece, RequestId, Via};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::drive::Landed;
use super::{Inner, State};
use crate::key::Key;
use crate::place::{Fault, FaultKind, Layout, Place};
use crate::runs::{Cutter, join};

/// For one range, from its turn to its last byte.
const READ: Duration = Duration::from_secs(20);

/// What a range is a part of.
#[derive(Clone, Copy, Debug)]
struct Leg {
    peer: Peer,
    request: RequestId,
    blob: u32,
}

impl Leg {
    const fn key(self, piece: u32) -> Key {
        let blob = self.blob;
        Key { blob, piece }
    }
}

impl Inner {
    /// Sends a request: one read for each range.
    pub(super) fn send(
        self: &Arc<Self>,
        state: &mut State,
        peer: Peer,
        request: RequestId,
        pieces: &[Piece<Key>],
    ) {
        let mut blobs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for piece in pieces {
            let wanted = blobs.entry(piece.key.blob).or_default();
            wanted.push(piece.key.piece);
        }
        let mut tasks = Vec::new();
        for (number, wanted) in blobs {
            let leg = Leg {
                peer,
                request,
                blob: number,
            };
            let Some(blob) = state.blobs.get(&number) else {
                // Nobody has it open any more.
                for piece in wanted {
                    let (now, outcome) = (self.now(), Outcome::Absent);
                    let via = Via::Request(request);
                    let _dropped =
                        state
                            .engine
                            .on_piece(now, peer, via, leg.key(piece), outcome, 0);
                }
                continue;
            };
            let place = &blob.places[usize::from(self.server_of(peer).0)];
            for run in join(wanted) {
                let turn = self.lanes[peer.index()].turn(place.parallel());
                let (inner, place) = (Arc::clone(self), Arc::clone(place));
                let task = inner.bring(turn, leg, blob.layout, place, run);
                let task = self.handle.spawn(task);
                tasks.push(task.abort_handle());
            }
        }
        let count = tasks.len();
        if count > 0 {
            state.requests.insert(request, (tasks, count));
        }
    }

    /// Reads one range when its turn has come.
    async fn bring(
        self: Arc<Self>,
        turn: impl Future<Output = Option<OwnedSemaphorePermit>>,
        leg: Leg,
        layout: Layout,
        place: Arc<dyn Place>,
        run: Range<u32>,
    ) {
        let turn = turn.await;
        if let Some(blob) = self.state.lock().blobs.get(&leg.blob) {
            blob.receiver.requested();
        }
        let mut cutter = Cutter::new(layout, &run);
        let mut take = |bytes: &[u8]| {
            // All that a part of the body completes goes together: each piece alone costs locks and a look at what is
            // to be requested next.
            let mut whole = Vec::new();
            cutter.take(bytes, &mut |piece, bytes| {
                whole.push((leg.key(piece), Arc::from(bytes)));
            });
            if whole.is_empty() {
                let now = self.now();
                self.state.lock().engine.on_progress(now, leg.peer);
            } else {
                self.arrived(leg, &whole);
            }
        };
        let range = layout.bytes(&run);
        let read = timeout(READ, place.read(range, &mut take)).await;
        drop(turn);
        let missing = cutter.next()..run.end;
        let result = read.unwrap_or_else(|_| {
            let (name, late) = (place.name(), READ.as_secs());
            let why = format!("{name}: a range did not come within {late} s");
            Err(Fault::new(FaultKind::Busy, why))
        });
        self.ended(leg, missing, result);
    }

    /// Pieces have come.
    fn arrived(self: &Arc<Self>, leg: Leg, pieces: &[Landed]) {
        let server = self.server_of(leg.peer);
        // First, so that who finds them here later does not want them again.
        self.publish(leg, pieces);
        let now = self.now();
        let mut state = self.state.lock();
        for (key, bytes) in pieces {
            let via = Via::Request(leg.request);
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            // Who waits for one takes it from `pieces`; one that nobody waits for is not in the engine any more.
            let _arrival = state
                .engine
                .on_piece(now, leg.peer, via, *key, Outcome::Here, len);
        }
        if let Some(server) = state.servers.get_mut(usize::from(server.0)) {
            server.brought();
        }
        self.act(&mut state, now, pieces);
    }

    fn publish(&self, leg: Leg, pieces: &[Landed]) {
        let mut state = self.state.lock();
        let Some(blob) = state.blobs.get_mut(&leg.blob) else {
            return;
        };
        blob.publishing += 1;
        let receiver = Arc::clone(&blob.receiver);
        drop(state);
        for (key, bytes) in pieces {
            receiver.publish(key.piece, bytes, self.server_of(leg.peer));
        }
        // Who waits below is its last owner.
        drop(receiver);
        let mut state = self.state.lock();
        if let Some(blob) = state.blobs.get_mut(&leg.blob) {
            blob.publishing -= 1;
        }
        drop(state);
        self.published.notify_all();
    }

    /// A range ended, without these pieces.
    fn ended(self: &Arc<Self>, leg: Leg, missing: Range<u32>, result: Result<(), Fault>) {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some((_, left)) = state.requests.get_mut(&leg.request) {
            *left -= 1;
            if *left == 0 {
                state.requests.remove(&leg.request);
            }
        }
        let fault = match result {
            Ok(()) if missing.is_empty() => None,
            Ok(()) => Some(Fault::new(FaultKind::Busy, "a range was cut short")),
            Err(fault) => Some(fault),
        };
        if let Some(fault) = fault {
            Self::note(&mut state, &fault);
            self.failed(&mut state, now, leg, missing, fault.kind);
        }
        self.act(&mut state, now, &[]);
    }

    fn failed(
        self: &Arc<Self>,
        state: &mut State,
        now: Duration,
        leg: Leg,
        missing: Range<u32>,
        kind: FaultKind,
    ) {
        let outcome = match kind {
            FaultKind::Absent => Outcome::Absent,
            FaultKind::Busy => Outcome::Busy,
            FaultKind::Wrong => Outcome::Wrong,
            // The engine takes back all that was requested there.
            FaultKind::Away => return self.server_lost(state, now, self.server_of(leg.peer)),
        };
        let engine = &mut state.engine;
        for piece in missing {
            let (key, via) = (leg.key(piece), Via::Request(leg.request));
            // Whatever became of it: there are no bytes.
            let _dropped = engine.on_piece(now, leg.peer, via, key, outcome, 0);
        }
    }
}
