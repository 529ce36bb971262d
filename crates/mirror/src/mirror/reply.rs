//! Responses of the mirror, and refusals.

use std::io;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Bytes;
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::blobs::FillError;
use crate::upstream::UpstreamError;

/// The header with the digest of the response's content.
pub(super) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// When a client whose download would wait too long is to ask again.
const RETRY_AFTER_SECONDS: u32 = 5;

/// A response, whose body may be streamed.
pub type Reply = Response<BoxBody<Bytes, io::Error>>;

/// Which part of a response a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    /// Only the headers: the request is a HEAD.
    Head,
    /// The whole content: the request is a GET.
    Body,
}

/// Where the content of a response comes from, for metrics and the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// From the cache.
    Hit,
    /// From a download that another client's request began.
    Joined,
    /// From the registry; it is cached.
    Miss,
    /// From the cache, because the registry does not respond.
    Stale,
    /// From the registry; it is not cached.
    Passed,
    /// No content is served.
    None,
}

impl Source {
    pub(super) const ALL: [Self; 6] = [
        Self::Hit,
        Self::Joined,
        Self::Miss,
        Self::Stale,
        Self::Passed,
        Self::None,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Joined => "joined",
            Self::Miss => "miss",
            Self::Stale => "stale",
            Self::Passed => "passed",
            Self::None => "none",
        }
    }
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    /// The error code of the distribution specification; `None` for "not found", whose code depends
    /// on the request.
    code: Option<&'static str>,
    message: String,
    /// The authentication scheme to use.
    challenge: Option<&'static str>,
    /// Seconds after which to ask again.
    retry_after: Option<u32>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: Some(code),
            message: message.into(),
            challenge: None,
            retry_after: None,
        }
    }

    /// The content does not exist, according to the registry.
    pub fn absent(message: impl Into<String>) -> Self {
        Self {
            code: None,
            ..Self::unavailable(message)
        }
    }

    /// The content cannot be served here, or not now. The status is 404, so that clients try the
    /// next mirror; the code shows that it may exist.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "UNAVAILABLE", message)
    }

    /// The repository is unknown.
    pub(super) fn no_repository(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", message)
    }

    /// The client must authenticate.
    pub(super) fn unauthorized() -> Self {
        let message = "the upstream registry denies access: log in";
        Self {
            challenge: Some("Basic realm=\"nicfetch\""),
            ..Self::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
        }
    }

    /// The operator's token is missing or wrong.
    pub fn no_operator() -> Self {
        let message = "the operator's token is missing or wrong: send Authorization: Bearer TOKEN (`token_file` names the file that has it)";
        Self {
            challenge: Some("Bearer realm=\"nicfetch\""),
            ..Self::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
        }
    }

    /// The client is known, and not authorized.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "DENIED", message)
    }

    /// The client is not authorized. The status is 404, so that it does not learn which
    /// repositories exist.
    pub(super) fn denied() -> Self {
        Self::no_repository("the repository does not exist, or access to it is denied")
    }

    /// The load is too high to fetch anything: the client goes to the registry.
    pub(super) fn shed() -> Self {
        let message = "the mirror is under load, and fetches nothing from registries now";
        Self::new(StatusCode::NOT_FOUND, "TOOMANYREQUESTS", message)
    }

    /// The client has as many connections as it may.
    pub fn too_many() -> Self {
        let message = "you have too many connections: ask again when some of them are closed";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "TOOMANYREQUESTS", message)
    }

    /// The request is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "UNSUPPORTED", message)
    }

    /// An internal error.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", message)
    }

    /// The method is not supported: the mirror is read-only.
    pub(super) fn read_only() -> Self {
        let message = "this is a mirror: push to the registry itself";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message)
    }

    /// Sets the error code of a "not found".
    pub(super) fn named(mut self, code: &'static str) -> Self {
        self.code.get_or_insert(code);
        self
    }

    /// Returns the response, in the form of the distribution specification.
    pub fn into_reply(self) -> Reply {
        let code = self.code.unwrap_or("NOT_FOUND");
        let body = json!({"errors": [{"code": code, "message": self.message}]});
        let mut reply = document(self.status, "application/json", body.to_string().into());
        if let Some(challenge) = self.challenge {
            set(&mut reply, WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after {
            set(&mut reply, RETRY_AFTER, &seconds.to_string());
        }
        reply
    }
}

// Not 502 or 504: old clients go to the next place only after a 404.
impl From<UpstreamError> for Refusal {
    fn from(error: UpstreamError) -> Self {
        let message = error.to_string();
        match error {
            UpstreamError::NotFound => Self::absent(message),
            UpstreamError::Denied(_) => Self::new(StatusCode::NOT_FOUND, "DENIED", message),
            _ => Self::unavailable(message),
        }
    }
}

impl From<&FillError> for Refusal {
    fn from(error: &FillError) -> Self {
        let message = error.to_string();
        match error {
            FillError::NotFound => Self::absent(message),
            FillError::Denied(_) => Self::new(StatusCode::NOT_FOUND, "DENIED", message),
            FillError::TooMany => Self {
                retry_after: Some(RETRY_AFTER_SECONDS),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "TOOMANYREQUESTS", message)
            },
            _ => Self::unavailable(message),
        }
    }
}

/// Returns a response with this body.
pub fn document(status: StatusCode, media_type: &str, body: Bytes) -> Reply {
    let length = body.len() as u64;
    let mut reply = Response::new(Full::from(body).map_err(|never| match never {}).boxed());
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, media_type);
    set(&mut reply, CONTENT_LENGTH, &length.to_string());
    reply
}

/// Returns a response without a body.
pub(super) fn bare(status: StatusCode) -> Reply {
    let mut reply = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *reply.status_mut() = status;
    reply
}

/// Sets a header, unless the value is invalid.
pub(super) fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => {
            reply.headers_mut().insert(name, value);
        }
        Err(_) => log::debug!("{name}: {value:?} cannot be sent"),
    }
}
