//! Which connections are open: a bounded number of all clients, and of each one. A connection that only waits for its
//! client makes room for another.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use serving::connections::{ConnectionCounts, ConnectionPermit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// How long each client has for its request, however many others come.
const PATIENCE: Duration = Duration::from_millis(100);

/// The connections of a server.
pub(super) struct Admitted<C: Eq + Hash> {
    all: u32,
    of_one: usize,
    patience: Duration,
    places: Arc<Semaphore>,
    counts: Arc<ConnectionCounts<C>>,
    waiting: Arc<Waiting<C>>,
    next: AtomicU64,
}

/// What an open connection takes up.
struct Place<C: Eq + Hash> {
    _of_all: OwnedSemaphorePermit,
    _of_one: ConnectionPermit<C>,
}

/// Those that wait for a request of their client, by number.
type Waiting<C> = Mutex<BTreeMap<u64, Waits<C>>>;

struct Waits<C: Eq + Hash> {
    since: Instant,
    open: Arc<Open<C>>,
}

struct Open<C: Eq + Hash> {
    number: u64,
    client: C,
    state: Mutex<State<C>>,
    end: Notify,
}

struct State<C: Eq + Hash> {
    /// `None` once it is over, or has made room.
    place: Option<Place<C>>,
    /// For how many reasons nothing is waited for but ourselves.
    answering: usize,
}

/// An open connection, until it is dropped.
pub(super) struct Connection<C: Eq + Hash> {
    open: Arc<Open<C>>,
    waiting: Arc<Waiting<C>>,
}

/// A request that is being answered, or an answer that its client still takes: until this is dropped, its connection makes no
/// room.
pub(super) struct Answering<C: Eq + Hash> {
    open: Arc<Open<C>>,
    waiting: Arc<Waiting<C>>,
}

impl<C: Copy + Eq + Hash> Admitted<C> {
    /// Returns the bounds of a server: `all` connections, and `of_one` of one client.
    pub(super) fn new(all: u32, of_one: u32) -> Self {
        Self {
            all,
            of_one: of_one as usize,
            patience: PATIENCE,
            places: Arc::new(Semaphore::new(all as usize)),
            counts: Arc::default(),
            waiting: Arc::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Waits until there is room for one more; `None` if its client has as many as it may, and none of them has been
    /// waited for long enough.
    pub(super) async fn admit(&self, client: C) -> Option<Connection<C>> {
        let of_one = loop {
            if let Some(permit) = self.counts.take(client, self.of_one) {
                break permit;
            }
            if !self.make_room(|other| *other == client) {
                return None;
            }
        };
        let of_all = loop {
            let places = Arc::clone(&self.places);
            if let Ok(permit) = Arc::clone(&places).try_acquire_owned() {
                break permit;
            }
            if !self.make_room(|_| true)
                && let Ok(Ok(permit)) = timeout(self.patience, places.acquire_owned()).await
            {
                break permit;
            }
        };
        let place = Place {
            _of_all: of_all,
            _of_one: of_one,
        };
        let open = Arc::new(Open {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            client,
            state: Mutex::new(State {
                place: Some(place),
                answering: 0,
            }),
            end: Notify::new(),
        });
        open.wait(&open.state.lock(), &self.waiting);
        Some(Connection {
            open,
            waiting: Arc::clone(&self.waiting),
        })
    }

    /// Ends the connection that has been waited for for longest, of the clients that are meant, if that is long enough.
    /// Returns whether there was one.
    pub(super) fn make_room(&self, meant: impl Fn(&C) -> bool) -> bool {
        let ended = {
            let mut waiting = self.waiting.lock();
            let longest = waiting
                .values()
                .filter(|waits| meant(&waits.open.client) && waits.since.elapsed() >= self.patience)
                .min_by_key(|waits| waits.since);
            let number = longest.map(|waits| waits.open.number);
            number.and_then(|number| waiting.remove(&number))
        };
        let Some(Waits { open, .. }) = ended else {
            return false;
        };
        let mut state = open.state.lock();
        // A request that has come meanwhile is answered.
        if state.answering == 0 {
            open.end.notify_one();
            state.place = None;
        }
        true
    }

    /// Waits until all are over, and returns whether they are.
    pub(super) async fn wait_until_over(&self, patience: Duration) -> bool {
        let all = self.places.acquire_many(self.all);
        timeout(patience, all).await.is_ok()
    }
}

impl<C: Eq + Hash> Open<C> {
    /// Notes that a request is waited for, unless the connection is over.
    fn wait(self: &Arc<Self>, state: &State<C>, waiting: &Waiting<C>) {
        if state.place.is_some() {
            let waits = Waits {
                since: Instant::now(),
                open: Arc::clone(self),
            };
            waiting.lock().insert(self.number, waits);
        }
    }
}

impl<C: Eq + Hash> Connection<C> {
    /// Waits until it is to make room.
    pub(super) async fn ended(&self) {
        self.open.end.notified().await;
    }

    /// Says that a request has arrived, or that its client has not taken an answer yet.
    pub(super) fn begin(&self) -> Answering<C> {
        self.open.state.lock().answering += 1;
        self.waiting.lock().remove(&self.open.number);
        Answering {
            open: Arc::clone(&self.open),
            waiting: Arc::clone(&self.waiting),
        }
    }
}

impl<C: Eq + Hash> Drop for Connection<C> {
    fn drop(&mut self) {
        // First this: what is still answered does not wait for another request then.
        self.open.state.lock().place = None;
        self.waiting.lock().remove(&self.open.number);
    }
}

impl<C: Eq + Hash> Drop for Answering<C> {
    fn drop(&mut self) {
        let mut state = self.open.state.lock();
        state.answering -= 1;
        if state.answering == 0 {
            self.open.wait(&state, &self.waiting);
        }
    }
}

/// The body of an answer, until whose end the request is being answered.
pub(super) struct Answered<B, C: Eq + Hash> {
    inner: B,
    _answering: Answering<C>,
}

impl<B, C: Eq + Hash> Answered<B, C> {
    pub(super) fn new(inner: B, answering: Answering<C>) -> Self {
        Self {
            inner,
            _answering: answering,
        }
    }
}

impl<B: Body + Unpin, C: Eq + Hash> Body for Answered<B, C> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(60);

    fn admitted(all: u32, of_one: u32, patience: Duration) -> Admitted<&'static str> {
        Admitted {
            patience,
            ..Admitted::new(all, of_one)
        }
    }

