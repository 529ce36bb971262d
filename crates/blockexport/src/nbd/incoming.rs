//! What a client sends, read within deadlines.

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How often a read looks at its deadline.
const TICK: Duration = Duration::from_secs(1);

/// Several requests of a queue come with one system call.
const BUFFER_BYTES: usize = 16 << 10;

/// When bytes must be there.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// All of them by this time.
    Until(Instant),
    /// The first part at any time, and the others within this time.
    Begun(Duration),
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Incoming(BufReader<UnixStream>);

impl Incoming {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(TICK))?;
        Ok(Self(BufReader::with_capacity(BUFFER_BYTES, stream)))
    }

    /// Fills `buf`, and returns whether that was possible: not if the client has ended the connection
    /// before the first byte.
    pub(super) fn fill(&mut self, buf: &mut [u8], wait: Wait) -> io::Result<Filled> {
        let mut deadline = match wait {
            Wait::Until(time) => Some(time),
            Wait::Begun(_) => None,
        };
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.read(&mut buf[filled..]) {
                Ok(0) if filled == 0 => return Ok(Filled::Ended),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if let (Wait::Begun(patience), None, 1..) = (wait, deadline, filled) {
                deadline = Some(Instant::now() + patience);
            }
            if filled < buf.len() && deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(Filled::Full)
    }

    /// Fills `buf` until a time.
    pub(super) fn fill_by(&mut self, buf: &mut [u8], deadline: Instant) -> io::Result<()> {
        match self.fill(buf, Wait::Until(deadline))? {
            Filled::Full => Ok(()),
            Filled::Ended => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// What became of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// It is full.
    Full,
    /// The client ended the connection instead.
    Ended,
}
