//! What the mirror answers, and how it refuses.

use std::io;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::blobs::FillError;
use crate::upstream::UpstreamError;

/// The header that names the digest of what is answered.
pub(super) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// An answer whose body may be on its way.
pub type Reply = Response<BoxBody<Bytes, io::Error>>;

/// Which part of a reply a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    /// Whether the thing exists, and its length: the request is a HEAD.
    Head,
    /// The whole content: the request is a GET.
    Body,
}

/// Where an answer comes from: what the metrics and the access log say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// From what is here.
    Hit,
    /// From what is on its way, because another client asked for it.
    Joined,
    /// From the upstream, to be kept.
    Miss,
    /// From what is here, because the upstream does not answer.
    Stale,
    /// From the upstream, not to be kept.
    Passed,
    /// Nothing is served.
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
    /// What the distribution specification calls it; how a thing is called that is not there depends
    /// on what was asked for.
    code: Option<&'static str>,
    message: String,
    /// How the client can say who it is.
    challenge: Option<&'static str>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: Some(code),
            message: message.into(),
            challenge: None,
        }
    }

    /// There is no such thing: who asks for it is told so by the registry, or would be.
    pub fn absent(message: impl Into<String>) -> Self {
        Self {
            code: None,
            ..Self::unavailable(message)
        }
    }

    /// It cannot be had here, or not now. Clients go to the next place after the same status as for
    /// what is not there; by the code they know that it may be.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "UNAVAILABLE", message)
    }

    /// There is no repository of this name.
    pub(super) fn no_repository(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", message)
    }

    /// The client must say who it is.
    pub(super) fn unauthorized() -> Self {
        let message = "the upstream does not give this to you: log in";
        Self {
            challenge: Some("Basic realm=\"nicfetch\""),
            ..Self::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
        }
    }

    /// Who asks does not show the operator's token.
    pub fn no_operator() -> Self {
        let message = "this needs the token of nicfetch's operator: say --token-file FILE";
        Self {
            challenge: Some("Bearer realm=\"nicfetch\""),
            ..Self::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
        }
    }

    /// Who asks is known, and may not.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "DENIED", message)
    }

    /// The client may not have it. Told as "not found", so that nobody learns what there is.
    pub(super) fn denied() -> Self {
        Self::no_repository("there is no such repository for you")
    }

    /// The machine is pressed too hard to fetch anything: the client goes to the registry.
    pub(super) fn shed() -> Self {
        let message = "this mirror fetches nothing at the moment: its machine has too much to do";
        Self::new(StatusCode::NOT_FOUND, "TOOMANYREQUESTS", message)
    }

    /// The client has as many connections as it may.
    pub fn too_many() -> Self {
        let message = "you have too many connections: ask again when some of them are closed";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "TOOMANYREQUESTS", message)
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "UNSUPPORTED", message)
    }

    /// Something failed here that the operator has to see to.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", message)
    }

    /// The method would write.
    pub(super) fn read_only() -> Self {
        let message = "this is a mirror: push to the registry itself";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message)
    }

    /// Says what is not there, if that is why.
    pub(super) fn named(mut self, code: &'static str) -> Self {
        self.code.get_or_insert(code);
        self
    }

    /// Returns the answer that says so, in the form of the distribution specification.
    pub fn into_reply(self) -> Reply {
        let code = self.code.unwrap_or("NOT_FOUND");
        let body = json!({"errors": [{"code": code, "message": self.message}]});
        let mut reply = document(self.status, "application/json", body.to_string().into());
        if let Some(challenge) = self.challenge {
            set(&mut reply, WWW_AUTHENTICATE, challenge);
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
            _ => Self::unavailable(message),
        }
    }
}

/// Returns a whole document.
pub fn document(status: StatusCode, media_type: &str, body: Bytes) -> Reply {
    let length = body.len() as u64;
    let mut reply = Response::new(Full::from(body).map_err(|never| match never {}).boxed());
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, media_type);
    set(&mut reply, CONTENT_LENGTH, &length.to_string());
    reply
}

/// Returns an answer without a body.
pub(super) fn bare(status: StatusCode) -> Reply {
    let mut reply = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *reply.status_mut() = status;
    reply
}

/// Sets a header, unless the value cannot be one.
pub(super) fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => {
            reply.headers_mut().insert(name, value);
        }
        Err(_) => log::debug!("{name}: {value:?} cannot be sent"),
    }
}
