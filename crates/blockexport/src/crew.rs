//! Threads that share a source of jobs.
//!
//! One member waits for the next job, lets the next member wait, and does the job itself. So
//! a single request in flight is handled by the thread that received it, without waking another, and many
//! are handled in parallel. Members are started as they are needed.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, Scope};

use parking_lot::Mutex;

/// Does jobs of `next` with `work`, in the calling thread and at most `most` in all, until `next`
/// returns `None` and the jobs taken before are done.
pub(crate) fn run<J>(
    name: &str,
    most: usize,
    next: impl FnMut() -> Option<J> + Send,
    work: impl Fn(J) + Sync,
) {
    let crew = Crew {
        name,
        most,
        turn: Mutex::new(Some(next)),
        work,
        members: AtomicUsize::new(1),
        idle: AtomicUsize::new(0),
    };
    thread::scope(|scope| crew.member(scope));
}

struct Crew<'a, N, W> {
    name: &'a str,
    most: usize,
    /// The holder takes the next job; `None` when there will be no more. It is held while waiting
    /// for one.
    turn: Mutex<Option<N>>,
    work: W,
    members: AtomicUsize,
    idle: AtomicUsize,
}

impl<J, N: FnMut() -> Option<J> + Send, W: Fn(J) + Sync> Crew<'_, N, W> {
    fn member<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        while let Some(job) = self.next() {
            if self.idle.load(Relaxed) == 0 && self.members.load(Relaxed) < self.most {
                self.members.fetch_add(1, Relaxed);
                let builder = thread::Builder::new().name(self.name.to_owned());
                if let Err(error) = builder.spawn_scoped(scope, || self.member(scope)) {
                    // Those that there are go on, one job after the other.
                    log::warn!("cannot start another thread of {}: {error}", self.name);
                }
            }
            (self.work)(job);
        }
    }

    fn next(&self) -> Option<J> {
        self.idle.fetch_add(1, Relaxed);
        let mut turn = self.turn.lock();
        let job = turn.as_mut().and_then(|next| next());
        self.idle.fetch_sub(1, Relaxed);
        if job.is_none() {
            *turn = None;
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn jobs_are_done_once_each_and_several_at_a_time() {
        let together = Barrier::new(4);
        let done = Mutex::new(Vec::new());
        let mut jobs = 0..400;
        run(
            "test",
            4,
            || jobs.next(),
            |job| {
                // Each four of them wait for each other: fewer threads would wait for ever.
                together.wait();
                done.lock().push(job);
            },
        );
        let mut done = done.into_inner();
        done.sort_unstable();
        assert_eq!(done, (0..400).collect::<Vec<_>>());
    }

    #[test]
    fn one_job_at_a_time_stays_in_one_thread() {
        let caller = thread::current().id();
        let mut jobs = 0..3;
        run(
            "test",
            1,
            || jobs.next(),
            |_| assert_eq!(thread::current().id(), caller),
        );
    }
}
