//! A registry that has HTTP/2, over TLS: many ranges at a time on one connection, and what becomes of them when it ends.
//!
//! The certificates are valid for a hundred years, for 127.0.0.1: `openssl req -x509 -newkey ec`, and `openssl x509 -req`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distribution::{Client, ClientConfig};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_RANGE, RANGE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ranges::{Blob, Fetcher, Layout, Receiver, RegistryPlace, Server, Wait};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

const PIECE: u32 = 1024;
const PIECES: u32 = 400;
const SIZE: u64 = PIECE as u64 * PIECES as u64;
/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(30);

fn byte(at: u64) -> u8 {
    u8::try_from(at / 7 % 251).unwrap()
}

/// What a server saw, and how it behaves.
#[derive(Default)]
struct Habits {
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// All but the first request are not answered before so many have come: they are on their way together.
    together: usize,
    enough: Notify,
    /// The connection ends when this request has come; those before it, but for the first, have no answer until then.
    dies_at: Option<usize>,
    dies: Notify,
    /// Requests of a connection that it takes at a time; the client sends no others.
    streams: Option<u32>,
    /// A connection takes no new request (GOAWAY) when this one has come, and answers all that it has.
    leaves_at: Option<usize>,
    leaves: Notify,
}

impl Habits {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        assert_eq!(request.version(), Version::HTTP_2);
        let number = self.requests.fetch_add(1, SeqCst);
        if self.dies_at == Some(number) {
            self.dies.notify_waiters();
        }
        if self.leaves_at == Some(number) {
            self.leaves.notify_waiters();
        }
        if number > 0 && self.dies_at.is_some_and(|last| number <= last) {
            return std::future::pending().await;
        }
        let enough = self.enough.notified();
        if number + 1 >= self.together {
            self.enough.notify_waiters();
        } else if number > 0 {
            // Whoever waits in vain fails the test by its count of requests.
            let _late = timeout(DEADLINE, enough).await;
        }
        let range = request.headers()[RANGE].to_str().unwrap();
        let (first, last) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        let range = first.parse().unwrap()..=last.parse::<u64>().unwrap();
        let body: Vec<_> = range.clone().map(byte).collect();
        let header = format!("bytes {}-{}/{SIZE}", range.start(), range.end());
        let response = Response::builder().status(StatusCode::PARTIAL_CONTENT);
        let response = response.header(CONTENT_RANGE, header);
        response.body(Full::new(body.into())).unwrap()
    }
}

/// A server of HTTP/2 until its runtime is dropped.
struct Http2 {
    address: SocketAddr,
    habits: Arc<Habits>,
    _runtime: Runtime,
}

impl Http2 {
    fn start(habits: Habits) -> Self {
        let runtime = Runtime::new().unwrap();
        let habits = Arc::new(habits);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, acceptor(), Arc::clone(&habits)));
        Self {
            address,
            habits,
            _runtime: runtime,
        }
    }
}

