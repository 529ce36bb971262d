//! A client of the daemon.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use sandbox::{BaseSpec, ZygoteSpec, ZygoteView};
use sandbox_handlers::{HandlerSpec, HandlerView};
use sandbox_packages::Installed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::bodies::{
    ANSWER_MAX_BYTES, AddPackages, Added, Create, Created, ErrorBody, Exec, Executed, SandboxView,
    Stats, WAIT_MAX_MS,
};

/// How long an answer may take, beside what a request waits for.
const DEADLINE: Duration = Duration::from_secs(90);

/// How long packages may take to be installed.
const INSTALL_DEADLINE: Duration = Duration::from_mins(31);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No process listens.
    #[error("no daemon listens on {}: start one with `sandbox serve`", .0.display())]
    Nobody(PathBuf),
    /// The daemon refuses.
    #[error("{}", .0.message)]
    Refused(ErrorBody),
    /// The connection failed.
    #[error("asking the daemon failed")]
    Failed(#[from] anyhow::Error),
}

type Result<T> = std::result::Result<T, CallError>;

/// A daemon, by its socket. Each call is a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// No body.
const NOTHING: Option<()> = None;

/// An answer that says nothing.
#[derive(serde::Deserialize)]
struct Done {}

impl Client {
    /// Makes a client of the daemon that listens on a socket.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// Makes a sandbox.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn create(&self, create: &Create) -> Result<Created> {
        self.call(Method::POST, "/v1/sandboxes", Some(create))
    }

    /// Waits for the end of a sandbox, for at most [`WAIT_MAX_MS`].
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn wait(&self, id: &str, wait: Duration) -> Result<Created> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(WAIT_MAX_MS);
        let path = format!("/v1/sandboxes/{id}?wait_ms={wait_ms}");
        self.call(Method::GET, &path, NOTHING)
    }

    /// Returns all sandboxes.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn list(&self) -> Result<Vec<SandboxView>> {
        self.call(Method::GET, "/v1/sandboxes", NOTHING)
    }

    /// Has something done to a sandbox: `pause` or `resume`.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn act(&self, id: &str, what: &str) -> Result<()> {
        let path = format!("/v1/sandboxes/{id}/{what}");
        let Done {} = self.call(Method::POST, &path, NOTHING)?;
        Ok(())
    }

    /// Kills a sandbox.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn kill(&self, id: &str) -> Result<()> {
        let Done {} = self.call(Method::DELETE, &format!("/v1/sandboxes/{id}"), NOTHING)?;
        Ok(())
    }

    /// Runs another program in a sandbox.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn exec(&self, id: &str, exec: &Exec) -> Result<Executed> {
        self.call(
            Method::POST,
            &format!("/v1/sandboxes/{id}/exec"),
            Some(exec),
        )
    }

    /// Returns the bases.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn bases(&self) -> Result<Vec<BaseSpec>> {
        self.call(Method::GET, "/v1/bases", NOTHING)
    }

    /// Adds a base.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn add_base(&self, base: &BaseSpec) -> Result<()> {
        let Done {} = self.call(Method::POST, "/v1/bases", Some(base))?;
        Ok(())
    }

    /// Forgets a base.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn remove_base(&self, name: &str) -> Result<()> {
        let Done {} = self.call(Method::DELETE, &format!("/v1/bases/{name}"), NOTHING)?;
        Ok(())
    }

    /// Adds a handler.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn add_handler(&self, spec: &HandlerSpec) -> Result<()> {
        let Done {} = self.call(Method::POST, "/v1/handlers", Some(spec))?;
        Ok(())
    }

    /// Returns the handlers.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn handlers(&self) -> Result<Vec<HandlerView>> {
        self.call(Method::GET, "/v1/handlers", NOTHING)
    }

    /// Removes a handler.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn remove_handler(&self, name: &str) -> Result<()> {
        let Done {} = self.call(Method::DELETE, &format!("/v1/handlers/{name}"), NOTHING)?;
        Ok(())
    }

    /// Has a handler handle an event, and returns its result.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses, or the handler fails.
    pub fn call_handler(&self, name: &str, event: &serde_json::Value) -> Result<serde_json::Value> {
        let path = format!("/v1/handlers/{name}/call");
        self.call(Method::POST, &path, Some(event))
    }

    /// Has packages be installed.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn add_packages(&self, add: &AddPackages) -> Result<Added> {
        let path = "/v1/packages";
        self.call_within(INSTALL_DEADLINE, Method::POST, path, Some(add))
    }

    /// Returns the packages that are installed.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn packages(&self) -> Result<Vec<Installed>> {
        self.call(Method::GET, "/v1/packages", NOTHING)
    }

    /// Removes a package.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn remove_package(&self, base: &str, package: &str) -> Result<()> {
        let path = format!("/v1/packages/{base}/{package}");
        let Done {} = self.call(Method::DELETE, &path, NOTHING)?;
        Ok(())
    }

    /// Returns the Zygotes.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn zygotes(&self) -> Result<Vec<ZygoteView>> {
        self.call(Method::GET, "/v1/zygotes", NOTHING)
    }

    /// Makes a Zygote.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn add_zygote(&self, spec: &ZygoteSpec) -> Result<ZygoteView> {
        self.call(Method::POST, "/v1/zygotes", Some(spec))
    }

    /// Ends a Zygote.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn evict(&self, id: &str) -> Result<()> {
        let Done {} = self.call(Method::DELETE, &format!("/v1/zygotes/{id}"), NOTHING)?;
        Ok(())
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// If the daemon does not respond in time, or refuses.
    pub fn stats(&self) -> Result<Stats> {
        self.call(Method::GET, "/v1/stats", NOTHING)
    }

    fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<B>,
    ) -> Result<T> {
        let deadline = DEADLINE + Duration::from_millis(WAIT_MAX_MS);
        self.call_within(deadline, method, path, body)
    }

    /// Sends a request, and reads the answer.
    ///
    /// # Errors
    /// If no process listens, the daemon refuses, or there is no response in time.
    fn call_within<B: Serialize, T: DeserializeOwned>(
        &self,
        deadline: Duration,
        method: Method,
        path: &str,
        body: Option<B>,
    ) -> Result<T> {
        let body = body.map(|body| serde_json::to_vec(&body)).transpose();
        let body = body.context("writing the request")?.unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            // HTTP/1.1 wants a host; a socket in a directory has none.
            .header(HOST, "sandbox")
            .body(Full::new(Bytes::from(body)))
            .context("writing the request")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("setting the deadline")?;
        let (is_done, answer) = runtime.block_on(async {
            tokio::time::timeout(deadline, self.converse(request))
                .await
                .context("waiting for the answer")?
        })?;
        if is_done {
            return Ok(serde_json::from_slice(&answer).context("reading the answer")?);
        }
        let error: ErrorBody = serde_json::from_slice(&answer).context("reading the answer")?;
        Err(CallError::Refused(error))
    }

    async fn converse(&self, request: Request<Full<Bytes>>) -> Result<(bool, Bytes)> {
        let stream = match UnixStream::connect(&self.socket).await {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Err(CallError::Nobody(self.socket.clone()));
            }
            Err(error) => {
                let to = format!("connecting to {}", self.socket.display());
                return Err(anyhow::Error::new(error).context(to).into());
            }
        };
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.context("connecting")?;
        let conversation = tokio::spawn(connection);
        let answer = sender.send_request(request).await;
        let answer = answer.context("sending the request")?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX_BYTES)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)
            .context("receiving the answer")?;
        conversation.abort();
        Ok((status.is_success(), body.to_bytes()))
    }
}
