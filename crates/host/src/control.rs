//! The protocol between commands and a daemon: one JSON request and one JSON response, a line each, over
//! the unix socket in the run directory. The requests depend on the kind of
//! daemon.
//!
//! Only root and the daemon's own user are admitted (`admission.rs`). Requests and responses are
//! bounded; a daemon that does not respond within the caller's deadline counts as stuck.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rawio::unix_socket;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admission::Admission;
pub use crate::callers::Callers;
use crate::callers::{Caller, part};

/// The longest answer, in bytes: the status of a layer takes some 1 KiB.
const ANSWER_MAX: u64 = 8 << 20;
/// The longest request. The longest that we send names all images of a Docker, some 80 bytes each.
const REQUEST_MAX: u64 = 1 << 20;
/// How long a daemon waits for a command to finish its line, and to take the answer.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// How many requests are answered at a time: each may take memory.
const ANSWERED_MAX: usize = 8;

/// How long a daemon waits for one that has let go of its lock, and has not ended yet.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(2);
/// How often it looks: the system does not tell when a socket is closed.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What a command is told that was not answered because of others.
const BUSY: &str = "too many commands at a time";

/// A response type that can express a failure.
pub trait Reply: Serialize {
    /// Returns the response for a failure, with the reason for people.
    fn failed(why: String) -> Self;
}

/// Sends a request to the daemon that listens on `socket`.
///
/// # Errors
/// If no process listens there, or no response comes within `deadline`.
pub fn call<Q: Serialize, A: DeserializeOwned>(
    socket: &Path,
    request: &Q,
    deadline: Duration,
) -> anyhow::Result<A> {
    let stream = unix_socket::connect_within(socket, deadline)
        .with_context(|| format!("calling the daemon at {}", socket.display()))?;
    stream
        .set_read_timeout(Some(deadline))
        .context("setting a deadline")?;
    stream
        .set_write_timeout(Some(deadline))
        .context("setting a deadline")?;
    send(&stream, request)?;
    receive(&mut &stream, ANSWER_MAX).with_context(|| {
        format!(
            "waiting {} s for the daemon at {}",
            deadline.as_secs(),
            socket.display()
        )
    })
}

/// Returns whether a call failed because its daemon does not run.
#[must_use]
pub fn nobody_listens(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(cause.kind(), ConnectionRefused | NotFound)
    })
}

fn line_of<T: Serialize>(message: &T) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message).context("writing JSON")?;
    line.push(b'\n');
    Ok(line)
}

fn send<T: Serialize>(mut stream: &UnixStream, message: &T) -> anyhow::Result<()> {
    stream.write_all(&line_of(message)?).context("sending")
}

fn receive<T: DeserializeOwned>(stream: &mut dyn Read, max: u64) -> anyhow::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(max))
        .read_until(b'\n', &mut line)
        .context("receiving")?;
    if !line.ends_with(b"\n") {
        bail!("the connection was closed in the middle of a message");
    }
    serde_json::from_slice(&line).context("decoding the message")
}

/// How much is written at a time: the system waits as long as it may for each part that a socket takes.
const PIECE: usize = 64 << 10;

/// A stream that has to bring or take all until then, and not only each piece in time.
struct Until<'a>(&'a UnixStream, Instant);

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.1.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.set_read_timeout(Some(self.left()?))?;
        self.0.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set_write_timeout(Some(self.left()?))?;
        self.0.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Listens on `socket`; the socket of an earlier daemon is replaced, if that is about to end, as soon as it has.
///
/// # Errors
/// If a process serves it, another file is there, or the socket cannot be created.
pub fn listen(socket: &Path) -> anyhow::Result<UnixListener> {
    let deadline = Instant::now() + PREDECESSOR_ENDS;
    loop {
        match unix_socket::remove_dead(socket) {
            Ok(()) => break,
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline =>
            {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("replacing {}", socket.display()));
            }
        }
    }
    UnixListener::bind(socket).with_context(|| format!("listening on {}", socket.display()))
}

