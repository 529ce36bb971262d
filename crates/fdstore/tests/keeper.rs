//! Keepers with real children, which are killed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod actor;
mod intruder;

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rawio::pidfd::PidFd;
use tempfile::TempDir;
use testkit::by_name::{self, Test};
use testkit::named_tests;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the tests that the arguments name, or all; or plays what the tests start.
fn main() {
    actor::play();
    by_name::run(TESTS);
}

const TESTS: &[Test] = named_tests![
    descriptors_survive_kills,
    a_barrier_is_answered_and_a_full_store_refuses_what_is_too_much,
    a_failure_is_followed_by_a_start_and_an_end_on_purpose_is_not,
    a_signal_is_passed_on_and_ends_both,
    who_forges_the_number_of_the_child_is_not_heard,
    the_next_program_is_started_when_the_child_ends,
    a_program_that_never_is_ready_is_followed_by_the_one_before,
    a_child_whose_keeper_was_killed_starts_another_around_itself,
    a_child_of_an_earlier_release_is_looked_after_and_not_heard,
    a_program_of_an_earlier_release_is_followed_by_the_one_before,
    a_child_that_dies_before_its_new_keeper_looks_is_followed,
];

/// A keeper, and where its children report.
struct Stage {
    keeper: Child,
    listener: UnixListener,
    dir: TempDir,
    /// Others that were seen, to be gone in the end.
    others: Vec<PidFd>,
}

/// A child that has reported.
struct Actor {
    pid: u32,
    keeper: u32,
    path: PathBuf,
    names: String,
    orders: BufReader<UnixStream>,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("test")).unwrap();
        let keeper = Command::new(std::env::current_exe().unwrap())
            .env(actor::ROLE, "keeper")
            .env(actor::TEST_SOCKET, dir.path().join("test"))
            .env(actor::KEEPER_LOCK, dir.path().join("keeper.lock"))
            .spawn()
            .unwrap();
        Self {
            keeper,
            listener,
            dir,
            others: Vec::new(),
        }
    }

    /// Waits for the next child.
    fn child(&mut self) -> Actor {
        let timeout = PollTimeout::try_from(PATIENCE).unwrap();
        let mut events = [PollFd::new(
            std::os::fd::AsFd::as_fd(&self.listener),
            PollFlags::POLLIN,
        )];
        assert_eq!(poll(&mut events, timeout).unwrap(), 1, "no child came");
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut orders = BufReader::new(stream);
        let mut hello = String::new();
        orders.read_line(&mut hello).unwrap();
        let mut words = hello.trim_end_matches('\n').split(' ');
        let mut word = || words.next().unwrap().to_owned();
        let actor = Actor {
            pid: word().parse().unwrap(),
            keeper: word().parse().unwrap(),
            path: word().into(),
            names: word(),
            orders,
        };
        self.others.extend(PidFd::open(actor.pid));
        actor
    }

    fn signal(&self, signal: Signal) {
        send(self.keeper.id(), signal);
    }

    /// Waits for the keeper's end.
    fn ends(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.keeper.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the keeper goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Children end when nobody listens to them; a keeper that is killed starts no others.
        drop(self.keeper.kill());
        drop(self.keeper.wait());
        for other in &self.others {
            drop(other.signal(Signal::SIGKILL));
        }
    }
}

impl Actor {
    fn tell(&mut self, order: &str) {
        writeln!(self.orders.get_mut(), "{order}").unwrap();
    }

    /// Gives an order, and returns the answer.
    fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        let mut answer = String::new();
        let read = self.orders.read_line(&mut answer).unwrap();
        assert!(read > 0, "the child died of {order}");
        assert!(!answer.starts_with("error"), "{order}: {answer}");
        answer.trim_end().to_owned()
    }

    fn kill(&self) {
        send(self.pid, Signal::SIGKILL);
    }
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

