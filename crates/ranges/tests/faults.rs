//! Servers that stall, lie, hang up, redirect, demand tokens, or do not know ranges, beside one that is right.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distribution::{Client, ClientConfig};
use ranges::testing::{Answer, MemoryPlace};
use ranges::{
    Blob, Fault, FaultKind, Fetcher, Layout, Place, Priority, Receiver, RegistryPlace, Server,
    Span, Wait,
};
use testkit::range_server::{Asked, RangeServer, Treatment};

const PIECE: u32 = 4096;
const PIECES: u32 = 100;
const SIZE: u64 = PIECE as u64 * PIECES as u64 - 1000;
const PATH: &str = "/v2/an/image/blobs/sha256:0";

fn content() -> Vec<u8> {
    (0..SIZE)
        .map(|at| b'A' + u8::try_from(at / 7 % 25).unwrap())
        .collect()
}

/// Pieces in memory, and which server each is from.
#[derive(Default)]
struct Memory {
    pieces: Mutex<BTreeMap<u32, (Vec<u8>, Server)>>,
    requests: AtomicU64,
    twice: AtomicU64,
}

impl Receiver for Memory {
    fn has(&self, piece: u32) -> bool {
        self.pieces.lock().unwrap().contains_key(&piece)
    }

    fn publish(&self, piece: u32, bytes: &[u8], from: Server) {
        let mut pieces = self.pieces.lock().unwrap();
        if pieces.insert(piece, (bytes.to_vec(), from)).is_some() {
            self.twice.fetch_add(1, SeqCst);
        }
    }

    fn requested(&self) {
        self.requests.fetch_add(1, SeqCst);
    }
}

impl Memory {
    /// Returns how many pieces each server brought.
    fn by_server(&self) -> BTreeMap<Server, usize> {
        let mut servers = BTreeMap::new();
        for (_, server) in self.pieces.lock().unwrap().values() {
            *servers.entry(*server).or_default() += 1;
        }
        servers
    }
}

fn place(address: std::net::SocketAddr) -> Arc<dyn Place> {
    let registry = format!("http://{address}").parse().unwrap();
    let client = Client::new(ClientConfig {
        registry,
        user_agent: "test",
        token_hosts: Vec::new(),
        networks: vec!["127.0.0.0/8".parse().unwrap()],
        authorities: Vec::new(),
        proxy: None,
        connect: Duration::from_secs(10),
        answer: Duration::from_secs(60),
    });
    let url = format!("http://{address}{PATH}").parse().unwrap();
    let scope = "repository:an/image:pull".to_owned();
    Arc::new(RegistryPlace::new(
        Arc::new(client.unwrap()),
        url,
        scope,
        None,
    ))
}

/// A machine that reads the blob from servers, each behind the one before it.
struct Machine {
    blob: Blob,
    memory: Arc<Memory>,
}

impl Machine {
    fn new(servers: &[&RangeServer]) -> Self {
        let places: Vec<_> = servers.iter().map(|server| place(server.address)).collect();
        Self::at(places)
    }

    fn at(places: Vec<Arc<dyn Place>>) -> Self {
        let fetcher = Fetcher::start(places.len()).unwrap();
        let memory = Arc::<Memory>::default();
        let layout = Layout {
            size: SIZE,
            piece_bytes: PIECE,
        };
        Self {
            blob: fetcher.add(layout, places, Arc::clone(&memory) as Arc<_>),
            memory,
        }
    }

    /// Reads pieces, and compares them with the blob.
    fn read(&self, pieces: Range<u32>) -> std::io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(50);
        let came = self
            .blob
            .read(std::slice::from_ref(&pieces), &Wait::until(deadline))?;
        let content = content();
        let stored = self.memory.pieces.lock().unwrap();
        for piece in pieces {
            let start = piece as usize * PIECE as usize;
            let end = content.len().min(start + PIECE as usize);
            let expected = &content[start..end];
            assert!(stored[&piece].0 == expected, "piece {piece} is wrong");
            let own = came.iter().find(|(number, _)| *number == piece);
            assert!(own.is_none_or(|(_, bytes)| **bytes == *expected));
        }
        Ok(())
    }

    fn counts(&self) -> ranges::Counts {
        self.blob.fetcher().counts()
    }

    fn fill(&self) {
        let all = Span {
            blob: self.blob.number(),
            pieces: 0..PIECES,
        };
        let feed = self.blob.fetcher().feed(vec![all], Priority::Fill);
        feed.wait();
        assert!(feed.fault().is_none(), "{:?}", feed.fault());
    }
}

