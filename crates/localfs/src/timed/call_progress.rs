//! Long calls with a deadline for each step.
//!
//! A scan of a large source on a slow disk takes minutes, which is no error. So the deadline is not for
//! the scan but for each of its steps. A scan that makes no step within it is given up; its thread ends
//! when the source responds again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::helpers::NoAnswer;

/// How often is checked whether a call makes progress.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Calls of a process that may hang at a time after they were given up, each with a thread.
const HANGING_MAX: usize = 16;

static HANGING: AtomicUsize = AtomicUsize::new(0);

/// How far a call has come, and whether anybody still waits for it.
#[derive(Debug, Default)]
pub(crate) struct CallProgress {
    steps: AtomicU64,
    given_up: AtomicBool,
}

impl CallProgress {
    /// Records one more step.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, SeqCst);
    }

    /// Returns whether the caller has given up: the call should end.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(SeqCst)
    }
}

/// Counts a call that was given up, until it comes back.
struct Thread(Arc<CallProgress>);

impl Drop for Thread {
    fn drop(&mut self) {
        if self.0.given_up.swap(true, SeqCst) {
            HANGING.fetch_sub(1, SeqCst);
        }
    }
}

/// Makes a call on a thread, and waits for it as long as it makes a step within `patience` of the
/// one before. `tell` receives the number of steps now and then.
pub(crate) fn while_it_moves<T: Send + 'static>(
    patience: Duration,
    call: impl FnOnce(&CallProgress) -> T + Send + 'static,
    mut tell: impl FnMut(u64),
) -> Result<T, NoAnswer> {
    if HANGING.load(SeqCst) >= HANGING_MAX {
        let many = format!("{HANGING_MAX} calls to sources that do not answer hang already");
        return Err(NoAnswer::NoThread(io::Error::other(many)));
    }
    let call_progress = Arc::new(CallProgress::default());
    let (answer, answers) = sync_channel(1);
    let thread = Thread(Arc::clone(&call_progress));
    std::thread::Builder::new()
        .name("source".to_owned())
        .spawn(move || {
            // A caller that gave up is not there to be told.
            let _told = answer.send(call(&thread.0));
        })
        .map_err(NoAnswer::NoThread)?;
    let (mut steps, mut moved) = (0, Instant::now());
    loop {
        match answers.recv_timeout(LOOK_EVERY.min(patience)) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Died),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = call_progress.steps.load(SeqCst);
        if now != steps {
            (steps, moved) = (now, Instant::now());
            tell(steps);
        } else if moved.elapsed() >= patience {
            // Counted first: it may come back in between.
            HANGING.fetch_add(1, SeqCst);
            if call_progress.given_up.swap(true, SeqCst) {
                HANGING.fetch_sub(1, SeqCst);
            }
            // It may have come at the last moment.
            return answers.try_recv().map_err(|_| NoAnswer::Late);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SOON: Duration = Duration::from_millis(40);

    #[test]
    fn a_call_that_moves_is_waited_for() {
        let call = |call_progress: &CallProgress| {
            for _ in 0..20 {
                std::thread::sleep(SOON / 4);
                call_progress.step();
            }
            call_progress.is_given_up()
        };
        let mut told = 0;
        let given_up = while_it_moves(Duration::from_secs(60), call, |steps| told = steps);
        assert!(!given_up.unwrap());
        assert!((1..=20).contains(&told), "{told}");
    }

    #[test]
    fn a_call_that_stands_still_is_given_up_and_may_come_back() {
        let (open, gate) = channel::<()>();
        let (tell, told) = channel();
        let call = move |call_progress: &CallProgress| {
            let _opened = gate.recv();
            tell.send(call_progress.is_given_up()).unwrap();
        };
        let late = while_it_moves(SOON, call, |_| ());
        assert!(matches!(late, Err(NoAnswer::Late)));
        drop(open);
        assert!(told.recv().unwrap());
        // What panics is not waited for.
        let long = Duration::from_secs(60);
        let died = while_it_moves(long, |_| panic!("this panic is part of the test"), |_| ());
        assert!(matches!(died, Err::<(), _>(NoAnswer::Died)));
    }
}
