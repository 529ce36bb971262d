//! The connections of a server on a unix socket, each with one request: how many at a time, and which of them make room
//! for others.
//!
//! One that sends no request, sends it slowly, or does not take its answer, has its connection for as long as the
//! deadlines let it. If these are all that there may be, the one that has been waited for longest is ended for
//! a new one.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How many may be connected at a time.
pub const CONNECTED_MAX: usize = 256;
/// How long each is waited for, however many others come.
const PATIENCE: Duration = Duration::from_millis(50);
/// The most memory of answers that are not taken yet, of all together: eight of the longest. What the system takes
/// of each, some 200 KiB, counts in it, too.
const UNTAKEN_MAX_BYTES: usize = 64 << 20;

/// How long, and how much, is read of what is thrown away.
const PARTING: Duration = Duration::from_secs(2);
const PARTING_MAX: u64 = 16 << 20;

/// Those that are connected.
#[derive(Debug)]
pub struct Callers {
    limits: Limits,
    state: Mutex<CallersState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many requests are answered at a time. Of more, those that wait too long for their turn are turned away.
    pub(crate) answered: usize,
    /// How long one waits for a place, or for its turn; and is waited for, if no others come.
    pub(crate) deadline: Duration,
    pub(crate) patience: Duration,
    pub(crate) untaken_bytes: usize,
}

#[derive(Debug, Default)]
struct CallersState {
    connected: usize,
    answered: usize,
    untaken_bytes: usize,
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
pub struct Caller {
    callers: Arc<Callers>,
    number: u64,
    stream: Arc<UnixStream>,
}

/// Its request is being answered, until this is dropped.
#[derive(Debug)]
pub struct Turn<'a>(&'a Callers);

/// Its answer takes memory, until this is dropped.
#[derive(Debug)]
pub struct Taking<'a> {
    callers: &'a Callers,
    bytes: usize,
}