/// Answers every request with `handle`, each on a thread of its own, until the process ends.
///
/// # Errors
/// If the accepting thread cannot be started.
pub fn serve<Q, A, H>(listener: UnixListener, handle: H) -> anyhow::Result<Arc<Callers>>
where
    Q: DeserializeOwned + 'static,
    A: Reply + 'static,
    H: Fn(Q) -> A + Send + Sync + 'static,
{
    let callers = Arc::new(Callers::new(ANSWERED_MAX, REQUEST_DEADLINE));
    serve_to(&callers, listener, handle)?;
    Ok(callers)
}

fn serve_to<Q, A, H>(
    callers: &Arc<Callers>,
    listener: UnixListener,
    handle: H,
) -> anyhow::Result<()>
where
    Q: DeserializeOwned + 'static,
    A: Reply + 'static,
    H: Fn(Q) -> A + Send + Sync + 'static,
{
    let admission = admission(&listener);
    let callers = Arc::clone(callers);
    let converse = move |caller: &Caller| {
        if let Err(error) = answer(caller, &admission, &handle) {
            log::debug!("a command went away: {error:#}");
        }
    };
    let refuse = |stream: &UnixStream| {
        // It learns of it by the end of the stream if it cannot be told.
        let _told = send(stream, &A::failed(BUSY.to_owned()));
    };
    let accept = move || callers.take("control", listener.incoming(), converse, refuse);
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(accept)
        .context("starting the thread that takes commands")?;
    Ok(())
}

/// Returns who is admitted to a socket of a run directory: root and the user of this process, and
/// no worker that has its own socket below that.
pub fn admission(listener: &UnixListener) -> Admission {
    let address = listener.local_addr().ok();
    let run_dir = address
        .as_ref()
        .and_then(|address| address.as_pathname()?.parent());
    match run_dir {
        Some(run_dir) => Admission::own().but_workers_of(run_dir),
        None => Admission::own(),
    }
}

fn answer<Q: DeserializeOwned, A: Reply>(
    caller: &Caller,
    admission: &Admission,
    handle: &dyn Fn(Q) -> A,
) -> anyhow::Result<()> {
    let stream = caller.stream();
    let request = admission.check_peer(stream).and_then(|()| {
        let mut request = Until(stream, caller.deadline());
        let request = receive(&mut request, REQUEST_MAX).map_err(|error| format!("{error:#}"))?;
        let turn = caller.begin().ok_or(BUSY)?;
        Ok((request, turn))
    });
    match request {
        Ok((request, turn)) => {
            let line = line_of(&handle(request))?;
            let _taking = caller.takes(turn, line.len());
            let mut answer = Until(stream, caller.deadline());
            answer.write_all(&line).context("sending")
        }
        Err(why) => {
            caller.takes_refusal();
            let mut answer = Until(stream, caller.deadline());
            answer
                .write_all(&line_of(&A::failed(why))?)
                .context("sending")?;
            part(stream);
            Ok(())
        }
    }
}