fn right() -> RangeServer {
    RangeServer::start(content(), |_| Treatment::Right)
}

fn treated(treat: impl Fn(&Asked) -> Treatment + Send + Sync + 'static) -> RangeServer {
    RangeServer::start(content(), treat)
}

fn bytes(asked: &[Asked]) -> u64 {
    asked.iter().map(|a| a.range.end - a.range.start).sum()
}

#[test]
fn neighbours_come_together_and_each_byte_once() {
    let server = right();
    let machine = Machine::new(&[&server]);
    machine.read(3..9).unwrap();
    let asked = server.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].range, 3 * 4096..9 * 4096);
    machine.fill();
    machine.read(0..PIECES).unwrap();
    let asked = server.asked();
    assert_eq!(bytes(&asked), SIZE);
    assert!(asked.len() < 20, "{asked:?}");
    assert_eq!(machine.memory.requests.load(SeqCst), asked.len() as u64);
    assert_eq!(machine.memory.twice.load(SeqCst), 0);
}

#[test]
fn a_reader_joins_what_is_being_filled() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let server = treated(move |asked| {
        if asked.number == 0 {
            gate.lock().unwrap().recv().unwrap();
        }
        Treatment::Right
    });
    let machine = Machine::new(&[&server]);
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| machine.fill());
        let reading = scope.spawn(|| {
            while server.asked().is_empty() {
                std::thread::yield_now();
            }
            machine.read(0..2).unwrap();
        });
        while machine.counts().joins == 0 {
            std::thread::yield_now();
        }
        open.send(()).unwrap();
        reading.join().unwrap();
        filling.join().unwrap();
    });
    let counts = machine.counts();
    assert_eq!((counts.joins, counts.promotions), (2, 2));
    // Only what was late was requested twice.
    let twice = bytes(&server.asked()) - SIZE;
    assert!(twice <= counts.hedges * u64::from(PIECE), "{counts:?}");
}

#[test]
fn the_origin_is_asked_only_for_what_the_mirror_does_not_bring() {
    let (mirror, origin) = (right(), right());
    let machine = Machine::new(&[&mirror, &origin]);
    machine.read(0..50).unwrap();
    machine.fill();
    assert_eq!(origin.asked().len(), 0);
    assert_eq!(bytes(&mirror.asked()), SIZE);
    // A mirror without the blob costs one request for each that it is asked.
    let empty = treated(|_| Treatment::Status(404, Vec::new()));
    let machine = Machine::new(&[&empty, &origin]);
    machine.read(0..50).unwrap();
    assert_eq!(machine.memory.by_server()[&Server(1)], 50);
    assert_eq!(bytes(&origin.asked()), 50 * u64::from(PIECE));
}

#[test]
fn a_mirror_that_stalls_is_replaced() {
    let mirror = treated(|asked| match asked.number {
        0 => Treatment::Right,
        _ => Treatment::Stall,
    });
    let origin = right();
    let machine = Machine::new(&[&mirror, &origin]);
    machine.read(0..4).unwrap();
    machine.read(4..50).unwrap();
    assert_eq!(machine.memory.by_server()[&Server(1)], 46);
    let counts = machine.counts();
    assert!(counts.stalls + counts.hedges > 0, "{counts:?}");
}

#[test]
fn a_mirror_that_is_down_is_replaced() {
    let gone = right();
    let (address, origin) = (gone.address, right());
    drop(gone);
    let machine = Machine::at(vec![place(address), place(origin.address)]);
    machine.read(0..4).unwrap();
    assert_eq!(machine.memory.by_server()[&Server(1)], 4);
    assert!(machine.counts().retries > 0);
}

/// A registry that restarts fails no read of what its mirror lacks.
#[test]
fn what_the_mirror_lacks_is_waited_for_while_the_origin_is_away() {
    let server = |answer: Box<Answer>| {
        let (answer, parallel) = (Arc::from(answer), 1);
        Arc::new(MemoryPlace { answer, parallel }) as Arc<dyn Place>
    };
    let (asked, tries) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (of_mirror, of_origin) = (Arc::clone(&asked), Arc::clone(&tries));
    let mirror = server(Box::new(move |_| {
        of_mirror.fetch_add(1, SeqCst);
        Err(Fault::new(FaultKind::Absent, "no such blob"))
    }));
    let origin = server(Box::new(move |range| {
        match of_origin.fetch_add(1, SeqCst) {
            0 | 1 => Err(Fault::new(FaultKind::Away, "away")),
            _ => {
                let at = |byte: u64| usize::try_from(byte).unwrap();
                Ok(content()[at(range.start)..at(range.end)].to_vec())
            }
        }
    }));
    let machine = Machine::at(vec![mirror, origin]);
    machine.read(0..8).unwrap();
    // The mirror is not asked again and again meanwhile.
    assert_eq!((asked.load(SeqCst), tries.load(SeqCst)), (3, 3));
}

