//! Blobs of registries and of mirrors.

use std::error::Error as _;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use distribution::{Call, CallError, Client, Destination, Login};
use parking_lot::Mutex;
use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode, Url};

use crate::place::{Fault, FaultKind, Place, Reading};
use crate::reconnecting::Reconnecting;

/// As whom a registry is asked.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The login, if there is one.
    pub login: Option<Login>,
    /// What to do if the registry does not let us read the blob.
    pub advice: String,
}

/// Knows as whom a registry is asked. Logins expire, and are renewed where they are kept.
pub trait Logins: fmt::Debug + Send + Sync {
    /// Returns the login as it is now. It is called when the registry has refused the one before.
    fn now(&self) -> Asker;
}

/// A blob in a repository.
#[derive(Debug)]
pub struct RegistryPlace {
    client: Arc<Client>,
    url: Url,
    scope: String,
    asker: Mutex<Asker>,
    logins: Option<Arc<dyn Logins>>,
    reconnecting: Reconnecting,
}

impl RegistryPlace {
    /// Returns the place of a blob by its URL. `scope` is what a token has to be good for. Nothing is requested yet.
    #[must_use]
    pub fn new(client: Arc<Client>, url: Url, scope: String, login: Option<Login>) -> Self {
        Self {
            client,
            url,
            scope,
            asker: Mutex::new(Asker {
                login,
                advice: "log in with docker login".to_owned(),
            }),
            logins: None,
            reconnecting: Reconnecting::default(),
        }
    }

    /// Has the login taken from there, now and whenever the registry refuses it.
    #[must_use]
    pub fn with_logins(self, logins: Arc<dyn Logins>) -> Self {
        Self {
            asker: Mutex::new(logins.now()),
            logins: Some(logins),
            ..self
        }
    }

    /// Returns whether the login is another one by now.
    fn renews(&self, refused: Option<&Login>) -> bool {
        // It may read a file: without the lock.
        let Some(now) = self.logins.as_ref().map(|logins| logins.now()) else {
            return false;
        };
        let is_other = now.login.as_ref() != refused;
        *self.asker.lock() = now;
        is_other
    }

    async fn send(&self, headers: HeaderMap) -> Result<Response, Fault> {
        let login = self.asker.lock().login.clone();
        let call = Call {
            method: Method::GET,
            place: Destination::Ours(self.url.clone()),
            headers,
            body: &[],
            scope: &self.scope,
            login: login.as_ref(),
        };
        let answer = self.client.send(&call).await;
        let is_refused = match &answer {
            Ok(answer) => is_refusal(answer.status()),
            Err(CallError::NoToken(answer)) => is_refusal(answer.status()),
            Err(_) => false,
        };
        if !is_refused || !self.renews(login.as_ref()) {
            return answer.map_err(|error| self.fault(kind_of(&error), &self.told(&error)));
        }
        let login = self.asker.lock().login.clone();
        let login = login.as_ref();
        let answer = self.client.send(&Call { login, ..call }).await;
        answer.map_err(|error| self.fault(kind_of(&error), &self.told(&error)))
    }

    async fn get(
        &self,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), Fault> {
        let got = self.try_get(range, take).await;
        if got.is_err() {
            self.reconnecting.failed();
        }
        got
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
        let turn = self.reconnecting.turn().await;
        let mut answer = self.send(headers).await?;
        self.check(&answer, &range)?;
        self.reconnecting.answered(answer.version());
        drop(turn);
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
            CallError::NoToken(_) => format!(": {}", self.asker.lock().advice),
            _ => String::new(),
        };
        format!("{error}{}{advice}", cause.unwrap_or_default())
    }

    /// Returns what went wrong, and at which server.
    fn fault(&self, kind: FaultKind, why: &str) -> Fault {
        Fault::new(kind, format!("{}: {why}", self.name()))
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
            status if is_refusal(status) => {
                let advice = self.asker.lock().advice.clone();
                let why = format!("it does not let us read the blob: {advice}");
                fault(FaultKind::Absent, &why)
            }
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

    fn name(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}"));
        format!("{host}{}", port.unwrap_or_default())
    }

    fn parallel(&self) -> usize {
        self.reconnecting.parallel()
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

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// Returns whether a response with a part of a blob begins at this offset.
fn begins_at(answer: &Response, offset: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE);
    let range = range.and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    start.and_then(|start| start.trim().parse().ok()) == Some(offset)
}
