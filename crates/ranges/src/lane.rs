//! How many requests of one peer are under way at a time.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound that grows when the server turns out to take more.
#[derive(Debug)]
pub(crate) struct Lane {
    turns: Arc<Semaphore>,
    size: AtomicUsize,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(0)),
            size: AtomicUsize::new(0),
        }
    }

    /// Returns how many turns there are, as far as is known.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// Takes a place in the queue, and returns the wait for its turn; `parallel` is how many turns there are, as far as
    /// is known now. The result is never `None` as long as the lane is open.
    pub(crate) fn turn(
        &self,
        parallel: usize,
    ) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let before = self.size.fetch_max(parallel, Ordering::AcqRel);
        if parallel > before {
            self.turns.add_permits(parallel - before);
        }
        let mut turn = Box::pin(Arc::clone(&self.turns).acquire_owned());
        // A semaphore serves in the order in which it was polled first: that is to be the order of requests, and not
        // that in which their tasks come to run.
        let at_once = turn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        async move {
            match at_once {
                Poll::Ready(permit) => permit.ok(),
                Poll::Pending => turn.await.ok(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_in_the_order_in_which_they_were_asked_for() {
        let lane = Lane::new();
        let first = lane.turn(1).await;
        let (second, third) = (lane.turn(1), lane.turn(1));
        let mut third = Box::pin(third);
        drop(first);
        // The second one's turn has come, though nobody waits for it.
        let early = third.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(early.is_pending());
        drop(second.await);
        assert!(third.await.is_some());
        assert_eq!(lane.size(), 1);
    }
}
