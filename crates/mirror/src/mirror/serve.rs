//! Accepts connections within limits, and serves HTTP on them with deadlines.

use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

use super::Mirror;
use super::counters::Counters;
use super::reply::{Refusal, Reply, set};
use super::write_timeout::WriteTimeout;
use serving::places::{Answering, Places};
use serving::rate::{RateLimiter, RateLimiters};
use serving::transport::part;

/// The longest request head; also the buffer of a response for a client that does not read.
const HEAD_MAX: usize = 64 << 10;
/// Headers of a request. Real clients send some fifteen.
const HEADERS_MAX: usize = 64;
/// Unsent bytes of a connection that the kernel buffers. Bytes in flight do not count.
const UNSENT_MAX: u32 = 128 << 10;
/// How long a client may take for a head, and keep an idle connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// Connections beyond those of one address that are told at a time that they are; others are closed at once.
const TURNED_AWAY: usize = 64;
/// How long that may take, with what they ask.
const TURNING_AWAY: Duration = Duration::from_secs(2);
/// How long a shutdown waits for responses in progress.
const DRAIN: Duration = Duration::from_secs(30);

/// Limits of connections and of their rate.
#[derive(Clone, Copy, Debug)]
pub struct ServeConfig {
    /// Connections of all clients. Beyond them, those that wait for their client make room; else more wait in the
    /// socket's queue.
    pub connections: u32,
    /// Connections of one address. Beyond them likewise; else more are refused.
    pub connections_of_one: u32,
    /// The limit of bytes per second of bodies to one address, if there is one.
    pub send_rate_of_one: Option<NonZeroU64>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_of_one: 256,
            send_rate_of_one: None,
        }
    }
}

/// Serves a mirror until `closed` becomes true, and returns when requests in progress are
/// completed.
pub async fn serve(
    mirror: Arc<Mirror>,
    listener: TcpListener,
    config: ServeConfig,
    closed: watch::Receiver<bool>,
) {
    let paces = config.send_rate_of_one.map(RateLimiters::new).map(Arc::new);
    let answer = move |peer: IpAddr, request: Request<Incoming>| {
        let mirror = Arc::clone(&mirror);
        let pace = paces.as_ref().map(|paces| paces.of(peer));
        async move { answer(&mirror, peer, &request, pace).await }
    };
    take_connections(listener, config, closed, answer).await;
}

/// Handles one request, and logs it.
async fn answer(
    mirror: &Arc<Mirror>,
    peer: IpAddr,
    request: &Request<Incoming>,
    pace: Option<Arc<RateLimiter>>,
) -> Reply {
    let began = Instant::now();
    let (kind, source, reply) = mirror.answer(peer, request).await;
    mirror.counters.count(kind, source);
    mirror.counters.answering.inc();
    let line = AccessLogLine {
        counters: Arc::clone(&mirror.counters),
        peer,
        method: request.method().clone(),
        // Without the query, which may have what is not for logs.
        path: request.uri().path().to_owned(),
        status: reply.status(),
        source: source.word(),
        began,
        sent: 0,
    };
    let counted = |inner| {
        let mut counted = AccountedBody {
            inner,
            line,
            pace,
            waiting: None,
        };
        // What the answer before has taken.
        counted.pay(0);
        counted
    };
    reply.map(|inner| counted(inner).boxed())
}

/// A line of the access log. It is written when the response ends.
#[derive(Debug)]
struct AccessLogLine {
    counters: Arc<Counters>,
    peer: IpAddr,
    method: Method,
    path: String,
    status: StatusCode,
    source: &'static str,
    began: Instant,
    sent: u64,
}

impl Drop for AccessLogLine {
    fn drop(&mut self) {
        self.counters.answering.dec();
        log::info!(
            target: "nicfetch::access",
            "{} {} {} {} {} {} B {} ms",
            self.peer,
            self.method,
            self.path,
            self.status.as_u16(),
            self.source,
            self.sent,
            self.began.elapsed().as_millis(),
        );
    }
}

