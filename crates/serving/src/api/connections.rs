//! The connections of an API: a bounded number, of which those that wait for their peer make room for others
//! ([`places`]).

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use super::Closed;
use crate::places::{self, PATIENCE, Places};

/// How long no connection is taken after one could not be. Most likely descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of an API, up to a bound.
#[derive(Debug)]
pub struct Connections(Places<()>);

/// What a conversation says of itself: whether it is its peer that it waits for.
pub type Turn = places::Turn<()>;

impl Connections {
    /// Returns an acceptor of at most `max` connections at a time, and one that waits for room.
    #[must_use]
    pub fn up_to(max: u32) -> Self {
        Self(Places::new(max as usize, usize::MAX))
    }

    /// Accepts connections until `closed` ends, and runs `converse` for each.
    pub async fn take<P, F>(
        &self,
        mut closed: Closed,
        accept: impl AsyncFn() -> io::Result<P>,
        converse: impl Fn(P, Turn) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            let next = async {
                let peer = accept().await?;
                Ok::<_, io::Error>((peer, self.0.admit(()).await))
            };
            let accepted = tokio::select! {
                next = next => next,
                _ = &mut closed => return,
            };
            let (peer, connection) = match accepted {
                // There is no bound for one client.
                Ok((_, None)) => continue,
                Ok((peer, Some(connection))) => (peer, connection),
                Err(error) => {
                    log::warn!("the API cannot take a connection: {error}");
                    self.0.make_room();
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let conversation = converse(peer, connection.turn().clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = conversation => {}
                    () = connection.ended() => log::debug!("api: a client that was waited for made room"),
                }
            });
        }
    }

    /// Waits until all that were taken are over. Those that wait for their peers are ended, as for others.
    pub async fn end_waiting(&self) {
        while !self.wait_until_over(PATIENCE).await {
            while self.0.make_room() {}
        }
    }

    /// Waits until all that were taken are over, and returns whether they are.
    pub async fn wait_until_over(&self, patience: Duration) -> bool {
        self.0.wait_until_over(patience).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use parking_lot::Mutex;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::sync::{Notify, Semaphore, oneshot};
    use tokio::time::timeout;

    /// Longer than anything takes here; reached only by a failure.
    const LONG: Duration = Duration::from_secs(60);

    /// What a peer of the tests does.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Peer {
        /// Sends nothing.
        Silent,
        /// Sends a request, and takes the answer.
        Asks,
        /// Sends a request whose answer comes when the test says so.
        AsksMuch,
        /// Sends a request, and takes no answer.
        TakesNothing,
    }

    #[derive(Debug, Default)]
    struct Seen {
        answered: AtomicUsize,
        open: AtomicUsize,
        most_open: AtomicUsize,
        changed: Notify,
        /// Has the requests answered that ask much.
        answer: Hold,
    }

    /// Nobody passes it until permits are added.
    #[derive(Debug)]
    struct Hold(Semaphore);

    impl Default for Hold {
        fn default() -> Self {
            Self(Semaphore::new(0))
        }
    }

    impl Seen {
        async fn until_answered(&self, count: usize) {
            let all = async {
                while self.answered.load(SeqCst) < count {
                    self.changed.notified().await;
                }
            };
            timeout(LONG, all).await.expect("they wait");
        }
    }

    /// Counts a connection while it is open.
    struct Open(Arc<Seen>);

    impl Open {
        fn new(seen: &Arc<Seen>) -> Self {
            let open = seen.open.fetch_add(1, SeqCst) + 1;
            seen.most_open.fetch_max(open, SeqCst);
            Self(Arc::clone(seen))
        }
    }

    impl Drop for Open {
        fn drop(&mut self) {
            self.0.open.fetch_sub(1, SeqCst);
        }
    }

    async fn converse(peer: Peer, turn: Turn, seen: Arc<Seen>) {
        let _open = Open::new(&seen);
        if peer == Peer::Silent {
            return std::future::pending().await;
        }
        let busy = turn.begin();
        if peer == Peer::AsksMuch {
            seen.answer.0.acquire().await.unwrap().forget();
        }
        drop(busy);
        if peer == Peer::TakesNothing {
            return std::future::pending().await;
        }
        seen.answered.fetch_add(1, SeqCst);
        seen.changed.notify_one();
    }

    /// Serves these peers in their order, up to `max` at a time, while `test` runs.
    async fn serve<F: Future<Output = ()>>(
        max: u32,
        peers: Vec<Peer>,
        test: impl FnOnce(Arc<Seen>) -> F,
    ) {
        let seen = Arc::new(Seen::default());
        let (send, come) = unbounded_channel();
        peers.into_iter().for_each(|peer| send.send(peer).unwrap());
        let come = tokio::sync::Mutex::new(come);
        let accept = async || Ok(come.lock().await.recv().await.unwrap());
        let (close, closed) = oneshot::channel();
        let Connections(places) = Connections::up_to(max);
        let connections = Connections(places.with_patience(Duration::from_millis(2), LONG));
        let converse = |peer, turn| converse(peer, turn, Arc::clone(&seen));
        let test = async {
            test(Arc::clone(&seen)).await;
            close.send(()).unwrap();
        };
        tokio::join!(connections.take(closed, accept, converse), test);
    }

    #[tokio::test]
    async fn two_thousand_that_are_waited_for_keep_nobody_waiting() {
        for idle in [Peer::Silent, Peer::TakesNothing] {
            let mut peers = vec![idle; 2000];
            peers.push(Peer::Asks);
            serve(64, peers, async |seen| {
                seen.until_answered(1).await;
                assert_eq!(seen.most_open.load(SeqCst), 64, "{idle:?}");
            })
            .await;
        }
    }

    #[tokio::test]
    async fn who_is_being_answered_is_not_ended_for_others() {
        let mut peers = vec![Peer::AsksMuch; 4];
        peers.extend([Peer::Silent; 20]);
        peers.push(Peer::Asks);
        serve(4, peers, async |seen| {
            sleep(Duration::from_millis(20)).await;
            assert_eq!(seen.answered.load(SeqCst), 0, "there is no room");
            assert_eq!(seen.open.load(SeqCst), 4);
            seen.answer.0.add_permits(4);
            seen.until_answered(5).await;
        })
        .await;
    }

    #[tokio::test]
    async fn nobody_is_ended_where_there_is_room() {
        let mut peers = vec![Peer::Silent; 3];
        peers.extend([Peer::Asks; 50]);
        serve(64, peers, async |seen| {
            seen.until_answered(50).await;
            assert!(seen.open.load(SeqCst) >= 3);
        })
        .await;
    }

    #[tokio::test]
    async fn what_answers_one_of_several_requests_is_not_ended_for_others() {
        let Connections(places) = Connections::up_to(1);
        let connections = Connections(places.with_patience(Duration::ZERO, LONG));
        let (_close, closed) = oneshot::channel();
        let one = Mutex::new(Some(()));
        let accept = async || {
            let one = one.lock().take();
            match one {
                Some(()) => Ok(()),
                None => std::future::pending().await,
            }
        };
        let (begun, mut turns) = unbounded_channel();
        let converse = |(), turn: Turn| {
            begun.send(turn).unwrap();
            std::future::pending()
        };
        let test = async {
            let turn = turns.recv().await.unwrap();
            let (first, second) = (turn.begin(), turn.begin());
            drop(first);
            assert!(!connections.0.make_room());
            drop(second);
            timeout(LONG, connections.end_waiting()).await.unwrap();
        };
        tokio::select! {
            () = connections.take(closed, accept, converse) => panic!("it is over"),
            () = test => {}
        }
    }

    /// Others of the process have so many that there are none for as many connections as there may be.
    #[tokio::test]
    async fn those_that_are_waited_for_make_room_where_descriptors_have_run_out() {
        let (seen, descriptors) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let peers = Mutex::new(vec![Peer::Asks, Peer::Silent, Peer::Silent]);
        let accept = async || {
            if descriptors.open.load(SeqCst) >= 2 {
                return Err(io::Error::from_raw_os_error(24)); // EMFILE
            }
            let next = peers.lock().pop();
            match next {
                Some(peer) => Ok((peer, Open::new(&descriptors))),
                None => std::future::pending().await,
            }
        };
        let (_close, closed) = oneshot::channel();
        let connections = Connections::up_to(64);
        let converse = |(peer, descriptor), turn| {
            let conversation = converse(peer, turn, Arc::clone(&seen));
            async move {
                conversation.await;
                drop(descriptor);
            }
        };
        tokio::select! {
            () = connections.take(closed, accept, converse) => panic!("it is over"),
            () = seen.until_answered(1) => {}
        }
    }
}
