//! Responses of the API: a JSON document, a text, or an error.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use node_api::bodies::ErrorBody;
use node_api::bodies::ErrorText;
use serde::Serialize;

use node_api::control::NodeError;

/// A complete response.
pub(super) type HttpResponse = Response<Full<Bytes>>;

/// Why a request was not done.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// The methods that the path supports, if another one was used.
    allow: Option<String>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            allow: None,
        }
    }

    /// The request makes no sense.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    /// The peer is not admitted.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// There is no such path.
    pub(super) fn no_path(path: &str) -> Self {
        let message = format!("there is nothing at {path}; docs/api.md lists what there is");
        Self::new(StatusCode::NOT_FOUND, "no_such_path", message)
    }

    /// The path exists and supports only the methods in `allow`.
    pub(super) fn no_method(method: &str, allow: String) -> Self {
        let message = format!("{method} is not for this path; it takes {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                message,
            )
        }
    }

    /// The client did not send all of its request in time.
    pub(super) fn slow() -> Self {
        let message = "the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "slow", message)
    }

    /// The body is longer than `limit` bytes.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the body is longer than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Not possible now; a later attempt may succeed.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// A failure of the node.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
    }

    pub(super) fn into_answer(self) -> HttpResponse {
        let body = ErrorBody {
            error: ErrorText {
                code: self.code.to_owned(),
                message: self.message,
            },
        };
        let mut answer = json(self.status, &body);
        if let Some(allow) = self
            .allow
            .and_then(|names| HeaderValue::try_from(names).ok())
        {
            answer.headers_mut().insert(ALLOW, allow);
        }
        answer
    }
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        let (status, code) = match &error {
            NodeError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_mount"),
            NodeError::NoDevice(_) => (StatusCode::NOT_FOUND, "unknown_device"),
            NodeError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
            NodeError::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            NodeError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            NodeError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Self::new(status, code, error.to_string())
    }
}

/// Returns a document.
pub(super) fn json<T: Serialize>(status: StatusCode, body: &T) -> HttpResponse {
    match serde_json::to_vec(body) {
        Ok(text) => with_body(status, "application/json", text),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Returns a plain text, for people or for Prometheus.
pub(super) fn text(status: StatusCode, body: impl Into<String>) -> HttpResponse {
    with_body(
        status,
        "text/plain; charset=utf-8",
        body.into().into_bytes(),
    )
}

/// Returns a response without a body.
pub(super) fn nothing(status: StatusCode) -> HttpResponse {
    let mut answer = HttpResponse::default();
    *answer.status_mut() = status;
    answer
}

fn with_body(status: StatusCode, kind: &'static str, body: Vec<u8>) -> HttpResponse {
    let mut answer = HttpResponse::new(Full::from(body));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
