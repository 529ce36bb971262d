//! Blobs of registries and of mirrors.

use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use distribution::{Call, CallError, Client, Destination, Login};
use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode, Url, Version};
use tokio::sync::{Mutex, MutexGuard};

use crate::place::{Fault, FaultKind, Place, Reading};

/// Connections with one request at a time.
const CONNECTIONS: usize = 16;
/// Requests on one connection of HTTP/2: servers take at least 100.
const STREAMS: usize = 64;

/// A blob in a repository.
#[derive(Debug)]
pub struct RegistryPlace {
    client: Arc<Client>,
    url: Url,
    scope: String,
    login: Option<Login>,
    /// What to do if the registry does not let us read the blob.
    advice: String,
    /// Whether it answered over HTTP/2.
    is_multiplexed: AtomicBool,
    /// Whether a request failed since something came from it.
    is_broken: AtomicBool,
    /// Who connects again, while the others wait for that.
    connecting: Mutex<()>,
}

impl RegistryPlace {
    /// Returns the place of a blob by its URL. `scope` is what a token has to be good for. Nothing is requested yet.
    #[must_use]
    pub fn new(client: Arc<Client>, url: Url, scope: String, login: Option<Login>) -> Self {
        Self {
            client,
            url,
            scope,
            login,
            advice: "log in with docker login".to_owned(),
            is_multiplexed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            connecting: Mutex::const_new(()),
        }
    }

    /// Says what to do if the registry does not let us read the blob.
    #[must_use]
    pub fn with_advice(self, advice: String) -> Self {
        Self { advice, ..self }
    }

    async fn get(
        &self,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), Fault> {
        let got = self.try_get(range, take).await;
        if got.is_err() {
            self.is_broken.store(true, Relaxed);
        }
        got
    }

    /// Waits until the connection of HTTP/2 that ended was replaced, or returns the right to do that: each of the many
    /// requests on it would make a connection of its own.
    async fn first_again(&self) -> Option<MutexGuard<'_, ()>> {
        let is_broken = || self.is_multiplexed.load(Relaxed) && self.is_broken.load(Relaxed);
        if !is_broken() {
            return None;
        }
        let first = self.connecting.lock().await;
        is_broken().then_some(first)
    }

    async fn try_get(
        &self,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), Fault> {
        let mut headers = HeaderMap::new();
        let value = format!("bytes={}-{}", range.start, range.end - 1);
        let value = HeaderValue::try_from(value);
        let value = value.map_err(|_| self.fault(FaultKind::Wrong, "the range is no header"))?;
        headers.insert(RANGE, value);
        let call = Call {
            method: Method::GET,
            place: Destination::Ours(self.url.clone()),
            headers,
            body: &[],
            scope: &self.scope,
            login: self.login.as_ref(),
        };
        let first = self.first_again().await;
        let mut answer = self
            .client
            .send(&call)
            .await
            .map_err(|error| self.fault(kind_of(&error), &self.told(&error)))?;
        self.check(&answer, &range)?;
        self.is_multiplexed
            .store(answer.version() == Version::HTTP_2, Relaxed);
        self.is_broken.store(false, Relaxed);
        drop(first);
        let mut left = range.end - range.start;
        while left > 0 {
            let came = answer.chunk().await.map_err(|error| {
                let error = error.without_url(); // it may have a signature in it
                let why = format!("a response was cut short: {error}");
                self.fault(FaultKind::Busy, &why)
            })?;
            let Some(came) = came else {
                return Err(self.fault(FaultKind::Busy, "it sent less than was requested"));
            };
            let used = usize::try_from(left).map_or(came.len(), |left| left.min(came.len()));
            left -= used as u64;
            take(&came[..used]);
        }
        Ok(())
    }

    /// Returns an error with its cause.
    fn told(&self, error: &CallError) -> String {
        let cause = error.source().map(|cause| format!(": {cause}"));
        let advice = match error {
            CallError::NoToken(_) => format!(": {}", self.advice),
            _ => String::new(),
        };
        format!("{error}{}{advice}", cause.unwrap_or_default())
    }

    /// Returns what went wrong, and at which server.
    fn fault(&self, kind: FaultKind, why: &str) -> Fault {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}"));
        Fault::new(kind, format!("{host}{}: {why}", port.unwrap_or_default()))
    }

    /// Returns why a response is not the range.
    fn check(&self, answer: &Response, range: &Range<u64>) -> Result<(), Fault> {
        let status = answer.status();
        let fault = |kind, why: &str| Err(self.fault(kind, why));
        match status {
            StatusCode::PARTIAL_CONTENT if begins_at(answer, range.start) => Ok(()),
            StatusCode::PARTIAL_CONTENT => {
                fault(FaultKind::Wrong, "it sent another range than was requested")
            }
            // Its body is the whole blob, of which a part was wanted.
            StatusCode::OK => fault(FaultKind::Absent, "it does not send parts of blobs"),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => fault(
                FaultKind::Absent,
                &format!("it does not let us read the blob: {}", self.advice),
            ),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                fault(FaultKind::Busy, &status.to_string())
            }
            _ if status.is_server_error() => fault(FaultKind::Busy, &status.to_string()),
            _ => fault(FaultKind::Absent, &status.to_string()),
        }
    }
}

impl Place for RegistryPlace {
    fn read<'a>(
        &'a self,
        range: Range<u64>,
        take: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> Reading<'a> {
        Box::pin(self.get(range, take))
    }

    fn parallel(&self) -> usize {
        match self.is_multiplexed.load(Relaxed) {
            true => STREAMS,
            false => CONNECTIONS,
        }
    }
}

/// Returns what is to be done about a request without a usable response.
fn kind_of(error: &CallError) -> FaultKind {
    match error {
        // Who answers and hangs up is there: the next connection may do better.
        CallError::NoAnswer(error) if !error.is_connect() => FaultKind::Busy,
        CallError::NoAnswer(_) | CallError::TooSlow { .. } => FaultKind::Away,
        CallError::NoToken(answer) if answer.status().is_server_error() => FaultKind::Busy,
        _ => FaultKind::Absent,
    }
}

/// Returns whether a response with a part of a blob begins at this offset.
fn begins_at(answer: &Response, offset: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE);
    let range = range.and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    start.and_then(|start| start.trim().parse().ok()) == Some(offset)
}