fn descriptors_survive_kills() {
    let mut stage = Stage::new();
    let mut first = stage.child();
    assert_eq!(first.names, "");
    assert_eq!(first.keeper, stage.keeper.id());
    first.ask("ready");
    first.ask("store-file file-1 one");
    first.ask("store-pipe pipe-2 two");
    first.ask("store-file gone-3 three");
    first.ask("remove gone-3");
    first.ask("status fine");
    // No barrier: what was sent before the death is heard before the next start.
    first.kill();
    for round in 0..3 {
        let mut next = stage.child();
        assert_eq!(next.names, "file-1:pipe-2", "round {round}");
        assert_eq!(next.ask("read file-1"), "one");
        if round == 2 {
            // The writer died with the first child; a store that polled would have dropped it.
            assert_eq!(next.ask("read pipe-2"), "two");
            next.tell("exit 0");
        } else {
            next.kill();
        }
    }
    assert_eq!(stage.ends().code(), Some(0));
}

fn a_barrier_is_answered_and_a_full_store_refuses_what_is_too_much() {
    let mut stage = Stage::new();
    let mut child = stage.child();
    for index in 0..50 {
        child.ask(&format!("store-file f{index} {index}"));
    }
    child.ask("barrier");
    child.kill();
    let mut next = stage.child();
    assert_eq!(next.names.split(':').count(), 40);
    assert_eq!(next.ask("read f39"), "39");
}

fn a_failure_is_followed_by_a_start_and_an_end_on_purpose_is_not() {
    let mut stage = Stage::new();
    stage.child().tell("exit 3");
    let mut child = stage.child();
    child.ask("stopping");
    child.tell("exit 3");
    assert_eq!(stage.ends().code(), Some(3));
}

fn a_signal_is_passed_on_and_ends_both() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut stage = Stage::new();
        // Held, because a child ends when nobody listens to it.
        let child = stage.child();
        stage.signal(signal);
        // A child that does not handle it dies of it, and has no code.
        assert_eq!(stage.ends().code(), Some(99), "{signal}");
        drop(child);
    }
}

fn who_forges_the_number_of_the_child_is_not_heard() {
    let mut stage = Stage::new();
    let mut child = stage.child();
    let other = copy(&stage, &child);
    child.ask("ready");
    child.ask("store-file kept yes");
    child.ask("barrier");
    let file = tempfile::tempfile().unwrap();
    for place in [
        stage.dir.path().join("keeper"),
        stage.dir.path().join("keeper.sock"),
    ] {
        for message in [
            &format!("X_YOLOFS_PROGRAM={}", other.display()),
            "FDSTORE=1\nFDPOLL=0\nFDNAME=given",
            "FDSTOREREMOVE=1\nFDNAME=kept",
            "STOPPING=1",
        ] {
            intruder::forge(&place, child.pid, message, &file);
        }
    }
    child.ask("barrier");
    child.kill();
    let next = stage.child();
    assert_eq!((&next.path, next.names.as_str()), (&child.path, "kept"));
    let names = intruder::names(stage.keeper.id());
    assert_eq!(names, Vec::<PathBuf>::new(), "whoever gets there is heard");
}

/// The same program by another name.
fn copy(stage: &Stage, child: &Actor) -> PathBuf {
    let other = stage.dir.path().join("other");
    std::fs::hard_link(&child.path, &other)
        .or_else(|_| std::fs::copy(&child.path, &other).map(drop))
        .unwrap();
    other
}

fn the_next_program_is_started_when_the_child_ends() {
    let mut stage = Stage::new();
    let mut child = stage.child();
    let other = copy(&stage, &child);
    child.ask("ready");
    child.ask("store-file kept yes");
    child.ask(&format!("next {}", other.display()));
    // Even an end on purpose: the word for what comes next was meant.
    child.tell("exit 0");
    let mut new = stage.child();
    assert_eq!((&new.path, new.names.as_str()), (&other, "kept"));
    new.ask("ready");
    new.ask("barrier");
    new.kill();
    let newer = stage.child();
    assert_eq!(newer.path, other);
}

fn a_program_that_never_is_ready_is_followed_by_the_one_before() {
    let mut stage = Stage::new();
    let mut child = stage.child();
    let here = child.path.clone();
    child.ask("ready");
    child.ask("store-file kept yes");
    for bad in ["/bin/false", "/nowhere/at/all"] {
        child.ask(&format!("next {bad}"));
        child.kill();
        child = stage.child();
        assert_eq!(
            (&child.path, child.names.as_str()),
            (&here, "kept"),
            "{bad}"
        );
        child.ask("ready");
    }
}

