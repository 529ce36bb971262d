//! Events for the main thread of a daemon, and the responses to their senders.

use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use yolofs::{Busy, End};

use host::control::Callers;
use node_api::mount_daemon::Response;

/// What wakes the daemon's main thread.
#[derive(Debug)]
pub(super) enum DaemonEvent {
    /// A signal requested the end of the process.
    Interrupted,
    /// A command requested the unmount, and waits for the response.
    Unmount(Busy, Sender<Response>),
    /// The session of the mount is over.
    Over(End),
}

/// Waits until all requests have responses, and returns whether they have. Senders of unmount requests
/// get theirs when `events` is dropped.
pub(super) fn answer_callers(events: Receiver<DaemonEvent>, callers: &Callers) -> bool {
    drop(events);
    callers.wait_until_answered()
}

/// Requests an unmount of the daemon, and waits for the result.
pub(super) fn ask_to_unmount(tell: &Mutex<Sender<DaemonEvent>>, busy: Busy) -> Response {
    let (answer, answers) = channel();
    let asked = tell.lock().send(DaemonEvent::Unmount(busy, answer)).is_ok();
    // No answer means that the daemon is ending already.
    asked
        .then(|| answers.recv().ok())
        .flatten()
        .unwrap_or(Response::Unmounted { in_use: false })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use host::control::{call, listen, serve};
    use node_api::mount_daemon::Request;

    #[test]
    fn who_asks_a_daemon_that_ends_is_not_kept_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("d.sock");
        let (tell, events) = channel();
        let (asking, asked) = channel();
        let (tell, asking) = (Mutex::new(tell), Mutex::new(asking));
        let callers = serve(listen(&socket).unwrap(), move |request| match request {
            Request::Unmount { .. } => {
                asking.lock().send(()).unwrap();
                ask_to_unmount(&tell, Busy::Wait)
            }
            _ => Response::Unmounted { in_use: false },
        });
        let callers = callers.unwrap();
        let command = std::thread::spawn(move || {
            let umount = Request::Unmount { lazy: false };
            call(&socket, &umount, Duration::from_secs(60))
        });
        asked.recv().unwrap();
        // The mount was over just before: nobody reads what happens any more.
        assert!(answer_callers(events, &callers), "nobody answers");
        assert!(matches!(
            command.join().unwrap().unwrap(),
            Response::Unmounted { .. }
        ));
    }
}