impl CallersState {
    /// Ends those for which `ends` says so and that have been waited for long enough, the longest first, `most` of
    /// them. Returns when to look again.
    fn end_longest(
        &mut self,
        patience: Duration,
        most: usize,
        ends: impl Fn(Awaited) -> bool,
    ) -> Instant {
        for _ in 0..most {
            let those = self.waited_for.iter().filter(|(_, of)| ends(of.what));
            let longest = those.map(|(number, of)| (of.since, *number)).min();
            let Some((since, number)) = longest else {
                break;
            };
            if since.elapsed() < patience {
                return since + patience;
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
        Instant::now() + patience
    }
}

impl Callers {
    /// Returns the bounds of a server that answers so many requests at a time. Each may take `deadline` to arrive, again
    /// to have its turn, and again until its answer is taken.
    #[must_use]
    pub fn new(answered: usize, deadline: Duration) -> Self {
        Self::within(Limits {
            answered,
            deadline,
            patience: PATIENCE,
            untaken_bytes: UNTAKEN_MAX_BYTES,
        })
    }

    pub(crate) fn within(limits: Limits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Has `converse` talk to each that comes, on a thread of its own with this name; those for which there is no
    /// room get what `refuse` says. Returns when `incoming` ends.
    pub fn take(
        self: &Arc<Self>,
        name: &str,
        incoming: impl Iterator<Item = io::Result<UnixStream>>,
        converse: impl Fn(&Caller) + Send + Sync + 'static,
        refuse: impl Fn(&UnixStream),
    ) {
        let converse = Arc::new(converse);
        for stream in incoming {
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    log::warn!("a connection cannot be taken: {error}");
                    self.make_room();
                    continue;
                }
            };
            let caller = match self.admit(stream) {
                Ok(caller) => caller,
                Err(stream) => {
                    refuse(&stream);
                    continue;
                }
            };
            let converse = Arc::clone(&converse);
            let thread = std::thread::Builder::new().name(name.to_owned());
            if let Err(error) = thread.spawn(move || converse(&caller)) {
                log::warn!("there is no thread to answer a request: {error}");
            }
        }
    }

    /// Takes one more in, as soon as there is room; gives it back if there is none for as long as a request may
    /// take.
    fn admit(self: &Arc<Self>, stream: UnixStream) -> Result<Caller, UnixStream> {
        let deadline = Instant::now() + self.limits.deadline;
        let mut state = self.state.lock();
        while state.connected >= CONNECTED_MAX {
            if Instant::now() >= deadline {
                return Err(stream);
            }
            self.wait_for_room(&mut state, CONNECTED_MAX, deadline, |_| true);
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
    fn make_room(&self) {
        let deadline = Instant::now() + self.limits.patience;
        let mut state = self.state.lock();
        self.wait_for_room(&mut state, CONNECTED_MAX, deadline, |_| true);
    }

    /// Ends at most so many of those for which `ends` says so, if they were waited for long enough, and waits until
    /// something changes, or it is time to look again.
    fn wait_for_room(
        &self,
        state: &mut MutexGuard<'_, CallersState>,
        most: usize,
        deadline: Instant,
        ends: impl Fn(Awaited) -> bool,
    ) {
        let look = state.end_longest(self.limits.patience, most, ends);
        let _timed_out = self.changed.wait_until(state, look.min(deadline));
    }

    /// Returns whether nobody is connected.
    pub fn is_empty(&self) -> bool {
        self.state.lock().connected == 0
    }

    #[cfg(test)]
    pub(crate) fn untaken_bytes(&self) -> usize {
        self.state.lock().untaken_bytes
    }

    /// Waits until all responses are sent: if the process ended before, a command would get no
    /// response. Those that send no request make it wait no longer than they would others. Returns anyway when it
    /// takes longer than a response may, and whether all were sent.
    pub fn wait_until_answered(&self) -> bool {
        let deadline = Instant::now() + self.limits.deadline;
        let mut state = self.state.lock();
        while state.connected > 0 && Instant::now() < deadline {
            let ends = |what| what == Awaited::Request;
            self.wait_for_room(&mut state, CONNECTED_MAX, deadline, ends);
        }
        state.connected == 0
    }
}

impl Caller {
    /// Returns until when it is waited for from now on.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.callers.limits.deadline
    }

    /// Returns its stream.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Says that its request has arrived, and waits for its turn; `None` if that takes too long.
    pub fn begin(&self) -> Option<Turn<'_>> {
        let Callers { limits, .. } = &*self.callers;
        let deadline = Instant::now() + limits.deadline;
        let mut state = self.callers.state.lock();
        state.waited_for.remove(&self.number);
        while state.answered >= limits.answered {
            if Instant::now() >= deadline {
                return None;
            }
            let _timed_out = self.callers.changed.wait_until(&mut state, deadline);
        }
        state.answered += 1;
        Some(Turn(&self.callers))
    }

    /// Says that it has to take its answer, which takes so much memory until the returned value is dropped. Waits until
    /// those of others leave so much, for which those that do not take theirs make room.
    pub fn takes<'a>(&self, turn: Turn<'a>, bytes: usize) -> Taking<'a> {
        let callers = turn.0;
        let deadline = Instant::now() + callers.limits.deadline;
        let mut state = callers.state.lock();
        while state.untaken_bytes > 0
            && state.untaken_bytes + bytes > callers.limits.untaken_bytes
            // What was done is answered all the same: `Limits::answered` bounds these, too.
            && Instant::now() < deadline
        {
            let ends = |what| what == Awaited::Taking;
            callers.wait_for_room(&mut state, 1, deadline, ends);
        }
        state.untaken_bytes += bytes;
        drop(state);
        self.wait_for(Awaited::Taking);
        drop(turn);
        Taking { callers, bytes }
    }

    /// Says that it has to take a short answer to what is no request, and sends nothing else.
    pub fn takes_refusal(&self) {
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

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.callers.state.lock().untaken_bytes -= self.bytes;
        self.callers.changed.notify_all();
    }
}

