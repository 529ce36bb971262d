//! What came of the chunks that one thread asked for, on either connection.

use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use chunks::Stored;

/// So many bytes are worth waking for, if more is to come: decompressing them takes longer than
/// a thread to wake.
const WORTH: usize = 256 << 10;

/// What a service says about a chunk.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Here it is, not verified.
    Here(Stored),
    /// It has it not.
    No,
    /// It has too much to do.
    NotNow,
    /// Nothing: the connection is not there or lost, or has not the source.
    Lost,
}

impl Reply {
    /// Returns how many bytes came with it.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Here(stored) => stored.bytes.len(),
            Self::No | Self::NotNow | Self::Lost => 0,
        }
    }
}

/// Answers that came and were not looked at yet. A thread that asked for many small chunks is woken
/// when all are there, and not for each.
#[derive(Debug)]
pub(super) struct Arrivals {
    inbox: Mutex<Inbox>,
    more: Notify,
}

#[derive(Debug)]
struct Inbox {
    came: Vec<Arrival>,
    /// Bytes of what came.
    bytes: usize,
    /// Questions without an answer.
    open: usize,
    /// Each answer is waited for.
    hurry: bool,
    /// By place: no answer is wanted any more.
    settled: Vec<bool>,
}

/// An answer about the chunk at `place` of those that were asked for.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) place: usize,
    pub(super) reply: Reply,
}

/// A question about one chunk on one connection. Whoever drops it says that no answer will come.
#[derive(Debug)]
pub(super) struct Ticket {
    arrivals: Arc<Arrivals>,
    place: usize,
    told: bool,
}

impl Arrivals {
    /// Returns what is to hear of `count` chunks, of each as soon as it comes if there is `hurry`.
    pub(super) fn new(count: usize, hurry: bool) -> Arc<Self> {
        let inbox = Inbox {
            came: Vec::new(),
            bytes: 0,
            open: 0,
            hurry,
            settled: vec![false; count],
        };
        Arc::new(Self {
            inbox: Mutex::new(inbox),
            more: Notify::new(),
        })
    }

    /// Returns a ticket for a question about the chunk at `place`.
    pub(super) fn ticket(self: &Arc<Self>, place: usize) -> Ticket {
        self.inbox.lock().open += 1;
        Ticket {
            arrivals: Arc::clone(self),
            place,
            told: false,
        }
    }

    /// Waits for every answer from now on.
    pub(super) fn hurry(&self) {
        self.inbox.lock().hurry = true;
    }

    /// Wants no more answers about the chunk at `place`.
    pub(super) fn settle(&self, place: usize) {
        self.inbox.lock().settled[place] = true;
    }

    /// Waits until all or enough came, and takes it.
    pub(super) async fn next(&self) -> Vec<Arrival> {
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

    /// Takes what came.
    pub(super) fn take(&self) -> Vec<Arrival> {
        self.inbox.lock().take()
    }
}

impl Inbox {
    fn is_enough(&self) -> bool {
        self.open == 0 || self.bytes >= WORTH || (self.hurry && !self.came.is_empty())
    }

    fn take(&mut self) -> Vec<Arrival> {
        self.bytes = 0;
        take(&mut self.came)
    }
}

impl Ticket {
    /// Hands an answer over.
    pub(super) fn tell(mut self, reply: Reply) {
        self.say(reply);
    }

    /// Returns whether nobody waits for the answer any more.
    pub(super) fn is_vain(&self) -> bool {
        self.arrivals.inbox.lock().settled[self.place]
    }

    fn say(&mut self, reply: Reply) {
        self.told = true;
        let mut inbox = self.arrivals.inbox.lock();
        inbox.open -= 1;
        if !inbox.settled[self.place] {
            inbox.bytes += reply.bytes();
            let place = self.place;
            inbox.came.push(Arrival { place, reply });
        }
        let enough = inbox.is_enough();
        drop(inbox);
        if enough {
            self.arrivals.more.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.told {
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
    fn came(arrivals: &Arrivals) -> Option<Vec<usize>> {
        let next = pin!(arrivals.next());
        match next.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(came) => Some(came.iter().map(|arrival| arrival.place).collect()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn small_answers_are_handed_over_together() {
        let arrivals = Arrivals::new(2, false);
        let (one, two) = (arrivals.ticket(0), arrivals.ticket(1));
        two.tell(Reply::No);
        assert_eq!(came(&arrivals), None);
        one.tell(Reply::NotNow);
        assert_eq!(came(&arrivals), Some(vec![1, 0]));
    }

    #[test]
    fn who_is_in_a_hurry_hears_of_each() {
        let arrivals = Arrivals::new(2, true);
        let (one, _two) = (arrivals.ticket(0), arrivals.ticket(1));
        assert_eq!(came(&arrivals), None);
        one.tell(Reply::No);
        assert_eq!(came(&arrivals), Some(vec![0]));
    }

    #[test]
    fn a_ticket_that_is_lost_is_an_answer() {
        let arrivals = Arrivals::new(1, false);
        let ticket = arrivals.ticket(0);
        assert!(!ticket.is_vain());
        drop(ticket);
        assert_eq!(came(&arrivals), Some(vec![0]));
    }

    #[test]
    fn what_is_settled_is_not_heard_of_again() {
        let arrivals = Arrivals::new(1, true);
        let (one, two) = (arrivals.ticket(0), arrivals.ticket(0));
        one.tell(Reply::No);
        assert_eq!(came(&arrivals), Some(vec![0]));
        arrivals.settle(0);
        assert!(two.is_vain());
        two.tell(Reply::No);
        assert_eq!(came(&arrivals), Some(vec![]));
    }
}
