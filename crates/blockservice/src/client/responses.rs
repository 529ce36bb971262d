//! Responses to the requests of one thread, from both connections.

use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use chunks::Stored;

/// So many bytes are worth waking the waiting thread before all responses are received:
/// decompressing them takes longer than waking it.
const WORTH: usize = 256 << 10;

/// The response of a service about a chunk.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The chunk, not verified.
    Here(Stored),
    /// The service does not have it.
    No,
    /// The service is too busy.
    NotNow,
    /// None: there is no connection, it was lost, or the source is not open on it.
    Lost,
}

impl Reply {
    /// Returns the number of its bytes.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Here(stored) => stored.bytes.len(),
            Self::No | Self::NotNow | Self::Lost => 0,
        }
    }
}

/// Responses that were received and not processed yet. A thread that requested many small chunks is
/// woken when all were received, and not for each.
#[derive(Debug)]
pub(super) struct Responses {
    inbox: Mutex<Inbox>,
    more: Notify,
}

#[derive(Debug)]
struct Inbox {
    came: Vec<Response>,
    /// Bytes of the received responses.
    bytes: usize,
    /// Requests without a response.
    open: usize,
    /// Whether the thread is woken for each response.
    wake_on_each: bool,
    /// By place: whether no response is wanted any more.
    settled: Vec<bool>,
}

/// A response about the chunk at `place` of those that were requested.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) place: usize,
    pub(super) reply: Reply,
}

/// The way to respond to a request for one chunk on one connection. Dropping it responds with
/// [`Reply::Lost`].
#[derive(Debug)]
pub(super) struct Responder {
    responses: Arc<Responses>,
    place: usize,
    responded: bool,
}

impl Responses {
    /// Returns the inbox for responses about `count` chunks, which wakes its thread for each if
    /// `wake_on_each`.
    pub(super) fn new(count: usize, wake_on_each: bool) -> Arc<Self> {
        let inbox = Inbox {
            came: Vec::new(),
            bytes: 0,
            open: 0,
            wake_on_each,
            settled: vec![false; count],
        };
        Arc::new(Self {
            inbox: Mutex::new(inbox),
            more: Notify::new(),
        })
    }

    /// Returns a responder for a request about the chunk at `place`.
    pub(super) fn responder(self: &Arc<Self>, place: usize) -> Responder {
        self.inbox.lock().open += 1;
        Responder {
            responses: Arc::clone(self),
            place,
            responded: false,
        }
    }

    /// Wakes the thread for each response from now on.
    pub(super) fn wake_on_each(&self) {
        self.inbox.lock().wake_on_each = true;
    }

    /// Ignores further responses about the chunk at `place`.
    pub(super) fn settle(&self, place: usize) {
        self.inbox.lock().settled[place] = true;
    }

    /// Waits until all or enough responses were received, and takes them.
    pub(super) async fn next(&self) -> Vec<Response> {
        loop {
            {
                let mut inbox = self.inbox.lock();
                if inbox.is_enough() {
                    return inbox.take();
                }
            }
            self.more.notified().await;
        }
    }

    /// Takes the received responses.
    pub(super) fn take(&self) -> Vec<Response> {
        self.inbox.lock().take()
    }
}

impl Inbox {
    fn is_enough(&self) -> bool {
        self.open == 0 || self.bytes >= WORTH || (self.wake_on_each && !self.came.is_empty())
    }

    fn take(&mut self) -> Vec<Response> {
        self.bytes = 0;
        take(&mut self.came)
    }
}

impl Responder {
    /// Delivers a response.
    pub(super) fn tell(mut self, reply: Reply) {
        self.say(reply);
    }

    /// Returns whether the response is not wanted any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.responses.inbox.lock().settled[self.place]
    }

    fn say(&mut self, reply: Reply) {
        self.responded = true;
        let mut inbox = self.responses.inbox.lock();
        inbox.open -= 1;
        if !inbox.settled[self.place] {
            inbox.bytes += reply.bytes();
            let place = self.place;
            inbox.came.push(Response { place, reply });
        }
        let enough = inbox.is_enough();
        drop(inbox);
        if enough {
            self.responses.more.notify_one();
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.responded {
            self.say(Reply::Lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns the places of what came, or `None` if it is not waited for yet.
    fn came(responses: &Responses) -> Option<Vec<usize>> {
        let next = pin!(responses.next());
        match next.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(came) => Some(came.iter().map(|response| response.place).collect()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn small_answers_are_handed_over_together() {
        let responses = Responses::new(2, false);
        let (one, two) = (responses.responder(0), responses.responder(1));
        two.tell(Reply::No);
        assert_eq!(came(&responses), None);
        one.tell(Reply::NotNow);
        assert_eq!(came(&responses), Some(vec![1, 0]));
    }

    #[test]
    fn who_is_in_a_hurry_hears_of_each() {
        let responses = Responses::new(2, true);
        let (one, _two) = (responses.responder(0), responses.responder(1));
        assert_eq!(came(&responses), None);
        one.tell(Reply::No);
        assert_eq!(came(&responses), Some(vec![0]));
    }

    #[test]
    fn a_ticket_that_is_lost_is_an_answer() {
        let responses = Responses::new(1, false);
        let responder = responses.responder(0);
        assert!(!responder.is_cancelled());
        drop(responder);
        assert_eq!(came(&responses), Some(vec![0]));
    }

    #[test]
    fn what_is_settled_is_not_heard_of_again() {
        let responses = Responses::new(1, true);
        let (one, two) = (responses.responder(0), responses.responder(0));
        one.tell(Reply::No);
        assert_eq!(came(&responses), Some(vec![0]));
        responses.settle(0);
        assert!(two.is_cancelled());
        two.tell(Reply::No);
        assert_eq!(came(&responses), Some(vec![]));
    }
}