/// A body whose bytes are counted, and sent no quicker than they may be.
struct AccountedBody<B> {
    inner: B,
    line: AccessLogLine,
    pace: Option<Arc<RateLimiter>>,
    /// Until the rate limit permits more.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<B> AccountedBody<B> {
    /// Has what comes next wait until these bytes are paid for.
    fn pay(&mut self, bytes: u64) {
        let pace = self.pace.as_ref();
        let wait = pace.map(|pace| pace.take(bytes, Instant::now()));
        let wait = wait.filter(|wait| !wait.is_zero());
        self.waiting = wait.map(|wait| Box::pin(sleep(wait)));
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AccountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(waiting) = &mut self.waiting {
            std::task::ready!(waiting.as_mut().poll(context));
            self.waiting = None;
        }
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let sent = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.line.sent += sent;
            self.line.counters.sent_bytes.inc_by(sent);
            self.pay(sent);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer, until whose end the request is being answered.
struct Answered<B, C> {
    inner: B,
    _answering: Answering<C>,
}

impl<B: Body + Unpin, C> Body for Answered<B, C> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The source of connections.
pub trait Acceptor: Send + 'static {
    /// What goes to and fro.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    /// The peer, as far as it is known.
    type Caller: Copy + Debug + Eq + Hash + Send + Sync + 'static;

    /// Waits for the next connection.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Caller)>> + Send;
}

impl Acceptor for TcpListener {
    type Stream = TcpStream;
    type Caller = IpAddr;

    async fn next(&self) -> io::Result<(TcpStream, IpAddr)> {
        let (stream, peer) = self.accept().await?;
        // Small answers would wait for the client's acknowledgement of the one before.
        let _quick = stream.set_nodelay(true);
        // What the kernel takes of an answer counts in no bound of ours: it would take some MiB for
        // each client that reads nothing.
        let _little = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_MAX);
        Ok((stream, peer.ip()))
    }
}

/// Accepts connections and serves their requests.
pub async fn take_connections<D, A, F>(
    acceptor: D,
    config: ServeConfig,
    mut closed: watch::Receiver<bool>,
    answer: A,
) where
    D: Acceptor,
    A: Fn(D::Caller, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let places = Places::new(
        config.connections as usize,
        config.connections_of_one as usize,
    );
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    loop {
        let next = async {
            let (stream, peer) = acceptor.next().await?;
            Ok::<_, io::Error>((stream, peer, places.admit(peer).await))
        };
        let accepted = tokio::select! {
            next = next => next,
            _ = closed.wait_for(|closed| *closed) => break,
        };
        let (stream, peer, connection) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                // Most likely descriptors have run out: some will come back.
                places.make_room();
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(connection) = connection else {
            log::debug!("{peer:?} has too many connections");
            if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
                let closed = closed.clone();
                tokio::spawn(async move {
                    turn_away(stream, peer, closed).await;
                    drop(place);
                });
            }
            continue;
        };
        let (answer, closed) = (answer.clone(), closed.clone());
        tokio::spawn(async move {
            let turn = connection.turn();
            let answer = |peer, request| {
                let (answering, reply) = (turn.begin(), answer(peer, request));
                async {
                    reply.await.map(|inner| {
                        let body = Answered {
                            inner,
                            _answering: answering,
                        };
                        body.boxed()
                    })
                }
            };
            let stream = WriteTimeout::new(stream, |behind| turn.waits_for_taking(behind));
            tokio::select! {
                () = converse(stream, peer, closed, answer) => {}
                () = connection.ended() => log::debug!("{peer:?} was waited for, and made room"),
            }
        });
    }
    drop(acceptor);
    if !places.wait_until_over(DRAIN).await {
        log::warn!("shutting down although requests are in progress");
    }
}

/// Answers one connection, and closes it so that a client that sends more than is read still gets its response.
async fn converse<S, C, A, F>(mut stream: S, peer: C, closed: watch::Receiver<bool>, answer: A)
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Copy + Debug,
    A: Fn(C, Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    exchange(&mut stream, peer, closed, answer).await;
    part(&mut stream).await;
}

/// Answers one request of a connection that is one too many, whatever it asks, and closes it.
async fn turn_away<S, C>(stream: S, peer: C, closed: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Copy + Debug,
{
    let answer = |_, _| async {
        let mut reply = Refusal::too_many().into_reply();
        set(&mut reply, CONNECTION, "close");
        reply
    };
    let mut stream = WriteTimeout::new(stream, |_| ());
    let answered = timeout(TURNING_AWAY, exchange(&mut stream, peer, closed, answer));
    if answered.await.is_ok() {
        part(&mut stream).await;
    }
}

async fn exchange<S, C, A, F>(stream: &mut S, peer: C, mut closed: watch::Receiver<bool>, answer: A)
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Copy + Debug,
    A: Fn(C, Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    let service = service_fn(|request| {
        let reply = answer(peer, request);
        async { Ok::<_, Infallible>(reply.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let asked_to_end = async { drop(closed.wait_for(|closed| *closed).await) };
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = asked_to_end => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        log::debug!("{peer:?}: {error}");
    }
}