/// Reads, and throws away, what somebody still sends who was refused, until they have ended, within
/// bounds: while they are sending, they do not see the answer.
pub fn part(mut stream: &UnixStream) {
    let _ended = stream.shutdown(Shutdown::Write);
    let (deadline, mut left) = (Instant::now() + PARTING, PARTING_MAX);
    let mut piece = vec![0; 64 << 10];
    while left > 0 {
        let patience = deadline.saturating_duration_since(Instant::now());
        if patience.is_zero() || stream.set_read_timeout(Some(patience)).is_err() {
            return;
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => left = left.saturating_sub(read as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(3600);
    /// Longer than anything takes here; reached only by a failure.
    const CALL: Duration = Duration::from_secs(60);

    /// Bounds of one that answers so many requests at a time, for which nobody makes room.
    fn patient(answered: usize, untaken_bytes: usize) -> Limits {
        Limits {
            answered,
            deadline: LONG,
            patience: LONG,
            untaken_bytes,
        }
    }

    fn connected(callers: &Arc<Callers>) -> (Caller, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (callers.admit(ours).unwrap(), theirs)
    }

    #[test]
    fn a_request_that_has_arrived_is_answered_though_its_caller_makes_room() {
        let callers = Arc::new(Callers::within(patient(1, 1)));
        let (caller, mut theirs) = connected(&callers);
        theirs.write_all(b"request").unwrap();
        let mut state = callers.state.lock();
        state.end_longest(Duration::ZERO, 1, |_| true);
        assert!(state.waited_for.is_empty());
        drop(state);
        let mut request = String::new();
        caller.stream().read_to_string(&mut request).unwrap();
        assert_eq!(request, "request");
        drop(caller.begin().unwrap());
        caller.stream().write_all(b"answer").unwrap();
        drop(caller);
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
        assert!(callers.is_empty());
    }

    #[test]
    fn an_answer_that_is_not_taken_leaves_its_turn_to_others() {
        let callers = Arc::new(Callers::within(Limits {
            deadline: Duration::ZERO,
            ..patient(1, 100)
        }));
        let these = [(); 3].map(|()| connected(&callers));
        let taking: Vec<_> = these[..2]
            .iter()
            .map(|(caller, _)| caller.takes(caller.begin().unwrap(), 50))
            .collect();
        let third = these[2].0.begin().unwrap();
        assert_eq!(callers.state.lock().untaken_bytes, 100);
        drop(taking);
        // It is more than all may be, and there is nothing beside it.
        drop(these[2].0.takes(third, 101));
        assert_eq!(callers.state.lock().untaken_bytes, 0);
        assert_eq!(callers.state.lock().answered, 0);
    }

    #[test]
    fn answers_that_are_not_taken_make_room_for_others() {
        let callers = Arc::new(Callers::within(Limits {
            patience: Duration::ZERO,
            deadline: CALL,
            ..patient(2, 100)
        }));
        let [(first, theirs), (second, _)] = [(); 2].map(|()| connected(&callers));
        theirs.set_read_timeout(Some(CALL)).unwrap();
        let taking = first.takes(first.begin().unwrap(), 60);
        let turn = second.begin().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It is ended, as who writes to it notices, and then leaves.
                let ended = (&theirs).read(&mut [0; 1]);
                assert_eq!(ended.unwrap(), 0);
                drop(taking);
            });
            drop(second.takes(turn, 60));
        });
    }

    #[test]
    fn those_that_send_nothing_make_room_where_descriptors_have_run_out() {
        let callers = Arc::new(Callers::within(Limits {
            patience: Duration::from_millis(2),
            ..patient(1, 1)
        }));
        let (mut come, mut others): (Vec<_>, Vec<_>) =
            (0..20).map(|_| UnixStream::pair().unwrap()).unzip();
        others[0].write_all(b"x").unwrap(); // of the one that is taken last
        let (send, answered) = std::sync::mpsc::channel();
        let counted = Arc::clone(&callers);
        let incoming = std::iter::from_fn(move || {
            if counted.state.lock().connected >= 2 {
                return Some(Err(io::Error::from_raw_os_error(24))); // EMFILE
            }
            come.pop().map(Ok)
        });
        let converse = move |caller: &Caller| {
            if caller.stream().read_exact(&mut [0]).is_ok() {
                send.send(()).unwrap();
            }
        };
        let taking = std::thread::spawn(move || callers.take("test", incoming, converse, |_| ()));
        // It comes after all that send nothing.
        answered.recv_timeout(CALL).expect("they wait");
        taking.join().unwrap();
        drop(others);
    }
}
