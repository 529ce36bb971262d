//! One sandbox of a handler, and the conversation with what runs in it.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox::{Phase, Request, Sandbox, SandboxError, Sandboxes, Stdio};
use serde::Deserialize;
use serde_json::Value;

/// The longest event and the longest result: those of other platforms are 6 MB.
pub(crate) const MESSAGE_MAX_BYTES: usize = 8 << 20;

/// A sandbox that has loaded a handler, or is ready to.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) sandbox: Arc<Sandbox>,
    channel: UnixStream,
    /// Since when it is idle.
    pub(crate) idle_since: Instant,
    /// The bytes that it alone uses, if it is frozen.
    pub(crate) frozen_bytes: Option<u64>,
}

/// The response.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) error: Option<String>,
    /// What the handler's code has imported of others, in the answer to the request to load it.
    pub(crate) modules: Vec<String>,
}

impl Instance {
    /// Starts a sandbox whose program waits for a request to load.
    pub(crate) fn start(sandboxes: &Sandboxes, request: Request) -> Result<Self, SandboxError> {
        let step = |source| SandboxError::Step {
            doing: "making a socket",
            source,
        };
        let (channel, theirs) = UnixStream::pair().map_err(step)?;
        let sandbox = sandboxes.create(request, Stdio::Asked(theirs.into()))?;
        Ok(Self {
            sandbox,
            channel,
            idle_since: Instant::now(),
            frozen_bytes: None,
        })
    }

    /// Has it load the handler, which must be at `/code` now.
    pub(crate) fn load(&mut self, deadline: Instant) -> io::Result<Reply> {
        self.exchange(b"{}", deadline)
    }

    /// Has it handle an event, which is JSON.
    pub(crate) fn ask(&mut self, event: &[u8], deadline: Instant) -> io::Result<Reply> {
        let message = [b"{\"event\":", event, b"}"].concat();
        self.exchange(&message, deadline)
    }

    fn exchange(&mut self, message: &[u8], deadline: Instant) -> io::Result<Reply> {
        let len = u32::try_from(message.len()).map_err(io::Error::other)?;
        let message = [&len.to_le_bytes()[..], message].concat();
        let mut sent = 0;
        while sent < message.len() {
            self.channel.set_write_timeout(Some(left(deadline)?))?;
            match late_as_such(self.channel.write(&message[sent..]))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                len => sent += len,
            }
        }
        let mut len = [0; 4];
        self.receive(&mut len, deadline)?;
        let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
        if len > MESSAGE_MAX_BYTES {
            let message = format!("its answer has more than {MESSAGE_MAX_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut reply = vec![0; len];
        self.receive(&mut reply, deadline)?;
        Ok(serde_json::from_slice(&reply)?)
    }

    fn receive(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        let mut got = 0;
        while got < buffer.len() {
            self.channel.set_read_timeout(Some(left(deadline)?))?;
            match late_as_such(self.channel.read(&mut buffer[got..]))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => got += len,
            }
        }
        Ok(())
    }

    /// Returns whether it can handle another request.
    pub(crate) fn lives(&self) -> bool {
        !matches!(self.sandbox.phase(), Phase::Ended(_))
    }

    /// Freezes it.
    pub(crate) fn freeze(&mut self) -> Result<(), SandboxError> {
        self.sandbox.pause()?;
        self.frozen_bytes = Some(self.sandbox.unshared_bytes());
        Ok(())
    }

    /// Resumes it, if it is frozen.
    pub(crate) fn thaw(&mut self) -> Result<(), SandboxError> {
        if self.frozen_bytes.take().is_some() {
            self.sandbox.resume()?;
        }
        Ok(())
    }

    /// The end of its standard error.
    pub(crate) fn last_words(&self) -> String {
        let written = self.sandbox.written();
        let text = written.map(|[_, err]| String::from_utf8_lossy(&err.bytes).trim().to_owned());
        let text = text.unwrap_or_default();
        text[text.ceil_char_boundary(text.len().saturating_sub(2000))..].to_owned()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(error) = self.sandbox.kill() {
            log::warn!(
                "the sandbox {} of a handler stays: {error}",
                self.sandbox.id()
            );
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// A time-out of a socket is told as if nothing were there yet.
fn late_as_such(done: io::Result<usize>) -> io::Result<usize> {
    done.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    })
}
