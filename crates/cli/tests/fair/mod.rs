//! A network between containerd and a registry that shares itself fairly, piece by piece.
//!
//! Nothing depends on time: a piece of a blob comes when all downloads that the engine runs at once
//! have begun, and it is the turn of this one. So what is downloaded last is the same on a quiet
//! machine and on a busy one.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::spawn;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Downloads at once: what the CRI of containerd does unless told otherwise.
const AT_ONCE: usize = 3;
const PIECE: usize = 1024;
/// Far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the layers of an image, as the network sees it.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    /// Its digest, without the algorithm.
    pub(crate) hex: String,
    pub(crate) layer: usize,
    /// What a piece of it costs: 1000 if it gets an equal share.
    pub(crate) cost: u64,
}

/// The network.
pub(crate) struct Network {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

/// Says whether the last piece of the last layer, which it is told, may come.
type Release = Box<dyn Fn(usize) -> bool + Send + Sync>;
/// Says whether the last piece of a blob may come.
type Held = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    blobs: Vec<Blob>,
    /// What each running download has cost so far.
    running: BTreeMap<usize, u64>,
    /// What the next download begins with: nobody catches up with others.
    clock: u64,
    arrived: Vec<usize>,
    release: Option<Arc<Release>>,
    held: BTreeMap<String, Held>,
}

impl Network {
    pub(crate) fn before(registry: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                // Clients may hang up whenever they like.
                spawn(move || drop(shared.serve(&client, registry)));
            }
        });
        Self { port, shared }
    }

    /// Expects a pull of these blobs. The last piece of the last one comes when `release` says so.
    pub(crate) fn expect(
        &self,
        blobs: Vec<Blob>,
        release: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) {
        *self.shared.now.lock() = Now {
            blobs,
            release: Some(Arc::new(Box::new(release))),
            ..Now::default()
        };
    }

    /// Has all of a blob come at once but for its last piece, which comes when `release` says so.
    pub(crate) fn hold(&self, hex: String, release: impl Fn() -> bool + Send + Sync + 'static) {
        self.shared.now.lock().held.insert(hex, Arc::new(release));
    }

    /// Returns the layers in the order in which they arrived.
    pub(crate) fn arrived(&self) -> Vec<usize> {
        self.shared.now.lock().arrived.clone()
    }
}

impl Shared {
    fn serve(&self, mut client: &TcpStream, registry: u16) -> std::io::Result<()> {
        let mut requests = BufReader::new(client.try_clone()?);
        while let Some(request) = head(&mut requests)? {
            let mut server = TcpStream::connect(("127.0.0.1", registry))?;
            server.write_all(request.trim_end().as_bytes())?;
            server.write_all(b"\r\nConnection: close\r\n\r\n")?;
            let mut answers = BufReader::new(server);
            let answer = head(&mut answers)?.unwrap_or_default();
            let kept = answer
                .lines()
                .filter(|line| !line.starts_with("Connection:"));
            let kept: String = kept.map(|line| format!("{line}\r\n")).collect();
            let mut body = Vec::new();
            if request.starts_with("GET") {
                answers.read_to_end(&mut body)?;
            }
            client.write_all(
                format!("{}\r\n", kept.trim_end_matches("\r\n").to_owned() + "\r\n").as_bytes(),
            )?;
            if let Some(release) = self.held(&request) {
                let (most, last) = body.split_at(body.len().saturating_sub(PIECE));
                client.write_all(most)?;
                while !release() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                client.write_all(last)?;
                continue;
            }
            match self.expected(&request) {
                Some(blob) => self.share(&blob, &body, client)?,
                None => client.write_all(&body)?,
            }
        }
        Ok(())
    }

    fn held(&self, request: &str) -> Option<Held> {
        let now = self.now.lock();
        let asked = |hex: &&String| request.starts_with("GET") && request.contains(hex.as_str());
        let hex = now.held.keys().find(asked)?;
        now.held.get(hex).cloned()
    }

    fn expected(&self, request: &str) -> Option<Blob> {
        let now = self.now.lock();
        let asked = |blob: &&Blob| request.starts_with("GET") && request.contains(&blob.hex);
        now.blobs.iter().find(asked).cloned()
    }

    /// Sends a blob, a piece whenever it is its turn.
    fn share(&self, blob: &Blob, body: &[u8], mut client: &TcpStream) -> std::io::Result<()> {
        {
            let mut now = self.now.lock();
            let clock = now.clock;
            now.running.insert(blob.layer, clock);
            self.changed.notify_all();
        }
        let pieces = body.chunks(PIECE).count();
        for (number, piece) in body.chunks(PIECE).enumerate() {
            self.wait_for_turn(blob, number + 1 == pieces);
            client.write_all(piece)?;
            let mut now = self.now.lock();
            let cost = piece.len() as u64 * blob.cost;
            let so_far = now.running.get_mut(&blob.layer).unwrap();
            *so_far += cost;
            now.clock = *so_far;
            if number + 1 == pieces {
                now.running.remove(&blob.layer);
                now.arrived.push(blob.layer);
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    fn wait_for_turn(&self, blob: &Blob, is_last_piece: bool) {
        let mut now = self.now.lock();
        loop {
            let left = now.blobs.len() - now.arrived.len();
            let least = now
                .running
                .iter()
                .min_by_key(|(layer, cost)| (**cost, **layer));
            let is_turn = now.running.len() >= left.min(AT_ONCE)
                && least.is_some_and(|(layer, _)| *layer == blob.layer);
            if is_turn && (left > 1 || !is_last_piece) {
                return;
            }
            if is_turn {
                let release = now.release.clone().unwrap();
                drop(now);
                while !release(blob.layer) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return;
            }
            let late = self.changed.wait_for(&mut now, PATIENCE).timed_out();
            assert!(!late, "no turn for layer {}: {:?}", blob.layer, now.running);
        }
    }
}

/// Reads up to and with an empty line; `None` if nothing comes any more.
fn head(from: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let mut text = String::new();
    while from.read_line(&mut text)? > 0 {
        if text.ends_with("\r\n\r\n") {
            return Ok(Some(text));
        }
    }
    Ok(None)
}