#[test]
fn what_is_cut_in_the_middle_is_not_sent_again() {
    let server = treated(|asked| match asked.number {
        0 => Treatment::Cut(3 * 4096 + 100),
        _ => Treatment::Right,
    });
    let machine = Machine::new(&[&server]);
    machine.read(0..8).unwrap();
    let asked = server.asked();
    assert_eq!(asked[1].range, 3 * 4096..8 * 4096, "{asked:?}");
    assert_eq!(machine.memory.twice.load(SeqCst), 0);
}

#[test]
fn another_range_is_not_believed() {
    let mirror = treated(|_| Treatment::OtherRange);
    let origin = right();
    let machine = Machine::new(&[&mirror, &origin]);
    machine.read(0..8).unwrap();
    assert_eq!(machine.memory.by_server()[&Server(1)], 8);
    assert!(machine.counts().wrong > 0);
    let machine = Machine::new(&[&mirror]);
    let error = machine.read(0..8).unwrap_err().to_string();
    assert!(error.contains("another range"), "{error}");
}

#[test]
fn who_does_not_know_ranges_is_not_asked_for_them_again() {
    let mirror = treated(|_| Treatment::Whole);
    let origin = right();
    let machine = Machine::new(&[&mirror, &origin]);
    machine.read(0..8).unwrap();
    assert_eq!(mirror.asked().len(), 1);
    assert_eq!(machine.memory.by_server()[&Server(1)], 8);
    let machine = Machine::new(&[&mirror]);
    let error = machine.read(0..8).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains("parts of blobs"), "{error}");
}

#[test]
fn a_server_that_is_busy_for_a_while_is_asked_again() {
    let server = treated(|asked| match asked.number {
        0..3 => Treatment::Status(503, Vec::new()),
        _ => Treatment::Right,
    });
    let machine = Machine::new(&[&server]);
    machine.read(0..8).unwrap();
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn redirects_are_followed_and_tokens_fetched_once() {
    let store = right();
    let there = store.url("/store/blob");
    let tokens = testkit::scripted::Scripted::start(|_| (200, vec![], r#"{"token":"t0"}"#));
    let realm = tokens.url("/token");
    let registry = treated(move |asked| match &asked.authorization {
        Some(value) if value == "Bearer t0" => {
            Treatment::Status(307, vec![("Location", there.clone())])
        }
        _ => {
            let demand = format!("Bearer realm=\"{realm}\",service=\"test\"");
            Treatment::Status(401, vec![("WWW-Authenticate", demand)])
        }
    });
    let machine = Machine::new(&[&registry]);
    machine.read(0..8).unwrap();
    machine.fill();
    machine.read(0..PIECES).unwrap();
    assert_eq!(tokens.seen().len(), 1);
    let asked = store.asked();
    assert_eq!(bytes(&asked), SIZE);
    // The token is not for where the registry leads.
    assert!(asked.iter().all(|asked| asked.authorization.is_none()));
}

#[test]
fn a_mirror_whose_bytes_were_wrong_is_left_alone_for_a_while() {
    let mirror = treated(|_| Treatment::Lie);
    let origin = right();
    let machine = Machine::new(&[&mirror, &origin]);
    let deadline = Instant::now() + Duration::from_secs(50);
    assert_eq!(
        machine
            .blob
            .read(std::slice::from_ref(&(0..8)), &Wait::until(deadline))
            .unwrap()
            .len(),
        8
    );
    machine.blob.was_wrong(Server(0));
    let before = mirror.asked().len();
    machine.read(8..50).unwrap();
    assert_eq!(mirror.asked().len(), before);
}

#[test]
fn a_read_ends_at_its_deadline() {
    let server = treated(|_| Treatment::Stall);
    let machine = Machine::new(&[&server]);
    let wait = Wait::until(Instant::now() + Duration::from_millis(100));
    let error = machine.blob.read(&[0..1, 5..6], &wait).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    let (said, name) = (error.to_string(), server.address.to_string());
    assert!(said.contains(&name), "{said}");
    // Who comes when his time is over asks for nothing.
    let before = server.asked().len();
    machine
        .blob
        .read(std::slice::from_ref(&(7..8)), &wait)
        .unwrap_err();
    assert_eq!(server.asked().len(), before);
}
