//! The routes, and their handlers.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Response, StatusCode, Uri};
use sandbox::{BaseSpec, SandboxError, ZygoteSpec};
use sandbox_handlers::CallError;
use sandbox_packages::PackageError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::with_body;
use crate::Daemon;
use crate::bodies::{ErrorBody, Exec};
use crate::metrics;

/// A complete response.
pub(super) type Answer = Response<Full<Bytes>>;

/// Why a request was not done.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    body: ErrorBody,
}

impl Refusal {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let body = ErrorBody {
            code: code.to_owned(),
            message: message.into(),
        };
        Self { status, body }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
    }

    pub(super) fn into_answer(self) -> Answer {
        let mut answer = json(self.status, &self.body);
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            let seconds = hyper::header::HeaderValue::from_static("1");
            answer
                .headers_mut()
                .insert(hyper::header::RETRY_AFTER, seconds);
        }
        answer
    }
}

impl From<SandboxError> for Refusal {
    fn from(error: SandboxError) -> Self {
        let (status, code) = match &error {
            SandboxError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
            SandboxError::Unknown { .. } => (StatusCode::NOT_FOUND, "unknown"),
            SandboxError::Exists { .. } => (StatusCode::CONFLICT, "exists"),
            SandboxError::Full(_) => (StatusCode::SERVICE_UNAVAILABLE, "full"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Self::new(status, code, with_causes(&error))
    }
}

impl From<PackageError> for Refusal {
    fn from(error: PackageError) -> Self {
        let (status, code) = match &error {
            PackageError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
            PackageError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown"),
            PackageError::InUse { .. } => (StatusCode::CONFLICT, "used"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Self::new(status, code, with_causes(&error))
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let (status, code) = match &error {
            CallError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
            CallError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown"),
            CallError::Exists(_) => (StatusCode::CONFLICT, "exists"),
            CallError::Busy(_) => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            CallError::Late { .. } => (StatusCode::GATEWAY_TIMEOUT, "late"),
            CallError::Failed { .. } => (StatusCode::BAD_GATEWAY, "handler"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        };
        Self::new(status, code, with_causes(&error))
    }
}

/// Returns an error with its causes, since clients do not see the log.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        message = format!("{message}: {source}");
        cause = source.source();
    }
    message
}

/// Finds the route of a request, and handles it.
pub(super) fn answer(
    daemon: &Daemon,
    method: &Method,
    uri: &Uri,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    match (method, parts.as_slice()) {
        (&Method::GET, ["v1", "bases"]) => ok(&daemon.bases()),
        (&Method::POST, ["v1", "bases"]) => {
            daemon.add_base(parsed::<BaseSpec>(body)?)?;
            done()
        }
        (&Method::DELETE, ["v1", "bases", name]) => {
            daemon.remove_base(name)?;
            done()
        }
        (&Method::GET, ["v1", "packages"]) => ok(&daemon.packages()?),
        (&Method::POST, ["v1", "packages"]) => ok(&daemon.add_packages(&parsed(body)?)?),
        (&Method::DELETE, ["v1", "packages", base, package]) => {
            daemon.remove_package(base, package)?;
            done()
        }
        (&Method::GET, ["v1", "zygotes"]) => ok(&daemon.zygotes()),
        (&Method::POST, ["v1", "zygotes"]) => ok(&daemon.add_zygote(parsed::<ZygoteSpec>(body)?)?),
        (&Method::DELETE, ["v1", "zygotes", id]) => {
            daemon.evict(id)?;
            done()
        }
        (&Method::GET, ["v1", "handlers"]) => ok(&daemon.handlers()),
        (&Method::POST, ["v1", "handlers"]) => {
            daemon.add_handler(parsed(body)?)?;
            done()
        }
        (&Method::DELETE, ["v1", "handlers", name]) => {
            daemon.remove_handler(name)?;
            done()
        }
        (&Method::POST, ["v1", "handlers", name, "call"]) => call(daemon, name, body),
        (&Method::GET, ["v1", "sandboxes"]) => ok(&daemon.list()),
        (&Method::POST, ["v1", "sandboxes"]) => ok(&daemon.create(parsed(body)?)?),
        (&Method::GET, ["v1", "sandboxes", id]) => ok(&daemon.wait(id, wait_of(uri)?)?),
        (&Method::DELETE, ["v1", "sandboxes", id]) => {
            daemon.kill(id)?;
            done()
        }
        (&Method::POST, ["v1", "sandboxes", id, "pause"]) => {
            daemon.pause(id)?;
            done()
        }
        (&Method::POST, ["v1", "sandboxes", id, "resume"]) => {
            daemon.resume(id)?;
            done()
        }
        (&Method::POST, ["v1", "sandboxes", id, "exec"]) => {
            ok(&daemon.exec(id, &parsed::<Exec>(body)?)?)
        }
        (&Method::GET, ["v1", "stats"]) => ok(&daemon.stats()),
        (&Method::GET, ["metrics"]) => {
            let page = metrics::page(daemon.stats()).into_bytes();
            Ok(with_body(StatusCode::OK, metrics::CONTENT_TYPE, page))
        }
        (&Method::GET, ["healthz"]) => {
            Ok(with_body(StatusCode::OK, "text/plain", b"ok\n".to_vec()))
        }
        _ => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "unknown",
            format!(
                "there is no {method} {}; docs/sandboxes.md lists what there is",
                uri.path()
            ),
        )),
    }
}

/// The requests that clients of the port may send: calls of handlers.
pub(super) fn front_answer(
    daemon: &Daemon,
    method: &Method,
    uri: &Uri,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    match (method, parts.as_slice()) {
        (&Method::POST, ["run", name]) => call(daemon, name, body),
        (&Method::GET, ["healthz"]) => {
            Ok(with_body(StatusCode::OK, "text/plain", b"ok\n".to_vec()))
        }
        _ => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "unknown",
            "there is POST /run/HANDLER only, with an event as JSON",
        )),
    }
}

fn call(daemon: &Daemon, name: &str, event: &[u8]) -> Result<Answer, Refusal> {
    let event = if event.is_empty() { b"null" } else { event };
    let value = daemon.call_handler(name, event)?;
    Ok(with_body(StatusCode::OK, "application/json", value))
}

/// Returns for how long a request may wait: `?wait_ms=N`.
fn wait_of(uri: &Uri) -> Result<u64, Refusal> {
    let Some(query) = uri.query() else {
        return Ok(0);
    };
    let wait = query
        .strip_prefix("wait_ms=")
        .and_then(|wait| wait.parse().ok());
    wait.ok_or_else(|| Refusal::invalid(format!("{query:?} is no wait_ms=MILLISECONDS")))
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::invalid(format!("the body is no such request: {error}")))
}

fn ok<T: Serialize>(body: &T) -> Result<Answer, Refusal> {
    Ok(json(StatusCode::OK, body))
}

fn done() -> Result<Answer, Refusal> {
    Ok(with_body(
        StatusCode::OK,
        "application/json",
        b"{}".to_vec(),
    ))
}

fn json<T: Serialize>(status: StatusCode, body: &T) -> Answer {
    match serde_json::to_vec(body) {
        Ok(text) => with_body(status, "application/json", text),
        Err(error) => {
            let text = error.to_string().into_bytes();
            with_body(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", text)
        }
    }
}
