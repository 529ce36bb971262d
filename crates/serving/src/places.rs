//! Which connections of a server are open: a bounded number of all clients, and of each one. A connection that only
//! waits for its client makes room for another.
//!
//! A client that sends no request, sends it slowly, or does not take its answer, has its connection for as long as the
//! deadlines let it. If these are all that there may be, a new one would wait for the deadline of another. So
//! the one that has waited for its client for longest is ended then: first of those that wait for a request, then of
//! those whose answer is not taken.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// How long each client has for its request, however many others come.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// How long it may take nothing of an answer, however many others come. Who writes it to a disk stops now and then.
const TAKE_PATIENCE: Duration = Duration::from_secs(1);

/// The connections of a server.
#[derive(Debug)]
pub struct Places<C> {
    all: usize,
    of_one: usize,
    patience: Patience,
    table: Arc<Table<C>>,
    next: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Patience {
    request: Duration,
    taking: Duration,
}

#[derive(Debug)]
struct Table<C> {
    /// By number.
    open: Mutex<BTreeMap<u64, Open<C>>>,
    /// One is over.
    left: Notify,
}

#[derive(Debug)]
struct Open<C> {
    client: C,
    /// How many requests are being answered.
    answering: usize,
    /// Since when a request is waited for, if none is being answered.
    since: Instant,
    /// Since when its client is waited for to take an answer, if it is.
    untaken_since: Option<Instant>,
    end: Arc<Notify>,
    /// Whether it has made room, and its place is another's.
    ended: bool,
}

/// What a client is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Awaited {
    Request,
    Taking,
}

/// An open connection, until it is dropped.
#[derive(Debug)]
pub struct Connection<C> {
    turn: Turn<C>,
    end: Arc<Notify>,
}

/// What a conversation says of itself: whether it is its client that it waits for.
#[derive(Clone, Debug)]
pub struct Turn<C> {
    number: u64,
    table: Arc<Table<C>>,
}

/// A request is being answered: until this is dropped, its connection waits for no other.
#[derive(Debug)]
pub struct Answering<C>(Turn<C>);

/// An answer is not taken by its client, until this is dropped.
#[derive(Debug)]
pub struct Untaken<C>(Turn<C>);

impl Patience {
    const fn of(self, what: Awaited) -> Duration {
        match what {
            Awaited::Request => self.request,
            Awaited::Taking => self.taking,
        }
    }
}

impl<C> Open<C> {
    /// Returns what its client is waited for, and since when; `None` if it is not, or is ended.
    fn waits(&self) -> Option<(Awaited, Instant)> {
        match self.untaken_since {
            _ if self.ended => None,
            Some(since) => Some((Awaited::Taking, since)),
            None if self.answering == 0 => Some((Awaited::Request, self.since)),
            None => None,
        }
    }
}

