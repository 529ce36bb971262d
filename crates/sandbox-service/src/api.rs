//! HTTP/1.1 and JSON: on a unix socket for all requests, and on a TCP port for calls of handlers only; access control
//! and limits.
//!
//! One thread runs all sockets. Requests block, so they run on a small number of separate threads.
//! Connections, the length of heads and bodies, and the time that each may take are bounded.

mod listener;
mod routes;

use std::convert::Infallible;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
pub use serving::api::listen;
use serving::api::{ApiThread, Connections, Turn};
use tokio::time::timeout;

use crate::Daemon;
use crate::bodies::{BODY_MAX_BYTES, WAIT_MAX_MS};
use listener::{Listener, Peer};
use routes::{Answer, Refusal};

/// Connections at a time. Beyond them, those that only wait for their peer make room for others.
const CONNECTIONS_MAX: u32 = 256;

/// Requests that are under way at a time. Those that wait for a sandbox's end have their places, too.
const CALLS_MAX: usize = 256;

/// The longest head of a request. Ours have some 150 bytes.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// How long a client may take to send its head, and again to send its body, and again to take the answer.
const PEER_DEADLINE: Duration = Duration::from_secs(5);

/// How long a request may take: it may wait for a sandbox, whose start may wait for a disk.
const CALL_DEADLINE: Duration = Duration::from_millis(WAIT_MAX_MS + 60_000);

/// How long packages may take: several runs of an installer, each of which has ten minutes.
const INSTALL_DEADLINE: Duration = Duration::from_mins(30);

/// The running API. Dropping it stops accepting requests, and does not wait for those in progress.
#[derive(Debug)]
pub struct Api(#[expect(dead_code, reason = "ends the API when it is dropped")] ApiThread);

impl Api {
    /// Serves clients that are admitted: root, and the user of this process.
    ///
    /// # Errors
    /// If no thread can be started, or the listener cannot be used.
    pub fn serve(listener: UnixListener, daemon: Arc<Daemon>) -> anyhow::Result<Self> {
        listener
            .set_nonblocking(true)
            .context("preparing the socket")?;
        Self::start("sandbox-api", daemon, move || {
            tokio::net::UnixListener::from_std(listener).map(Listener::Own)
        })
    }

    /// Has handlers handle the events of clients of a port.
    ///
    /// # Errors
    /// If no thread can be started, or the listener cannot be used.
    pub fn serve_front(listener: TcpListener, daemon: Arc<Daemon>) -> anyhow::Result<Self> {
        listener
            .set_nonblocking(true)
            .context("preparing the port")?;
        Self::start("sandbox-front", daemon, move || {
            tokio::net::TcpListener::from_std(listener).map(Listener::Front)
        })
    }

    fn start(
        name: &str,
        daemon: Arc<Daemon>,
        listen: impl FnOnce() -> std::io::Result<Listener> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let thread = ApiThread::start(name, CALLS_MAX, async move |closed| {
            let listener = match listen() {
                Ok(listener) => listener,
                Err(error) => return log::error!("the API cannot use its socket: {error}"),
            };
            let converse = |peer, turn| {
                let daemon = Arc::clone(&daemon);
                async move { converse(peer, &turn, &daemon).await }
            };
            let accept = async || listener.accept().await;
            let connections = Connections::up_to(CONNECTIONS_MAX);
            connections.take(closed, accept, converse).await;
        });
        thread.map(Self).context("starting the API")
    }
}

/// Answers the one request of a connection, or all of one to the front.
async fn converse(peer: Peer, turn: &Turn, daemon: &Arc<Daemon>) {
    let Peer {
        stream,
        admitted,
        is_front,
    } = peer;
    let service = service_fn(|request| async {
        let what = format!("{} {}", request.method(), request.uri());
        let answer = answer(daemon, is_front, &admitted, turn, request).await;
        let answer = answer.unwrap_or_else(Refusal::into_answer);
        log::debug!("api: {what}: {}", answer.status().as_u16());
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PEER_DEADLINE)
        .max_buf_size(HEAD_MAX_BYTES)
        .keep_alive(is_front)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(PEER_DEADLINE * 3 + INSTALL_DEADLINE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::debug!("api: a client went away: {error}"),
        Err(_) => log::debug!("api: a client does not take its answer"),
    }
}

async fn answer(
    daemon: &Arc<Daemon>,
    is_front: bool,
    admitted: &Result<(), String>,
    turn: &Turn,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    admitted.clone().map_err(Refusal::forbidden)?;
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let body = Limited::new(request.into_body(), BODY_MAX_BYTES).collect();
    let body = timeout(PEER_DEADLINE, body)
        .await
        .map_err(|_| Refusal::invalid("the request did not arrive in time"))?
        .map_err(|error| Refusal::invalid(format!("the body did not arrive: {error}")))?;
    let _busy = turn.begin();
    let deadline = match uri.path() {
        "/v1/packages" => INSTALL_DEADLINE,
        _ => CALL_DEADLINE,
    };
    let daemon = Arc::clone(daemon);
    let call = tokio::task::spawn_blocking(move || {
        let body = body.to_bytes();
        match is_front {
            true => routes::front_answer(&daemon, &method, &uri, &body),
            false => routes::answer(&daemon, &method, &uri, &body),
        }
    });
    match timeout(deadline, call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Refusal::failed("the request ended in a panic")),
        Err(_) => Err(Refusal::failed(
            "no response in time; the operation continues",
        )),
    }
}

/// Returns an answer with a body.
fn with_body(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    answer
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, kind);
    answer
}
