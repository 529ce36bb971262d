//! The client of the node's API: one request, one response, within a deadline.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::control::{Made, WhenInUse};
use super::spec::MountSpec;
use super::view::{Drained, MountView, NodeView, Upgraded};
use crate::bodies::{BootBody, ErrorBody, Pace, PrewarmBody, ResizeBody, UpgradeBody, socket};
use crate::boot_choice::BootChoice;
use crate::device::{Attached, DeviceSpec, DeviceView};
use crate::image::KeptPlan;
use crate::mount_daemon::PrewarmSummary;
use host::run_dir::RunDir;

/// The longest answer: 1 000 mounts take some 2 MiB.
const ANSWER_MAX: usize = 64 << 20;

/// What a client waits beyond the node's own deadline, so that the node's words win.
const MARGIN: Duration = Duration::from_secs(5);

/// How long a client waits before it looks again whether the node's queue has room.
const QUEUE_CHECK: Duration = Duration::from_millis(20);

/// Asks the node that listens on a socket. Not for threads that run a tokio runtime.
#[derive(Clone, Debug)]
pub struct NodeClient {
    socket: PathBuf,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No node listens on this socket.
    #[error("no node listens on {}", .0.display())]
    Nobody(PathBuf),
    /// The node refused the request.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// One of the codes in docs/api.md.
        code: String,
        /// The reason, for people.
        message: String,
    },
    /// The node did not respond within the deadline.
    #[error("the node at {} did not respond within {} s", socket.display(), deadline.as_secs())]
    TimedOut {
        /// The socket of the request.
        socket: PathBuf,
        /// The deadline.
        deadline: Duration,
    },
    /// The connection broke, or the response cannot be parsed. With its causes only in the alternate form, `{:#}`.
    #[error(transparent)]
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for CallError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error.context("cannot reach the node"))
    }
}

/// A response, unparsed.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its HTTP status.
    pub status: StatusCode,
    /// Its whole body.
    pub body: Bytes,
}

impl NodeClient {
    /// Makes a client of the node that listens on `socket`.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// Makes a client of the node of a run directory.
    #[must_use]
    pub fn of(run_dir: &RunDir) -> Self {
        Self::at(socket(run_dir))
    }

