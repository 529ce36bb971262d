//! The commands that a daemon talks to: how many at a time, and which of them make room for others.
//!
//! One that sends no request, sends it slowly, or does not take its answer, has its connection for as long as the
//! deadlines let it. If these are all that there may be, the one that has been waited for longest is ended for
//! a new one.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::REQUEST_DEADLINE;

/// How many commands may be connected at a time: with [`PATIENCE`], a queue as long as the system lets it be
/// (4 096) is through in less than a second.
pub(super) const CONNECTED_MAX: usize = 256;
/// How many requests are answered at a time, until their answers are taken: each may take memory. Of more, those
/// that wait too long for their turn are turned away.
pub(super) const ANSWERED_MAX: usize = 8;
/// How long each is waited for, however many others come.
const PATIENCE: Duration = Duration::from_millis(50);

/// The commands that are connected.
#[derive(Debug, Default)]
pub struct Callers {
    state: Mutex<CallersState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CallersState {
    connected: usize,
    answered: usize,
    /// The number of the last one.
    last: u64,
    /// Those that are waited for.
    waited_for: BTreeMap<u64, WaitedFor>,
}

#[derive(Debug)]
struct WaitedFor {
    since: Instant,
    what: Awaited,
    stream: Arc<UnixStream>,
}

/// What a caller is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// To send its request.
    Request,
    /// To take its answer.
    Taking,
}

/// One that is connected, until this is dropped.
#[derive(Debug)]
pub(super) struct Caller {
    callers: Arc<Callers>,
    number: u64,
    stream: Arc<UnixStream>,
}

/// Its request is being answered, or its answer taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Callers);

impl CallersState {
    /// Ends those for which `ends` says so and that have been waited for long enough, the longest first, `most` of
    /// them. Returns when to look again.
    fn end_longest(&mut self, most: usize, ends: impl Fn(Awaited) -> bool) -> Instant {
        for _ in 0..most {
            let those = self.waited_for.iter().filter(|(_, of)| ends(of.what));
            let longest = those.map(|(number, of)| (of.since, *number)).min();
            let Some((since, number)) = longest else {
                break;
            };
            if since.elapsed() < PATIENCE {
                return since + PATIENCE;
            }
            if let Some(ended) = self.waited_for.remove(&number) {
                let half = match ended.what {
                    // What has arrived is still read, and answered.
                    Awaited::Request => Shutdown::Read,
                    Awaited::Taking => Shutdown::Both,
                };
                let _over = ended.stream.shutdown(half);
            }
        }
        Instant::now() + PATIENCE
    }
}

impl Callers {
    /// Takes one more in, as soon as there is room; gives it back if there is none for as long as a request may
    /// take.
    pub(super) fn admit(self: &Arc<Self>, stream: UnixStream) -> Result<Caller, UnixStream> {
        let deadline = Instant::now() + REQUEST_DEADLINE;
        let mut state = self.state.lock();
        while state.connected >= CONNECTED_MAX {
            if Instant::now() >= deadline {
                return Err(stream);
            }
            let look = state.end_longest(CONNECTED_MAX, |_| true).min(deadline);
            let _timed_out = self.changed.wait_until(&mut state, look);
        }
        state.connected += 1;
        state.last += 1;
        let caller = Caller {
            callers: Arc::clone(self),
            number: state.last,
            stream: Arc::new(stream),
        };
        drop(state);
        caller.wait_for(Awaited::Request);
        Ok(caller)
    }

    /// Ends those that are waited for, and waits until one has left, or for a moment: there are no descriptors
    /// for another.
    pub(super) fn make_room(&self) {
        let mut state = self.state.lock();
        let look = state.end_longest(CONNECTED_MAX, |_| true);
        let _timed_out = self.changed.wait_until(&mut state, look);
    }

    /// Waits until all responses are sent: if the process ended before, a command would get no
    /// response. Those that send no request make it wait no longer than they would others. Returns anyway when it
    /// takes longer than a response may, and whether all were sent.
    pub fn wait_until_answered(&self) -> bool {
        let deadline = Instant::now() + REQUEST_DEADLINE;
        let mut state = self.state.lock();
        while state.connected > 0 && Instant::now() < deadline {
            let look = state.end_longest(CONNECTED_MAX, |what| what == Awaited::Request);
            let _timed_out = self.changed.wait_until(&mut state, look.min(deadline));
        }
        state.connected == 0
    }
}