#[cfg(test)]
mod floods;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, socket};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case", tag = "do")]
    enum Request {
        Echo { number: u64 },
        End,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case", tag = "answer")]
    enum Answer {
        Ended,
        Failed { why: String },
    }

    impl Reply for Answer {
        fn failed(why: String) -> Self {
            Self::Failed { why }
        }
    }

    fn daemon() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("d.sock");
        drop(UnixListener::bind(&socket).unwrap()); // a dead daemon's
        let listener = listen(&socket).unwrap();
        serve(listener, |request| match request {
            Request::End => Answer::Ended,
            Request::Echo { number } => Answer::Failed {
                why: number.to_string(),
            },
        })
        .unwrap();
        (dir, socket)
    }

    #[test]
    fn a_daemon_waits_for_its_predecessor_and_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("d.sock");
        let predecessor = listen(&socket).unwrap();
        let successor = std::thread::spawn({
            let socket = socket.clone();
            move || listen(&socket)
        });
        // The successor looks at it, for as long as it is there.
        drop(predecessor.accept().unwrap());
        drop(predecessor);
        drop(successor.join().unwrap().unwrap());
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let refused = format!("{:#}", listen(&file).unwrap_err());
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn a_request_that_comes_byte_by_byte_has_one_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            // Ends when nobody reads any more, or that takes much too long.
            let mut pieces = 0..5_000;
            while pieces.next().is_some() && theirs.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut request = Until(&ours, Instant::now() + Duration::from_millis(50));
        let error = receive::<Request>(&mut request, REQUEST_MAX).unwrap_err();
        let cause = error.root_cause().downcast_ref::<io::Error>().unwrap();
        let late = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(late.contains(&cause.kind()), "{error:#}");
        drop(ours);
        writer.join().unwrap();
    }

    #[test]
    fn an_answer_that_is_taken_byte_by_byte_has_one_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4 << 10];
            // Ends when nobody writes any more.
            while theirs.read(&mut piece).is_ok_and(|read| read > 0) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut answer = Until(&ours, Instant::now() + Duration::from_millis(50));
        let error = answer.write_all(&vec![0; 64 << 20]).unwrap_err();
        let late = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(late.contains(&error.kind()), "{error}");
        drop(ours);
        reader.join().unwrap();
    }

    #[test]
    fn answers_come_back() {
        let (_dir, socket) = daemon();
        let deadline = Duration::from_secs(10);
        for _ in 0..3 * ANSWERED_MAX {
            let answer = call(&socket, &Request::End, deadline).unwrap();
            assert!(matches!(answer, Answer::Ended));
        }
        let answer = call(&socket, &Request::Echo { number: 7 }, deadline).unwrap();
        assert!(matches!(answer, Answer::Failed { why } if why.contains('7')));
    }

    #[test]
    fn nonsense_is_refused_and_bounded() {
        let (_dir, socket) = daemon();
        for nonsense in [
            &b"{}\n"[..],
            b"\n",
            b"{\"do\":\"dance\"}\n",
            &[b'x'; 1000][..],
        ] {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(nonsense).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let answer: Answer = receive(&mut &stream, ANSWER_MAX).unwrap();
            assert!(matches!(answer, Answer::Failed { .. }));
        }
    }

    /// It sends all of it before it reads, as `call` does.
    #[test]
    fn who_sends_too_much_gets_its_refusal() {
        let (_dir, socket) = daemon();
        for more in [0, 1, 8 << 20] {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let deadline = Some(Duration::from_secs(60));
            stream.set_read_timeout(deadline).unwrap();
            let length = usize::try_from(REQUEST_MAX).unwrap() + more;
            stream.write_all(&vec![b'x'; length]).unwrap();
            let answer: Answer = receive(&mut &stream, ANSWER_MAX).unwrap();
            assert!(matches!(answer, Answer::Failed { .. }));
            let end = stream.read(&mut [0; 1]);
            assert_eq!(end.unwrap(), 0, "it is closed, and not reset");
        }
    }

    #[test]
    fn a_daemon_that_accepts_no_connection_is_stuck() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.sock");
        // There is room for one connection that is not accepted.
        let flags = SockFlag::SOCK_CLOEXEC;
        let busy = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind(busy.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        nix::sys::socket::listen(&busy, Backlog::new(0).unwrap()).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let deadline = Duration::from_millis(20);
            tell.send(call::<_, Answer>(&path, &Request::End, deadline))
        });
        let called = told.recv_timeout(Duration::from_secs(30));
        let error = called.expect("it waits without end").unwrap_err();
        assert!(!nobody_listens(&error));
        let error = format!("{error:#}");
        assert!(error.contains("accepted no connection"), "{error}");
    }

    #[test]
    fn nobody_there_is_said_so() {
        let error: anyhow::Result<Answer> = call(
            Path::new("/nonexistent/x.sock"),
            &Request::End,
            REQUEST_DEADLINE,
        );
        let error = error.unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/x.sock"));
        assert!(nobody_listens(&error));
        assert!(!nobody_listens(&anyhow::anyhow!("it is busy")));
    }
}