    /// Requests the status of the node.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn node(&self) -> Result<NodeView, CallError> {
        self.ask(Pace::Look, Method::GET, "/v1/node", &NOTHING)
    }

    /// Requests the status of all mounts.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn mounts(&self) -> Result<Vec<MountView>, CallError> {
        self.ask(Pace::Look, Method::GET, "/v1/mounts", &NOTHING)
    }

    /// Requests the status of one mount.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn mount(&self, id: &str) -> Result<MountView, CallError> {
        let path = format!("/v1/mounts/{id}");
        self.ask(Pace::Look, Method::GET, &path, &NOTHING)
    }

    /// Requests a mount. The same request again changes nothing.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn make(&self, spec: &MountSpec) -> Result<Made, CallError> {
        let received = self.send(Pace::Change, Method::POST, "/v1/mounts", Some(spec))?;
        Ok(Made {
            new: received.status == StatusCode::CREATED,
            mount: received.json()?,
        })
    }

    /// Requests an unmount.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn unmount(&self, id: &str, when_in_use: WhenInUse) -> Result<(), CallError> {
        let lazy = when_in_use == WhenInUse::Detach;
        let path = format!("/v1/mounts/{id}?lazy={lazy}");
        self.send(Pace::Change, Method::DELETE, &path, NOTHING.as_ref())?;
        Ok(())
    }

    /// Requests that the boot image of a mount is loaded into its page cache.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn prewarm(
        &self,
        id: &str,
        budget_bytes: Option<u64>,
    ) -> Result<PrewarmSummary, CallError> {
        let body = PrewarmBody { budget_bytes };
        self.ask(
            Pace::Load,
            Method::POST,
            &format!("/v1/mounts/{id}/prewarm"),
            &Some(body),
        )
    }

    /// Requests that a mount is served from another boot image.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn swap(&self, id: &str, boot: BootChoice) -> Result<MountView, CallError> {
        let body = BootBody { boot };
        self.ask(
            Pace::Change,
            Method::PUT,
            &format!("/v1/mounts/{id}/boot"),
            &Some(body),
        )
    }

    /// Asks how all devices are.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn devices(&self) -> Result<Vec<DeviceView>, CallError> {
        self.ask(Pace::Look, Method::GET, "/v1/devices", &NOTHING)
    }

    /// Has the node serve a device. The same request again changes nothing.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn attach(&self, spec: &DeviceSpec) -> Result<Attached, CallError> {
        let received = self.send(Pace::Change, Method::POST, "/v1/devices", Some(spec))?;
        Ok(Attached {
            new: received.status == StatusCode::CREATED,
            device: received.json()?,
        })
    }

    /// Has the node end a device.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn detach(&self, name: &str) -> Result<(), CallError> {
        let path = format!("/v1/devices/{name}");
        self.send(Pace::Change, Method::DELETE, &path, NOTHING.as_ref())?;
        Ok(())
    }

    /// Has the node make a device larger.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn resize(&self, name: &str, size: u64) -> Result<DeviceView, CallError> {
        let path = format!("/v1/devices/{name}/size");
        self.ask(Pace::Change, Method::PUT, &path, &Some(ResizeBody { size }))
    }

    /// Has the node make a plan of what was read of a device since it was attached.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn keep_plan(&self, name: &str) -> Result<KeptPlan, CallError> {
        let path = format!("/v1/devices/{name}/plan");
        self.ask(Pace::Change, Method::POST, &path, &NOTHING)
    }

    /// Has the node unmount all, and take no more mounts.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn drain(&self) -> Result<Drained, CallError> {
        self.ask(Pace::Change, Method::POST, "/v1/drain", &NOTHING)
    }

    /// Requests that every mount is served by another program from now on.
    ///
    /// # Errors
    /// [`CallError`], whose variants say why.
    pub fn upgrade(&self, program: &Path) -> Result<Upgraded, CallError> {
        let body = UpgradeBody {
            program: program.to_owned(),
        };
        self.ask(Pace::Change, Method::POST, "/v1/upgrade", &Some(body))
    }

    fn ask<B: Serialize, A: DeserializeOwned>(
        &self,
        pace: Pace,
        method: Method,
        path: &str,
        body: &Option<B>,
    ) -> Result<A, CallError> {
        self.send(pace, method, path, body.as_ref())?.json()
    }

    fn send<B: Serialize>(
        &self,
        pace: Pace,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Received, CallError> {
        // Only paths can fail, and before anybody is asked.
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| {
            let why = "the node knows paths in UTF-8 only, and one of these is not: rename it, or bind-mount it at \
                       a name that is";
            CallError::Failed(anyhow::Error::new(error).context(why))
        })?;
        let received = self.exchange(
            pace.deadline() + MARGIN,
            method,
            path,
            body.unwrap_or_default(),
        )?;
        if received.status.is_success() {
            return Ok(received);
        }
        let status = received.status.as_u16();
        let ErrorBody { error } = received.json()?;
        Err(CallError::Refused {
            status,
            code: error.code,
            message: error.message,
        })
    }

    /// Sends a request and returns the response, whatever its status.
    pub fn exchange(
        &self,
        deadline: Duration,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Received, CallError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            // HTTP/1.1 wants a host; a socket in a directory has none.
            .header(HOST, "node")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .context("writing the request")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("setting the deadline")?;
        runtime.block_on(async {
            tokio::time::timeout(deadline, self.converse(request))
                .await
                .unwrap_or_else(|_| {
                    Err(CallError::TimedOut {
                        socket: self.socket.clone(),
                        deadline,
                    })
                })
        })
    }

    /// Connects. A full queue is waited for: the kernel makes no one wait who will not block.
    async fn connect(&self) -> Result<UnixStream, CallError> {
        loop {
            let error = match UnixStream::connect(&self.socket).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::WouldBlock => tokio::time::sleep(QUEUE_CHECK).await,
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    return Err(CallError::Nobody(self.socket.clone()));
                }
                _ => {
                    let to = format!("connecting to {}", self.socket.display());
                    return Err(anyhow::Error::new(error).context(to).into());
                }
            }
        }
    }

    async fn converse(&self, request: Request<Full<Bytes>>) -> Result<Received, CallError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .context("connecting")?;
        let conversation = tokio::spawn(connection);
        let answer = sender
            .send_request(request)
            .await
            .context("sending the request")?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)
            .context("receiving the response")?;
        conversation.abort();
        Ok(Received {
            status,
            body: body.to_bytes(),
        })
    }
}

/// No body.
const NOTHING: Option<()> = None;

impl Received {
    fn json<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        Ok(serde_json::from_slice(&self.body).context("decoding the response")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_sent_is_no_fault_of_the_node() {
        use std::os::unix::ffi::OsStrExt as _;

        let program = Path::new(std::ffi::OsStr::from_bytes(b"/a\xffb"));
        let error = NodeClient::at("/dev/null/node.sock").upgrade(program);
        let said = format!("{:#}", error.unwrap_err());
        assert!(
            said.starts_with("the node knows paths in UTF-8 only"),
            "{said}"
        );
    }

    #[test]
    fn a_cause_is_named_once() {
        // Below a file nothing can be: that is another failure than that nobody listens.
        let node = NodeClient::at("/dev/null/node.sock");
        let error = node.node().unwrap_err();
        let (shown, carried) = (format!("{error:#}"), anyhow::Error::from(error));
        let carried = format!("{carried:#}");
        for said in [shown, carried] {
            assert!(
                said.starts_with("cannot reach the node: connecting to "),
                "{said}"
            );
            assert_eq!(said.matches("Not a directory").count(), 1, "{said}");
        }
    }
}