    #[tokio::test]
    async fn whoever_was_waited_for_longest_makes_room() {
        let admitted = admitted(3, 2, Duration::ZERO);
        let first = admitted.admit("a").await.unwrap();
        let second = admitted.admit("b").await.unwrap();
        let _third = admitted.admit("a").await.unwrap();
        let _fourth = admitted.admit("a").await.unwrap();
        first.ended().await;
        drop(first);
        let _fifth = admitted.admit("c").await.unwrap();
        second.ended().await;
    }

    #[tokio::test]
    async fn whoever_has_just_come_makes_no_room() {
        let admitted = admitted(8, 1, LONG);
        let connection = admitted.admit("a").await.unwrap();
        assert!(admitted.admit("a").await.is_none());
        assert!(admitted.admit("b").await.is_some());
        drop(connection);
        assert!(admitted.admit("a").await.is_some());
        assert!(admitted.wait_until_over(LONG).await);
    }

    #[tokio::test]
    async fn whoever_is_answered_makes_no_room() {
        let admitted = admitted(8, 1, Duration::ZERO);
        let connection = admitted.admit("a").await.unwrap();
        let answering = connection.begin();
        assert!(admitted.admit("a").await.is_none());
        let taking = connection.begin();
        drop(answering);
        assert!(admitted.admit("a").await.is_none(), "it takes the answer");
        drop(taking);
        assert!(admitted.admit("a").await.is_some());
        connection.ended().await;
    }

    #[tokio::test]
    async fn an_answer_that_outlives_its_connection_leaves_nothing() {
        let admitted = admitted(1, 1, Duration::ZERO);
        let connection = admitted.admit("a").await.unwrap();
        let answering = connection.begin();
        drop(connection);
        drop(answering);
        assert!(admitted.waiting.lock().is_empty());
        assert!(admitted.admit("a").await.is_some());
    }
}