fn acceptor() -> TlsAcceptor {
    let chain = CertificateDer::from_pem_slice(include_bytes!("certificates/cert.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("certificates/key.pem"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth();
    let mut config = config
        .with_single_cert(vec![chain.unwrap()], key.unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, habits: Arc<Habits>) {
    while let Ok((stream, _)) = listener.accept().await {
        habits.connections.fetch_add(1, SeqCst);
        let (tls, habits) = (tls.clone(), Arc::clone(&habits));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let answering = Arc::clone(&habits);
            let service = service_fn(move |request| {
                let habits = Arc::clone(&answering);
                async move { Ok::<_, Infallible>(habits.answer(&request).await) }
            });
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(habits.streams);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            tokio::select! {
                _ended = &mut connection => return,
                () = habits.dies.notified() => return,
                () = habits.leaves.notified() => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ended = connection.await;
        });
    }
}

#[derive(Default)]
struct Memory(Mutex<BTreeMap<u32, Vec<u8>>>);

impl Receiver for Memory {
    fn has(&self, piece: u32) -> bool {
        self.0.lock().unwrap().contains_key(&piece)
    }

    fn publish(&self, piece: u32, bytes: &[u8], _from: Server) {
        self.0.lock().unwrap().insert(piece, bytes.to_vec());
    }

    fn requested(&self) {}
}

struct Machine {
    blob: Blob,
    memory: Arc<Memory>,
}

impl Machine {
    fn new(server: &Http2) -> Self {
        let registry = format!("https://{}", server.address);
        let client = Client::new(ClientConfig {
            registry: registry.parse().unwrap(),
            user_agent: "test",
            token_hosts: Vec::new(),
            networks: vec!["127.0.0.0/8".parse().unwrap()],
            authorities: vec![include_bytes!("certificates/ca.pem").to_vec()],
            proxy: None,
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
        });
        let url = format!("{registry}/v2/an/image/blobs/sha256:0");
        let client = Arc::new(client.unwrap());
        let place = RegistryPlace::new(client, url.parse().unwrap(), String::new(), None);
        let memory = Arc::<Memory>::default();
        let layout = Layout {
            size: SIZE,
            piece_bytes: PIECE,
        };
        let fetcher = Fetcher::start(1).unwrap();
        Self {
            blob: fetcher.add(layout, vec![Arc::new(place)], Arc::clone(&memory) as Arc<_>),
            memory,
        }
    }

    /// Reads pieces of which none is beside another: each is a range of its own.
    fn read_apart(&self, pieces: Range<u32>) {
        let apart: Vec<_> = pieces.map(|nth| nth * 2..nth * 2 + 1).collect();
        self.blob
            .read(&apart, &Wait::until(Instant::now() + DEADLINE))
            .unwrap();
        let stored = self.memory.0.lock().unwrap();
        for piece in apart {
            let start = u64::from(piece.start) * u64::from(PIECE);
            let right = (start..start + u64::from(PIECE)).map(byte);
            assert!(stored[&piece.start].iter().copied().eq(right));
        }
    }
}

#[test]
fn many_ranges_are_requested_at_a_time_on_one_connection() {
    // Of HTTP/1.1, 16 connections would be used, and those who wait here would wait for ever.
    let server = Http2::start(Habits {
        together: 60,
        ..Habits::default()
    });
    let machine = Machine::new(&server);
    machine.read_apart(0..1);
    machine.read_apart(1..60);
    assert_eq!(server.habits.connections.load(SeqCst), 1);
    let hedges = usize::try_from(machine.blob.fetcher().counts().hedges).unwrap();
    assert!(server.habits.requests.load(SeqCst) <= 60 + hedges);
}

#[test]
fn what_a_connection_that_ends_did_not_bring_is_requested_on_another() {
    let server = Http2::start(Habits {
        dies_at: Some(59),
        ..Habits::default()
    });
    let machine = Machine::new(&server);
    machine.read_apart(0..1);
    machine.read_apart(1..60);
    let connections = server.habits.connections.load(SeqCst);
    assert!((2..=3).contains(&connections), "{connections}");
    assert!(machine.blob.fetcher().counts().retries > 0);
}

/// The HTTP client requests again what was never sent, on a connection each; what was sent is lost, and requested again by us.
#[test]
fn what_was_queued_on_a_connection_that_ends_comes_on_others() {
    // Ten were sent and are lost; the other 49 wait for their turn, and never were.
    let server = Http2::start(Habits {
        streams: Some(10),
        dies_at: Some(10),
        ..Habits::default()
    });
    let machine = Machine::new(&server);
    machine.read_apart(0..1);
    machine.read_apart(1..60);
    assert!(server.habits.connections.load(SeqCst) > 1);
    let retries = machine.blob.fetcher().counts().retries;
    assert!(retries > 0, "those that were sent are lost");
}

#[test]
fn what_was_queued_on_a_connection_that_takes_no_more_comes_on_others() {
    let server = Http2::start(Habits {
        streams: Some(10),
        leaves_at: Some(5),
        ..Habits::default()
    });
    let machine = Machine::new(&server);
    machine.read_apart(0..1);
    machine.read_apart(1..60);
    assert!(server.habits.connections.load(SeqCst) > 1);
}
