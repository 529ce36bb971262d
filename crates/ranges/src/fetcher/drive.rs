//! Jobs and the engine: what is wanted goes in, what is to be done comes out.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fetch::{Action, Piece, Priority, Server, Ticket, Verdict};
use tokio::time::sleep;

use super::{Inner, State};
use crate::jobs::{Job, JobId};
use crate::key::Key;
use crate::place::{Fault, FaultKind};
use crate::runs::cheap_gap;
use crate::wait::Wait;

/// Bytes of one job that the engine has at a time, at most; the rest waits here. Two windows, so that there is always
/// something to request of what comes first.
const OPEN_BYTES: u64 = 16 << 20;
/// The same for a job that only fills a cache: there are many of these.
const OPEN_FILL_BYTES: u64 = 4 << 20;
/// Pieces that the engine is given together.
const GIVEN: usize = 256;
/// When the engine gives up what it was given; later, it is given it again.
const TICKET: Duration = Duration::from_secs(60);
/// How long the timer sleeps when nothing is expected.
const IDLE: Duration = Duration::from_secs(3600);
/// Between two looks at the clock, at least.
const TICK: Duration = Duration::from_millis(1);

/// A piece that has come just now.
pub(super) type Landed = (Key, Arc<[u8]>);

impl Inner {
    /// Begins to fetch what a job wants.
    pub(super) fn begin(self: &Arc<Self>, job: Job) -> JobId {
        let now = self.now();
        let mut state = self.state.lock();
        let id = state.jobs.add(job);
        self.give(&mut state, now, id);
        self.act(&mut state, now, &[]);
        id
    }

    /// Waits for the end of a job, and removes it.
    pub(super) fn wait(self: &Arc<Self>, id: JobId, wait: &Wait) -> Option<Job> {
        let _woken = self.woken(wait);
        let mut state = self.state.lock();
        while let Some(job) = state.jobs.jobs.get(&id)
            && !job.is_done()
        {
            let ended = Arc::clone(&job.ended);
            if wait.is_over() {
                break;
            }
            ended.thread.wait_until(&mut state, wait.deadline());
        }
        self.take_out(&mut state, id)
    }

    pub(super) fn remove(self: &Arc<Self>, id: JobId) {
        let _job = self.take_out(&mut self.state.lock(), id);
    }

    /// Ends a job, and tells who waits for it.
    pub(super) fn stop(self: &Arc<Self>, id: JobId) {
        let mut state = self.state.lock();
        if let Some(job) = state.jobs.jobs.get_mut(&id) {
            job.over = true;
            job.ended.tell();
        }
    }

    fn take_out(self: &Arc<Self>, state: &mut State, id: JobId) -> Option<Job> {
        let now = self.now();
        let job = state.jobs.remove(id)?;
        for ticket in &job.tickets {
            state.engine.leave(now, *ticket);
        }
        self.act(state, now, &[]);
        Some(job)
    }

    /// Gives the engine what a job wants next, as much as it may have.
    fn give(&self, state: &mut State, now: Duration, id: JobId) {
        // Without a server each piece would come back at once; when there is one again, they are given to it.
        while state.engine.any_up() {
            let gap_bytes = self.cheap_gap(state);
            let Some(job) = state.jobs.jobs.get_mut(&id).filter(|job| !job.parked) else {
                return;
            };
            let piece_bytes = job
                .rest
                .front()
                .and_then(|span| state.blobs.get(&span.blob));
            let piece_bytes = piece_bytes.map_or(1, |blob| blob.layout.piece_bytes.max(1));
            let gap = u32::try_from(gap_bytes / u64::from(piece_bytes)).unwrap_or(u32::MAX);
            let mut pieces: Vec<Piece<Key>> = Vec::new();
            while !job.over
                && pieces.len() < GIVEN
                && job.open_bytes < open_bytes(job.priority)
                && let Some(key) = job.next(gap)
            {
                let Some(blob) = state.blobs.get(&key.blob) else {
                    continue;
                };
                if !blob.receiver.has(key.piece) {
                    let bytes = blob.layout.len(key.piece);
                    pieces.push(Piece { key, bytes });
                    job.open_bytes += u64::from(bytes);
                }
            }
            if pieces.is_empty() {
                if job.is_done() {
                    job.ended.tell();
                }
                return;
            }
            let (priority, until) = (job.priority, now + TICKET);
            let ticket = state.engine.want(now, &pieces, priority, until);
            state.jobs.ticket(id, ticket, pieces.len());
        }
    }

    /// Returns which gap between pieces costs less than another request, at the server that is asked first.
    fn cheap_gap(&self, state: &State) -> u64 {
        let first = state.servers.first().map(|server| server.peers[1]);
        let lane = first.map_or(1, |peer| self.lanes[peer.index()].size());
        first.map_or(0, |peer| cheap_gap(state.engine.link(peer), lane))
    }

    /// Carries out what the engine decides. `landed` is what came just now.
    pub(super) fn act(self: &Arc<Self>, state: &mut State, now: Duration, landed: &[Landed]) {
        while let Some(action) = state.engine.poll(now) {
            match action {
                Action::Request {
                    peer,
                    request,
                    pieces,
                    ..
                } => self.send(state, peer, request, &pieces),
                Action::Cancel { request, .. } => {
                    let tasks = state.requests.remove(&request);
                    tasks.into_iter().for_each(|(tasks, _)| {
                        tasks.iter().for_each(tokio::task::AbortHandle::abort);
                    });
                }
                Action::Stalled { peer } => {
                    let server = self.server_of(peer);
                    let name = state.name_of(server);
                    let why = format!("{name} has fallen silent");
                    Self::note(state, &Fault::new(FaultKind::Busy, why));
                    self.try_again_later(state, server);
                }
                Action::Done {
                    ticket,
                    key,
                    verdict,
                } => self.done(state, now, ticket, key, verdict, landed),
                // There are no streams here.
                Action::Skip { .. }
                | Action::Promote { .. }
                | Action::Resume { .. }
                | Action::EndStream { .. } => {}
            }
        }
        let next = state.engine.next_wake();
        if next.is_some_and(|next| state.wake.is_none_or(|wake| next < wake)) {
            state.wake = next;
            self.timer.notify_one();
        }
    }

