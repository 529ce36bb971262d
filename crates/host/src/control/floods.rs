//! Many at a time who send nothing, or take nothing.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Deserialize;

use super::*;
use crate::callers::{CONNECTED_MAX, Limits};

/// Longer than any test takes: what is waited for until then is not had.
const LONG: Duration = Duration::from_secs(3600);
/// Less would do, but on a machine with much else to do.
const CALL: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
struct Answer(String);

impl Reply for Answer {
    fn failed(why: String) -> Self {
        Self(why)
    }
}

struct Daemon {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    callers: Arc<Callers>,
}

impl Daemon {
    /// Answers each request with as many bytes as it says.
    fn start(limits: Limits) -> Self {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("d.sock");
        let answer = |length: usize| Answer("x".repeat(length));
        let callers = Arc::new(Callers::within(limits));
        serve_to(&callers, listen(&socket).unwrap(), answer).unwrap();
        Self {
            _dir: dir,
            socket,
            callers,
        }
    }

    fn idle(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    /// Requests so many bytes, and takes none.
    fn takes_nothing(&self, length: usize) -> UnixStream {
        let stream = self.idle();
        send(&stream, &length).unwrap();
        stream
    }
}

/// Bounds with deadlines that nobody lives to see.
fn limits() -> Limits {
    Limits {
        answered: ANSWERED_MAX,
        deadline: LONG,
        patience: Duration::from_millis(50),
        untaken_bytes: 64 << 20,
    }
}

fn ask(socket: &Path) {
    let Answer(text) = call(socket, &3, CALL).unwrap();
    assert_eq!(text, "xxx");
}

/// Whether the daemon has ended it.
fn is_ended(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.read(&mut [0; 4096]).is_ok()
}

#[test]
fn two_thousand_idle_connections_keep_no_command_waiting() {
    let daemon = Daemon::start(limits());
    let idle: Vec<_> = (0..2000).map(|_| daemon.idle()).collect();
    ask(&daemon.socket);
    let ended = idle.iter().filter(|idle| is_ended(idle)).count();
    assert!(ended >= 2000 - CONNECTED_MAX, "{ended}");
}

/// Each that is ended for another comes again.
#[test]
fn idle_connections_that_come_again_keep_no_command_waiting() {
    let daemon = Daemon::start(limits());
    let (over, again) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut idle: VecDeque<_> = (0..600).map(|_| daemon.idle()).collect();
    let answered = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                let mut longest = idle.pop_front().unwrap();
                let look = Duration::from_millis(100);
                longest.set_read_timeout(Some(look)).unwrap();
                // It has been sent a refusal before its end.
                let read = longest.read(&mut [0; 4096]);
                if read.is_ok() {
                    again.fetch_add(1, SeqCst);
                    idle.push_back(daemon.idle());
                } else {
                    idle.push_front(longest);
                }
            }
        });
        let ask = |_: &i32| call::<_, Answer>(&daemon.socket, &3, CALL).is_ok();
        let answered = (0..16).take_while(ask).count();
        over.store(true, SeqCst);
        answered
    });
    assert_eq!(answered, 16);
    assert!(again.load(SeqCst) > 0);
}

/// Nobody has to make room for what is no more than all of them may take.
#[test]
fn answers_that_are_not_taken_keep_no_command_waiting() {
    let daemon = Daemon::start(Limits {
        patience: LONG,
        ..limits()
    });
    let idle: Vec<_> = (0..200).map(|_| daemon.takes_nothing(300 << 10)).collect();
    let since = Instant::now();
    while daemon.callers.untaken_bytes() < idle.len() * (300 << 10) {
        assert!(since.elapsed() < CALL, "they wait for each other");
        std::thread::yield_now();
    }
    ask(&daemon.socket);
}

#[test]
fn those_that_take_no_answer_keep_no_command_waiting() {
    let daemon = Daemon::start(Limits {
        untaken_bytes: 8 << 20,
        ..limits()
    });
    let idle: Vec<_> = (0..32).map(|_| daemon.takes_nothing(2 << 20)).collect();
    ask(&daemon.socket);
    // It is not by luck that it was before them: each of them has its turn.
    for mut idle in idle {
        idle.set_read_timeout(Some(CALL)).unwrap();
        let begun = idle.read(&mut [0]);
        assert!(begun.is_ok(), "it is neither answered nor ended");
    }
}

#[test]
fn an_idle_connection_does_not_hold_up_the_end_of_a_daemon() {
    let daemon = Daemon::start(Limits {
        deadline: CALL,
        ..limits()
    });
    let idle = daemon.idle();
    ask(&daemon.socket); // So the first one is connected.
    assert!(daemon.callers.wait_until_answered());
    drop(idle);
}