fn a_child_whose_keeper_was_killed_starts_another_around_itself() {
    let mut stage = Stage::new();
    let mut first = stage.child();
    first.ask("store-file old one");
    first.kill();
    let mut child = stage.child();
    for _ in 0..3 {
        let keeper = PidFd::open(child.keeper).unwrap();
        send(child.keeper, Signal::SIGKILL);
        drop(stage.keeper.try_wait());
        assert!(keeper.ended_within(PATIENCE).unwrap());
        let adopter: u32 = child.ask("surround").parse().unwrap();
        stage.others.extend(PidFd::open(adopter));
        child.ask("barrier");
        child.ask("remove new");
        child.ask("store-file new two");
        child.kill();
        child = stage.child();
        assert_eq!(child.keeper, adopter);
        let mut names: Vec<_> = child.names.split(':').collect();
        names.sort_unstable();
        assert_eq!(names, ["new", "old"]);
    }
    assert_eq!(child.ask("read old"), "one");
    assert_eq!(child.ask("read new"), "two");
    let keeper = PidFd::open(child.keeper).unwrap();
    child.tell("exit 0");
    assert!(keeper.ended_within(PATIENCE).unwrap());
}

fn a_child_of_an_earlier_release_is_looked_after_and_not_heard() {
    let mut stage = Stage::new();
    let mut first = stage.child();
    first.ask("store-file old one");
    first.kill();
    let mut child = stage.child();
    let keeper = PidFd::open(child.keeper).unwrap();
    send(child.keeper, Signal::SIGKILL);
    drop(stage.keeper.try_wait());
    assert!(keeper.ended_within(PATIENCE).unwrap());
    let adopter: u32 = child.ask("surround-as-before").parse().unwrap();
    stage.others.extend(PidFd::open(adopter));
    // It has the lock when it looks after the child.
    let lock = stage.dir.path().join("keeper.lock");
    let deadline = Instant::now() + PATIENCE;
    while std::fs::read_to_string(&lock).unwrap() != adopter.to_string() {
        assert!(Instant::now() < deadline, "it is no keeper");
        std::thread::sleep(Duration::from_millis(5));
    }
    let file = tempfile::tempfile().unwrap();
    for message in ["FDSTOREREMOVE=1\nFDNAME=old", "STOPPING=1"] {
        intruder::forge(&lock.with_extension("sock"), child.pid, message, &file);
    }
    assert_eq!(intruder::names(adopter), Vec::<PathBuf>::new());
    child.kill();
    let mut next = stage.child();
    assert_eq!((next.keeper, next.names.as_str()), (adopter, "old"));
    // What it starts is heard.
    next.ask("store-file new two");
    next.ask("barrier");
    next.kill();
    assert_eq!(stage.child().names, "old:new");
}

fn a_program_of_an_earlier_release_is_followed_by_the_one_before() {
    let mut stage = Stage::new();
    let mut child = stage.child();
    let here = child.path.clone();
    child.ask("ready");
    child.ask("store-file kept yes");
    // As such a release does that is told of no name: without the variable it would be a keeper.
    let earlier = stage.dir.path().join("earlier");
    let script = "#!/bin/sh\ncase $NOTIFY_SOCKET in [/@]*) exit 0;; ?*) exit 1;; esac\nexit 0\n";
    std::fs::write(&earlier, script).unwrap();
    std::fs::set_permissions(&earlier, Permissions::from_mode(0o755)).unwrap();
    child.ask(&format!("next {}", earlier.display()));
    child.kill();
    let next = stage.child();
    assert_eq!((&next.path, next.names.as_str()), (&here, "kept"));
}

fn a_child_that_dies_before_its_new_keeper_looks_is_followed() {
    let mut stage = Stage::new();
    let mut first = stage.child();
    first.ask("store-file old one");
    first.kill();
    let mut child = stage.child();
    for round in 0..3 {
        let keeper = PidFd::open(child.keeper).unwrap();
        send(child.keeper, Signal::SIGKILL);
        drop(stage.keeper.try_wait());
        assert!(keeper.ended_within(PATIENCE).unwrap());
        child.tell("surround-and-die");
        child = stage.child();
        stage.others.extend(PidFd::open(child.keeper));
        // What it sent last counts as well.
        let last = child
            .names
            .split(':')
            .filter(|name| *name == "last")
            .count();
        assert_eq!(last, round + 1);
    }
    assert_eq!(child.ask("read old"), "one");
}