    /// Tells a job how one of its pieces ended.
    fn done(
        &self,
        state: &mut State,
        now: Duration,
        ticket: Ticket,
        key: Key,
        verdict: Verdict,
        landed: &[Landed],
    ) {
        let any_up = state.engine.any_up();
        let origin_returns = state.servers.last().is_some_and(|origin| origin.returns);
        let State { jobs, fault, .. } = state;
        let Some((id, job)) = jobs.ended(ticket) else {
            return;
        };
        let failed = |job: &mut Job| {
            let said = fault.clone();
            let otherwise = || Fault::new(FaultKind::Busy, "the servers do not send it");
            job.failed(said.unwrap_or_else(otherwise));
        };
        match verdict {
            Verdict::Here => match landed.iter().find(|(landed, _)| *landed == key) {
                Some((_, bytes)) => job.came(key, bytes),
                None => failed(job),
            },
            Verdict::Away if !any_up => job.wait_for_servers(key),
            Verdict::Late => job.wait_for_servers(key),
            // The servers before it have said that they do not have it.
            Verdict::Away if origin_returns => {
                job.wait_for_servers(key);
                job.parked = true;
            }
            Verdict::Absent | Verdict::Failed | Verdict::Wrong | Verdict::Busy | Verdict::Away => {
                failed(job);
            }
        }
        let bytes = state
            .blobs
            .get(&key.blob)
            .map_or(0, |blob| blob.layout.len(key.piece));
        job.open_bytes = job.open_bytes.saturating_sub(u64::from(bytes));
        if job.is_done() {
            job.ended.tell();
        } else if job.open_bytes <= open_bytes(job.priority) / 4 * 3 {
            self.give(state, now, id);
        }
    }

    /// A server cannot be reached: all of its connections are lost.
    pub(super) fn server_lost(self: &Arc<Self>, state: &mut State, now: Duration, server: Server) {
        let Some(lost) = state.servers.get(usize::from(server.0)) else {
            return;
        };
        for peer in lost.peers {
            state.engine.on_peer_lost(now, peer);
        }
        self.try_again_later(state, server);
    }

    /// Has a server asked again after a pause.
    fn try_again_later(self: &Arc<Self>, state: &mut State, server: Server) {
        let number = usize::from(server.0);
        let pause = state.servers.get_mut(number).and_then(|s| s.pause());
        if let Some(pause) = pause {
            let inner = Arc::downgrade(self);
            self.handle.spawn(async move {
                sleep(pause).await;
                if let Some(inner) = inner.upgrade() {
                    inner.returned(number);
                }
            });
        }
    }

    /// A server may be asked again.
    fn returned(self: &Arc<Self>, server: usize) {
        let now = self.now();
        let mut state = self.state.lock();
        let was_up = state.engine.any_up();
        let is_origin = server + 1 == state.servers.len();
        let returned = &mut state.servers[server];
        returned.returns = false;
        for peer in returned.peers {
            if !state.engine.is_up(peer) {
                state.engine.on_peer_up(now, peer, None);
            }
        }
        if is_origin {
            self.origin.notify_all();
        }
        if !was_up || is_origin {
            let otherwise = || Fault::new(FaultKind::Away, "no server can be reached");
            let fault = state.fault.clone().unwrap_or_else(otherwise);
            let ids: Vec<_> = state.jobs.jobs.keys().copied().collect();
            for id in ids {
                if let Some(job) = state.jobs.jobs.get_mut(&id) {
                    if was_up && !job.parked {
                        continue;
                    }
                    job.parked = false;
                    job.outage(&fault);
                    if job.is_done() {
                        job.ended.tell();
                    }
                }
                self.give(&mut state, now, id);
            }
        }
        self.act(&mut state, now, &[]);
    }

    /// Notes why a request failed.
    pub(super) fn note(state: &mut State, fault: &Fault) {
        log::debug!("a range did not come: {}", fault.why);
        // That nobody has it says more than who cannot be reached.
        let says_more =
            |old: &Fault| fault.kind == FaultKind::Away && matches!(old.kind, FaultKind::Absent);
        if !state.fault.as_ref().is_some_and(says_more) {
            state.fault = Some(fault.clone());
        }
    }

    /// Lets time pass, and returns how long nothing is to be done.
    fn tick(self: &Arc<Self>) -> Duration {
        let now = self.now();
        let mut state = self.state.lock();
        // The timer is awake: nobody has to wake it.
        state.wake = Some(Duration::ZERO);
        self.act(&mut state, now, &[]);
        let wake = state.engine.next_wake();
        state.wake = wake;
        let wait = wake.map_or(IDLE, |wake| wake.saturating_sub(now));
        wait.max(TICK)
    }
}

const fn open_bytes(priority: Priority) -> u64 {
    match priority {
        Priority::Demand | Priority::Plan => OPEN_BYTES,
        Priority::Fill => OPEN_FILL_BYTES,
    }
}

/// Lets time pass for a fetcher until it is gone.
pub(super) async fn keep_time(inner: Weak<Inner>) {
    loop {
        let Some(held) = inner.upgrade() else {
            return;
        };
        let wait = held.tick();
        tokio::select! {
            () = sleep(wait) => {}
            () = held.timer.notified() => {}
        }
    }
}
