//! A proxy before a registry that counts requests and bytes, and injects faults.
//!
//! It parses HTTP, so that a fault affects the intended request, and bytes are counted as in
//! bodies. Each request has a connection of its own to the registry.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, RANGE};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::mirror::{Pipe, Piped};

/// How long silence lasts: beyond every deadline of a client's.
const SILENCE: Duration = Duration::from_secs(600);

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is cut when so many bytes of the body were sent.
    Cut(u64),
    /// All bits of the byte at this place of the body are turned.
    Flip(u64),
    /// This status is returned without a request to the registry.
    Status(u16),
    /// The response is delayed by this time.
    Delay(Duration),
    /// No response is sent.
    Silence,
    /// The range is removed from the request to the registry.
    NoRange,
}

/// A request that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its method.
    pub method: Method,
    /// Its path, with the query.
    pub path: String,
    /// Bytes of the body that were sent back.
    pub body_bytes: u64,
}

#[derive(Debug)]
struct Rule {
    path_has: String,
    fault: Fault,
    times: u32,
}

/// The line between the registry and its clients.
#[derive(Debug, Default)]
struct Line {
    /// How long each request waits before it is passed on.
    delay: Duration,
    /// Bytes of bodies in a second, for all connections together.
    rate: Option<u64>,
    /// When the line is free again.
    free: Option<Instant>,
}

#[derive(Debug)]
struct ProxyState {
    upstream: SocketAddr,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    line: Mutex<Line>,
    last_sent: Mutex<Option<Instant>>,
}

/// The proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts one on a port of loopback.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::start_on(StdListener::bind("127.0.0.1:0")?, upstream)
    }

    /// Starts one on a socket, which may be in another network namespace.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn start_on(listener: StdListener, upstream: SocketAddr) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let state = Arc::new(ProxyState {
            upstream,
            rules: Mutex::default(),
            seen: Mutex::default(),
            line: Mutex::default(),
            last_sent: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&state);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let proxy = std::thread::Builder::new().name("fault-proxy".to_owned());
        let thread = proxy.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = take_connections(listener, shared) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self {
            address,
            state,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes the next `times` requests fail whose path contains this.
    pub fn inject(&self, path_has: &str, fault: Fault, times: u32) {
        let path_has = path_has.to_owned();
        self.state.rules.lock().push(Rule {
            path_has,
            fault,
            times,
        });
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state.rules.lock().clear();
    }

    /// Makes the line long, or thin.
    pub fn shape(&self, delay: Duration, rate: Option<u64>) {
        let free = None;
        *self.state.line.lock() = Line { delay, rate, free };
    }

    /// Returns all requests that were seen.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().clone()
    }

    /// Clears the counts.
    pub fn forget(&self) {
        self.state.seen.lock().clear();
    }

    /// Returns when the last byte of a body was sent.
    #[must_use]
    pub fn last_sent(&self) -> Option<Instant> {
        *self.state.last_sent.lock()
    }

    /// Returns how many requests of a method came whose path contains this.
    #[must_use]
    pub fn requests(&self, method: &Method, path_has: &str) -> usize {
        let seen = self.state.seen.lock();
        let matching = seen.iter();
        matching
            .filter(|seen| seen.method == *method && seen.path.contains(path_has))
            .count()
    }

    /// Returns the bytes of bodies that were sent for paths that have this in them.
    #[must_use]
    pub fn body_bytes(&self, path_has: &str) -> u64 {
        let seen = self.state.seen.lock();
        let matching = seen.iter().filter(|seen| seen.path.contains(path_has));
        matching.map(|seen| seen.body_bytes).sum()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

async fn take_connections(listener: StdListener, state: Arc<ProxyState>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(state.answer(request).await) }
            });
            // Cuts are what it is here for.
            let _ended = server::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type ProxyResponse = Response<BoxBody<Bytes, io::Error>>;

fn status(status: StatusCode) -> ProxyResponse {
    let mut answer = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *answer.status_mut() = status;
    answer
}

impl ProxyState {
    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> ProxyResponse {
        let path = request.uri().to_string();
        let index = {
            let mut seen = self.seen.lock();
            seen.push(Seen {
                method: request.method().clone(),
                path: path.clone(),
                body_bytes: 0,
            });
            seen.len() - 1
        };
        let fault = self.fault(&path);
        let delay = self.line.lock().delay;
        sleep(delay).await;
        match fault {
            Some(Fault::Status(code)) => {
                return status(StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY));
            }
            Some(Fault::Delay(delay)) => sleep(delay).await,
            Some(Fault::Silence) => sleep(SILENCE).await,
            Some(Fault::NoRange) => {
                request.headers_mut().remove(RANGE);
            }
            _ => {}
        }
        let is_head = request.method() == Method::HEAD;
        match pass_on(self.upstream, request).await {
            Ok(answer) if is_head => {
                answer.map(|_| Empty::new().map_err(|never| match never {}).boxed())
            }
            Ok(answer) => self.relay(answer, fault, index),
            Err(error) => {
                log::debug!("{path}: {error}");
                status(StatusCode::BAD_GATEWAY)
            }
        }
    }

    fn fault(&self, path: &str) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let mut rules = rules.iter_mut();
        let rule = rules.find(|rule| rule.times > 0 && path.contains(&rule.path_has))?;
        rule.times -= 1;
        Some(rule.fault)
    }

    fn relay(
        self: Arc<Self>,
        answer: Response<Incoming>,
        fault: Option<Fault>,
        index: usize,
    ) -> ProxyResponse {
        let (head, body) = answer.into_parts();
        let length = head.headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let Some(length) = length else {
            // Only small answers come without a length: tokens.
            return Response::from_parts(head, body.map_err(io::Error::other).boxed());
        };
        let (piped, pipe) = Piped::new(length);
        tokio::spawn(async move { self.send(body, fault, index, &pipe).await });
        Response::from_parts(head, piped.boxed())
    }

    async fn send(&self, mut body: Incoming, fault: Option<Fault>, index: usize, pipe: &Pipe) {
        let mut sent = 0_u64;
        while let Some(Ok(frame)) = body.frame().await {
            let mut piece = frame.into_data().unwrap_or_default();
            let length = piece.len() as u64;
            match fault {
                Some(Fault::Cut(after)) if after < sent + length => {
                    piece.truncate(usize::try_from(after - sent).unwrap_or(usize::MAX));
                }
                Some(Fault::Flip(at)) if (sent..sent + length).contains(&at) => {
                    let mut bytes = piece.to_vec();
                    let at = usize::try_from(at - sent).unwrap_or(usize::MAX);
                    bytes[at] = !bytes[at];
                    piece = Bytes::from(bytes);
                }
                _ => {}
            }
            let is_cut = (piece.len() as u64) < length;
            self.hold_up(piece.len() as u64).await;
            *self.last_sent.lock() = Some(Instant::now());
            sent += piece.len() as u64;
            if let Some(seen) = self.seen.lock().get_mut(index) {
                seen.body_bytes += piece.len() as u64;
            }
            if pipe.send(Ok(piece)).await.is_err() || is_cut {
                return;
            }
        }
    }

    /// Waits until the line has carried so many bytes.
    async fn hold_up(&self, bytes: u64) {
        let until = {
            let mut line = self.line.lock();
            let Some(rate) = line.rate else {
                return;
            };
            let now = Instant::now();
            let from = line.free.map_or(now, |free| free.max(now));
            let takes = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1));
            line.free = Some(from + takes);
            from + takes
        };
        tokio::time::sleep_until(until.into()).await;
    }
}

async fn pass_on(
    upstream: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(upstream).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}
