//! Asking a node that may be on its way back.

use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use host::interrupt::Interrupt;
use node_api::client::{CallError, NodeClient};

/// How soon it is asked again.
const ASK_AGAIN_MS: u16 = 50;

/// A client that retries while the node's keeper restarts the node. Requests must be
/// idempotent.
#[derive(Debug)]
pub struct PatientClient {
    node: NodeClient,
    interrupt: Interrupt,
    /// Since when it has not answered: hundreds of questions have one patience.
    away_since: Mutex<Option<Instant>>,
}

impl PatientClient {
    /// Returns a client that stops waiting when it is interrupted.
    #[must_use]
    pub fn new(node: NodeClient, interrupt: Interrupt) -> Self {
        Self {
            node,
            interrupt,
            away_since: Mutex::default(),
        }
    }

    /// Retries until there is a response, or the node was not reachable for longer than `patience`.
    ///
    /// # Errors
    /// A refusal of the node, or that it does not respond.
    pub fn ask<T>(
        &self,
        patience: Duration,
        question: impl Fn(&NodeClient) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        loop {
            let answer = question(&self.node);
            if !matches!(answer, Err(CallError::Nobody(_) | CallError::Failed(_))) {
                *self.away_since.lock() = None;
                return answer;
            }
            let since = *self.away_since.lock().get_or_insert_with(Instant::now);
            if !self.may_wait(since + patience) {
                return answer;
            }
        }
    }

    /// Waits a moment, and returns whether there was time for that.
    pub(crate) fn may_wait(&self, deadline: Instant) -> bool {
        if Instant::now() >= deadline || self.interrupt.asked() {
            return false;
        }
        let mut asked = [PollFd::new(self.interrupt.fd(), PollFlags::POLLIN)];
        // Ended early by a signal, which is asked for next.
        let _events = poll(&mut asked, PollTimeout::from(ASK_AGAIN_MS));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn one_patience_is_for_all_questions_until_there_is_an_answer() {
        let interrupt = Interrupt::unarmed().unwrap();
        let client = PatientClient::new(NodeClient::at("/nonexistent"), interrupt.clone());
        let asked = AtomicU32::new(0);
        let nobody = |_: &NodeClient| -> Result<(), CallError> {
            asked.fetch_add(1, SeqCst);
            Err(CallError::Nobody("/nonexistent".into()))
        };
        let patience = Duration::from_millis(120);
        assert!(client.ask(patience, nobody).is_err());
        assert!(asked.swap(0, SeqCst) > 1, "it is asked again");
        assert!(client.ask(patience, nobody).is_err());
        assert_eq!(asked.swap(0, SeqCst), 1, "the patience is over");
        // It comes back, and goes away once more.
        assert!(client.ask(patience, |_| Ok(())).is_ok());
        assert!(client.ask(patience, nobody).is_err());
        assert!(asked.swap(0, SeqCst) > 1);
        interrupt.ask();
        client.ask(patience, |_| Ok(())).unwrap();
        assert!(client.ask(patience, nobody).is_err());
        assert_eq!(asked.swap(0, SeqCst), 1, "nobody has time");
    }
}