impl Caller {
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Its request has arrived, and is answered when it is its turn; `None` if that takes too long. Those that do
    /// not take their answers make room.
    pub(super) fn begin(&self) -> Option<Turn<'_>> {
        let deadline = Instant::now() + REQUEST_DEADLINE;
        let mut state = self.callers.state.lock();
        state.waited_for.remove(&self.number);
        while state.answered >= ANSWERED_MAX {
            if Instant::now() >= deadline {
                return None;
            }
            let look = state.end_longest(1, |what| what == Awaited::Taking);
            let look = look.min(deadline);
            let _timed_out = self.callers.changed.wait_until(&mut state, look);
        }
        state.answered += 1;
        Some(Turn(&self.callers))
    }

    /// It is given its answer, and has to take it.
    pub(super) fn takes(&self) {
        self.wait_for(Awaited::Taking);
    }

    fn wait_for(&self, what: Awaited) {
        let waited_for = WaitedFor {
            since: Instant::now(),
            what,
            stream: Arc::clone(&self.stream),
        };
        let mut state = self.callers.state.lock();
        state.waited_for.insert(self.number, waited_for);
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut state = self.callers.state.lock();
        state.waited_for.remove(&self.number);
        state.connected -= 1;
        drop(state);
        self.callers.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().answered -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use serde::{Deserialize, Serialize};

    use super::super::{Reply, call, listen, send, serve};
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Answer(String);

    impl Reply for Answer {
        fn failed(why: String) -> Self {
            Self(why)
        }
    }

    /// Answers each request with as many bytes as it says.
    fn daemon() -> (tempfile::TempDir, PathBuf, Arc<Callers>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("d.sock");
        let answer = |length: usize| Answer("x".repeat(length));
        let callers = serve(listen(&socket).unwrap(), answer).unwrap();
        (dir, socket, callers)
    }

    /// Asks a daemon. Less time would do, but on a machine with much else to do.
    fn ask(socket: &std::path::Path) {
        let Answer(text) = call(socket, &3, 3 * REQUEST_DEADLINE).unwrap();
        assert_eq!(text, "xxx");
    }

    #[test]
    fn two_thousand_idle_connections_keep_no_command_waiting() {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).unwrap();
        let (_dir, socket, callers) = daemon();
        let idle = || UnixStream::connect(&socket).unwrap();
        let idle: Vec<_> = (0..2000).map(|_| idle()).collect();
        // It takes half a second; eight of them each 100 ms would take 25 s.
        ask(&socket);
        assert!(callers.state.lock().connected <= CONNECTED_MAX);
        drop(idle);
    }

    #[test]
    fn those_that_take_no_answer_keep_no_command_waiting() {
        let (_dir, socket, _) = daemon();
        let takes_nothing = || {
            let stream = UnixStream::connect(&socket).unwrap();
            send(&stream, &(2 << 20)).unwrap();
            stream
        };
        // Eight of them for 5 s each would take 20 s.
        let idle: Vec<_> = (0..4 * ANSWERED_MAX).map(|_| takes_nothing()).collect();
        ask(&socket);
        drop(idle);
    }

    #[test]
    fn an_idle_connection_does_not_hold_up_the_end_of_a_daemon() {
        let (_dir, socket, callers) = daemon();
        let idle = UnixStream::connect(&socket).unwrap();
        ask(&socket); // So the first one is connected.
        assert!(callers.wait_until_answered());
        drop(idle);
    }

    #[test]
    fn a_request_that_has_arrived_is_answered_though_its_caller_makes_room() {
        let callers = Arc::<Callers>::default();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let caller = callers.admit(ours).unwrap();
        send(&theirs, &1).unwrap();
        let mut state = callers.state.lock();
        while !state.waited_for.is_empty() {
            let look = state.end_longest(1, |_| true);
            let _timed_out = callers.changed.wait_until(&mut state, look);
        }
        assert!(state.waited_for.is_empty());
        drop(state);
        let request: usize = super::super::receive(&mut caller.stream(), 100).unwrap();
        assert_eq!(request, 1);
        send(caller.stream(), &Answer("yes".to_owned())).unwrap();
        drop(caller);
        let Answer(text) = super::super::receive(&mut &theirs, 100).unwrap();
        assert_eq!(text, "yes");
        assert_eq!(callers.state.lock().connected, 0);
    }
}
