//! Asking a nicfetch that runs, at the address for its operator.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serving::transport::Stream;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::operator::{AdminAddress, AdminSettings};

/// The longest answer: the index of a large source.
const ANSWER_MAX: usize = 257 << 20;
/// How long connecting may take, on the same machine.
const CONNECTING: Duration = Duration::from_secs(10);

/// A nicfetch that listens for its operator.
#[derive(Debug)]
pub struct AdminClient {
    address: AdminAddress,
    /// The token that it sends.
    token: Option<String>,
    runtime: Runtime,
    /// Taken during a request, and `None` after a failure.
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// A response.
#[derive(Debug)]
pub struct AdminResponse {
    status: StatusCode,
    body: Bytes,
}

impl AdminClient {
    /// Connects.
    ///
    /// # Errors
    /// If no process listens there.
    pub fn connect(settings: &AdminSettings) -> anyhow::Result<Self> {
        Self::find(settings)?.with_context(|| {
            let address = settings.address();
            format!("no nicfetch listens on {address} (start one with nicfetch serve, or name its address: `admin`)")
        })
    }

    /// Connects, if a process listens there.
    ///
    /// # Errors
    /// If connecting fails otherwise.
    pub fn find(settings: &AdminSettings) -> anyhow::Result<Option<Self>> {
        let (address, token) = (settings.address(), settings.token()?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the runtime")?;
        let connection = match runtime.block_on(open(&address)) {
            Ok(connection) => connection,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Self {
            address,
            token,
            runtime,
            connection: Mutex::new(Some(connection)),
        }))
    }

    /// Sends a request, and returns the response, whatever its status.
    ///
    /// # Errors
    /// If there is none within `deadline`.
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> anyhow::Result<AdminResponse> {
        let request = self.request(method, path, body)?;
        let mut place = self.connection.lock();
        let kept = place.take();
        let asking = async {
            let mut connection = match kept.filter(|connection| !connection.is_closed()) {
                Some(connection) => connection,
                None => open(&self.address).await?,
            };
            let answer = ask(&mut connection, request).await?;
            anyhow::Ok((connection, answer))
        };
        let asked = self
            .runtime
            .block_on(async { timeout(deadline, asking).await });
        let (connection, answer) = asked.with_context(|| {
            let seconds = deadline.as_secs();
            format!(
                "nicfetch at {} did not respond within {seconds} s",
                self.address
            )
        })??;
        *place = Some(connection);
        Ok(answer)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let host = match &self.address {
            AdminAddress::Tcp(address) => address.to_string(),
            AdminAddress::Unix(_) => "localhost".to_owned(),
        };
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, host);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(request.body(Full::new(body))?)
    }

    /// Requests a JSON document.
    ///
    /// # Errors
    /// If it is refused, or no such document arrives within `deadline`.
    pub fn document<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> anyhow::Result<T> {
        let answer = self.ask(method, path, body, deadline)?.accepted()?;
        serde_json::from_slice(&answer)
            .with_context(|| format!("{} is not a nicfetch of this version", self.address))
    }
}

impl AdminResponse {
    /// Returns the response's body; `None` for "not found".
    ///
    /// # Errors
    /// If it is refused.
    pub fn found(self) -> anyhow::Result<Option<Bytes>> {
        match self.status {
            StatusCode::NOT_FOUND => Ok(None),
            _ => self.accepted().map(Some),
        }
    }

    /// Returns the response's body.
    ///
    /// # Errors
    /// If it is refused.
    pub fn accepted(self) -> anyhow::Result<Bytes> {
        if !self.status.is_success() {
            bail!("nicfetch refuses: {}", message(&self.body));
        }
        Ok(self.body)
    }
}

async fn open(address: &AdminAddress) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let connecting = async {
        let stream: Box<dyn Stream> = match address {
            AdminAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
            AdminAddress::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                // A chunk is a small request behind a large one.
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        };
        io::Result::Ok(stream)
    };
    let stream = timeout(CONNECTING, connecting).await;
    let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = stream.with_context(|| format!("connecting to nicfetch at {address}"))?;
    let (connection, conversation) = handshake(TokioIo::new(stream)).await?;
    drop(tokio::spawn(conversation));
    Ok(connection)
}

/// Whether no process listens there, or there is no such place.
fn is_nobody(error: &anyhow::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| matches!(cause.kind(), ConnectionRefused | NotFound))
}

async fn ask(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<AdminResponse> {
    connection.ready().await.context("asking nicfetch")?;
    let answer = connection.send_request(request).await;
    let answer = answer.context("asking nicfetch")?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("reading the answer: {error}"))?;
    let body = body.to_bytes();
    Ok(AdminResponse { status, body })
}

fn message(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = value["errors"][0]["message"].as_str();
    message.unwrap_or("it does not say why").to_owned()
}

/// Returns a text as a parameter of a query.
#[must_use]
pub fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_letter_is_escaped() {
        assert_eq!(
            escaped("a.io/b:1@x&y=z %"),
            "a.io%2Fb%3A1%40x%26y%3Dz%20%25"
        );
        assert_eq!(escaped("ä"), "%C3%A4");
    }
}