impl<C: Copy + Eq> Places<C> {
    /// Returns the bounds of a server: `all` connections, and `of_one` of one client.
    #[must_use]
    pub fn new(all: usize, of_one: usize) -> Self {
        Self {
            all,
            of_one,
            patience: Patience {
                request: PATIENCE,
                taking: TAKE_PATIENCE,
            },
            table: Arc::new(Table {
                open: Mutex::default(),
                left: Notify::new(),
            }),
            next: AtomicU64::new(0),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_patience(mut self, request: Duration, taking: Duration) -> Self {
        self.patience = Patience { request, taking };
        self
    }

    /// Waits until there is room for one more; `None` if its client has as many as it may, and none of them has been
    /// waited for long enough.
    pub async fn admit(&self, client: C) -> Option<Connection<C>> {
        loop {
            let mut left = pin!(self.table.left.notified());
            left.as_mut().enable();
            let look = {
                let mut open = self.table.open.lock();
                let same = |other: &C| *other == client;
                if taken(&open, same) >= self.of_one && !self.end_longest(&mut open, same) {
                    return None;
                }
                if taken(&open, |_| true) < self.all || self.end_longest(&mut open, |_| true) {
                    return Some(self.place(&mut open, client));
                }
                self.next_look(&open)
            };
            let _either = timeout_at(look, left).await;
        }
    }

    fn place(&self, open: &mut BTreeMap<u64, Open<C>>, client: C) -> Connection<C> {
        let number = self.next.fetch_add(1, Relaxed);
        let end = Arc::new(Notify::new());
        let new = Open {
            client,
            answering: 0,
            since: Instant::now(),
            untaken_since: None,
            end: Arc::clone(&end),
            ended: false,
        };
        open.insert(number, new);
        let table = Arc::clone(&self.table);
        Connection {
            turn: Turn { number, table },
            end,
        }
    }

    /// Ends the connection that has been waited for for longest, if that is long enough. Returns whether there was one.
    pub fn make_room(&self) -> bool {
        self.end_longest(&mut self.table.open.lock(), |_| true)
    }

    fn end_longest(&self, open: &mut BTreeMap<u64, Open<C>>, meant: impl Fn(&C) -> bool) -> bool {
        let now = Instant::now();
        let those = open.values_mut().filter(|one| meant(&one.client));
        let waiting = those.filter_map(|one| Some((one.waits()?, one)));
        let enough = waiting.filter(|((what, since), _)| *since + self.patience.of(*what) <= now);
        let longest = enough.min_by_key(|(waits, _)| *waits);
        let Some((_, longest)) = longest else {
            return false;
        };
        longest.ended = true;
        longest.end.notify_one();
        true
    }

    /// Returns when one will have been waited for long enough.
    fn next_look(&self, open: &BTreeMap<u64, Open<C>>) -> Instant {
        let waits = open.values().filter_map(Open::waits);
        let ends = waits.map(|(what, since)| since + self.patience.of(what));
        ends.min()
            .unwrap_or_else(|| Instant::now() + self.patience.request)
    }

    /// Waits until all are over, and returns whether they are.
    pub async fn wait_until_over(&self, patience: Duration) -> bool {
        let over = async {
            loop {
                let mut left = pin!(self.table.left.notified());
                left.as_mut().enable();
                if self.table.open.lock().is_empty() {
                    return;
                }
                left.await;
            }
        };
        timeout(patience, over).await.is_ok()
    }
}

/// Counts the places of the clients that are meant.
fn taken<C>(open: &BTreeMap<u64, Open<C>>, meant: impl Fn(&C) -> bool) -> usize {
    let those = open.values().filter(|one| !one.ended && meant(&one.client));
    those.count()
}

impl<C> Connection<C> {
    /// Waits until it is to make room.
    pub async fn ended(&self) {
        self.end.notified().await;
    }

    /// Returns what a conversation says of itself by.
    #[must_use]
    pub const fn turn(&self) -> &Turn<C> {
        &self.turn
    }
}

impl<C: Clone> Turn<C> {
    /// Says that a request has arrived: until the returned guard is dropped, and those of other requests that
    /// came over this connection, it is not ended to make room.
    #[must_use]
    pub fn begin(&self) -> Answering<C> {
        self.change(|open| open.answering += 1);
        Answering(self.clone())
    }

    /// Says that the client takes nothing of an answer, and how long it has not done so before.
    #[must_use]
    pub fn waits_for_taking(&self, before: Duration) -> Untaken<C> {
        let now = Instant::now();
        let since = now.checked_sub(before).unwrap_or(now);
        self.change(|open| open.untaken_since = Some(since));
        Untaken(self.clone())
    }
}

impl<C> Turn<C> {
    /// Changes the connection, unless it is over, which a request may outlive.
    fn change(&self, change: impl FnOnce(&mut Open<C>)) {
        if let Some(open) = self.table.open.lock().get_mut(&self.number) {
            change(open);
        }
    }
}

impl<C> Drop for Answering<C> {
    fn drop(&mut self) {
        self.0.change(|open| {
            open.answering -= 1;
            open.since = Instant::now();
        });
    }
}

impl<C> Drop for Untaken<C> {
    fn drop(&mut self) {
        self.0.change(|open| {
            open.untaken_since = None;
            open.since = Instant::now();
        });
    }
}

impl<C> Drop for Connection<C> {
    fn drop(&mut self) {
        let Turn { number, table } = &self.turn;
        table.open.lock().remove(number);
        table.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(60);

    fn places(all: usize, of_one: usize, patience: Duration) -> Places<&'static str> {
        Places::new(all, of_one).with_patience(patience, patience)
    }

    #[tokio::test]
    async fn whoever_was_waited_for_longest_makes_room() {
        let places = places(3, 2, Duration::ZERO);
        let first = places.admit("a").await.unwrap();
        let second = places.admit("b").await.unwrap();
        let _third = places.admit("a").await.unwrap();
        let _fourth = places.admit("a").await.unwrap();
        timeout(LONG, first.ended()).await.expect("of its client");
        drop(first);
        let _fifth = places.admit("c").await.unwrap();
        timeout(LONG, second.ended()).await.expect("of all");
    }

    #[tokio::test]
    async fn whoever_has_just_come_makes_no_room() {
        let places = places(8, 1, LONG);
        let connection = places.admit("a").await.unwrap();
        assert!(places.admit("a").await.is_none());
        assert!(places.admit("b").await.is_some());
        drop(connection);
        assert!(places.admit("a").await.is_some());
        assert!(places.wait_until_over(LONG).await);
    }

    #[tokio::test]
    async fn whoever_has_made_room_has_no_place_before_it_is_over() {
        let places = places(1, 1, Duration::ZERO);
        let _first = places.admit("a").await.unwrap();
        let second = places.admit("a").await.unwrap();
        drop(second);
        assert!(places.admit("a").await.is_some());
    }

    #[tokio::test]
    async fn whoever_is_answered_makes_no_room() {
        let places = places(8, 1, Duration::ZERO);
        let connection = places.admit("a").await.unwrap();
        let first = connection.turn().begin();
        let second = connection.turn().begin();
        drop(first);
        assert!(places.admit("a").await.is_none());
        drop(second);
        assert!(places.admit("a").await.is_some());
        timeout(LONG, connection.ended()).await.unwrap();
        assert!(!places.wait_until_over(Duration::from_millis(1)).await);
    }

    #[tokio::test]
    async fn whoever_takes_no_answer_makes_room_after_those_that_send_no_request() {
        let places = places(8, 3, Duration::ZERO);
        let taking = places.admit("a").await.unwrap();
        let _answering = taking.turn().begin();
        let untaken = taking.turn().waits_for_taking(LONG);
        let silent = places.admit("a").await.unwrap();
        let answered = places.admit("a").await.unwrap();
        let _busy = answered.turn().begin();
        let _fourth = places.admit("a").await.unwrap().turn().begin();
        timeout(LONG, silent.ended()).await.unwrap();
        drop(untaken);
        assert!(!places.make_room(), "all are answered");
        let _untaken = taking.turn().waits_for_taking(Duration::ZERO);
        assert!(places.make_room());
        timeout(LONG, taking.ended()).await.unwrap();
        assert!(!places.make_room());
    }

    #[tokio::test]
    async fn whoever_has_taken_little_for_long_makes_room() {
        let places = Places::new(8, 1).with_patience(LONG, LONG);
        let connection = places.admit("a").await.unwrap();
        let untaken = connection.turn().waits_for_taking(Duration::ZERO);
        assert!(!places.make_room());
        drop(untaken);
        let _untaken = connection.turn().waits_for_taking(LONG);
        assert!(places.make_room());
    }

    #[tokio::test]
    async fn an_answer_that_outlives_its_connection_leaves_nothing() {
        let places = places(1, 1, Duration::ZERO);
        let connection = places.admit("a").await.unwrap();
        let turn = connection.turn().clone();
        let (answering, untaken) = (turn.begin(), turn.waits_for_taking(LONG));
        drop(connection);
        drop((answering, untaken, turn.begin()));
        assert!(places.table.open.lock().is_empty());
        assert!(places.admit("a").await.is_some());
    }
}
