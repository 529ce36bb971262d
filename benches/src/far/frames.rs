//! What the frames on a line say: how often was asked, and what came more than once.
//!
//! The line is read rather than the counters of client or service, so that the figures of all versions of
//! both compare. The frames are those of docs/nicfetch-protocol.md.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use link_emulator::{Piece, Tap};
use parking_lot::Mutex;

/// Bytes of a frame's head.
const HEAD: usize = 32;
/// Kinds of frames that are looked into.
const READ: u8 = 7;
const CHUNK: u8 = 8;
const STREAMED: u8 = 27;
/// Frames of clients that nobody answers, and those of the handshake: no requests.
const NO_REQUESTS: [u8; 5] = [1, 3, 9, 29, 30];
/// Lines of a log: a start by single reads has some thousand frames.
const LOG_LINES: usize = 100_000;

/// What the kinds of frames are called, from 1 on.
const NAMES: [&str; 30] = [
    "hello",
    "challenge",
    "proof",
    "welcome",
    "open",
    "opened",
    "read",
    "chunk",
    "cancel",
    "prefetch",
    "prefetched",
    "get",
    "piece",
    "boots",
    "boot-list",
    "put",
    "put-done",
    "stat",
    "stats",
    "20",
    "goaway",
    "error",
    "start",
    "started",
    "index",
    "plan",
    "streamed",
    "stream-end",
    "skip",
    "promote",
];

/// What went over a line.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Frames in both directions, by kind.
    pub frames: BTreeMap<&'static str, u64>,
    /// Requests that clients sent after the handshake.
    pub requests: u64,
    /// Chunks that came.
    pub chunks: u64,
    /// Their bytes as they were sent.
    pub chunk_bytes: u64,
    /// Of these chunks, ones that had come before.
    pub twice: u64,
    /// Their bytes.
    pub twice_bytes: u64,
}

/// Reads the frames of all connections of a line.
#[derive(Clone, Debug)]
pub struct Frames(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    began: Instant,
    seen: Seen,
    /// The chunks that came.
    came: HashSet<u32>,
    /// What READs want, by connection and request.
    wanted: HashMap<(u64, u64), Vec<u32>>,
    ways: HashMap<(u64, bool), Way>,
    log: Vec<(Instant, String)>,
}

/// One direction of one connection.
#[derive(Debug, Default)]
struct Way {
    /// The beginning of a frame that is not whole yet.
    held: Vec<u8>,
    /// Bytes of data that are still to come.
    skip: usize,
}

/// Head and body of a frame.
struct Frame<'a> {
    kind: u8,
    request: u64,
    body: &'a [u8],
    data_len: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            began: Instant::now(),
            seen: Seen::default(),
            came: HashSet::new(),
            wanted: HashMap::new(),
            ways: HashMap::new(),
            log: Vec::new(),
        })))
    }
}

impl Frames {
    /// Returns what reads them from a line.
    #[must_use]
    pub fn tap(&self) -> Tap {
        let state = Arc::clone(&self.0);
        Tap::new(move |piece| state.lock().read(&piece))
    }

    /// Returns what was seen so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.0.lock().seen.clone()
    }

    /// Returns a line for each frame so far: when it was sent, or had arrived at the client, in
    /// milliseconds from the beginning.
    #[must_use]
    pub fn log(&self) -> String {
        let state = self.0.lock();
        let mut lines: Vec<_> = state.log.iter().collect();
        lines.sort_by_key(|(at, _)| *at);
        lines.iter().fold(String::new(), |mut text, (at, line)| {
            let ms = at.saturating_duration_since(state.began).as_secs_f64() * 1e3;
            // Writing to a string does not fail.
            let _written = writeln!(text, "{ms:9.1} {line}");
            text
        })
    }
}

impl State {
    fn read(&mut self, piece: &Piece<'_>) {
        let key = (piece.connection, piece.to_server);
        let mut way = self.ways.remove(&key).unwrap_or_default();
        let mut bytes = piece.bytes;
        loop {
            let data = way.skip.min(bytes.len());
            way.skip -= data;
            bytes = &bytes[data..];
            if bytes.is_empty() {
                break;
            }
            let missing = missing(&way.held).min(bytes.len());
            way.held.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if let Some(frame) = Frame::parse(&way.held) {
                way.skip = frame.data_len;
                self.note(piece, &frame);
                way.held.clear();
            }
        }
        self.ways.insert(key, way);
    }

    fn note(&mut self, piece: &Piece<'_>, frame: &Frame<'_>) {
        let name = frame.name();
        *self.seen.frames.entry(name).or_default() += 1;
        if piece.to_server && !NO_REQUESTS.contains(&frame.kind) {
            self.seen.requests += 1;
        }
        let connection = piece.connection;
        let key = (connection, frame.request);
        let mut about = String::new();
        match frame.kind {
            READ => {
                let wants = frame.wants();
                about = format!("priority {} {wants:?}", frame.byte(4));
                self.wanted.insert(key, wants);
            }
            CHUNK => {
                let place = usize::from(u16::from_le_bytes([frame.byte(0), frame.byte(1)]));
                let wanted = self.wanted.get(&key);
                let chunk = wanted.and_then(|wanted| wanted.get(place)).copied();
                about = self.chunk(chunk, frame.byte(2), frame.data_len);
            }
            STREAMED => about = self.chunk(Some(frame.number(0)), frame.byte(4), frame.data_len),
            _ => {}
        }
        if self.log.len() < LOG_LINES {
            let (at, arrow) = match piece.to_server {
                true => (piece.sent, '>'),
                false => (piece.arrives, '<'),
            };
            let (request, data) = (frame.request, frame.data_len);
            let line = format!("{connection} {arrow} {name} #{request} {data} B {about}");
            self.log.push((at, line));
        }
    }

    fn chunk(&mut self, chunk: Option<u32>, status: u8, data: usize) -> String {
        let Some(chunk) = chunk.filter(|_| status == 0) else {
            return format!("{chunk:?} status {status}");
        };
        let seen = &mut self.seen;
        seen.chunks += 1;
        seen.chunk_bytes += data as u64;
        let is_new = self.came.insert(chunk);
        if !is_new {
            seen.twice += 1;
            seen.twice_bytes += data as u64;
        }
        format!("{chunk}{}", if is_new { "" } else { " again" })
    }
}

/// Returns how many bytes a frame lacks that begins so.
fn missing(held: &[u8]) -> usize {
    match held.first_chunk::<HEAD>() {
        None => HEAD - held.len(),
        Some(head) => (HEAD + le(&head[16..20])).saturating_sub(held.len()),
    }
}

fn le(bytes: &[u8]) -> usize {
    let number = bytes
        .first_chunk()
        .map_or(0, |four| u32::from_le_bytes(*four));
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl<'a> Frame<'a> {
    /// Takes a frame of which head and body are there.
    fn parse(held: &'a [u8]) -> Option<Self> {
        let (head, body) = held.split_first_chunk::<HEAD>()?;
        let request = head[8..16]
            .first_chunk()
            .map(|bytes| u64::from_le_bytes(*bytes))?;
        (body.len() >= le(&head[16..20])).then(|| Self {
            kind: head[5],
            request,
            body,
            data_len: le(&head[20..24]),
        })
    }

    fn name(&self) -> &'static str {
        let index = usize::from(self.kind).checked_sub(1);
        index.and_then(|index| NAMES.get(index)).unwrap_or(&"?")
    }

    fn byte(&self, at: usize) -> u8 {
        self.body.get(at).copied().unwrap_or(0)
    }

    fn number(&self, at: usize) -> u32 {
        let four = self.body.get(at..).and_then(<[u8]>::first_chunk);
        four.map_or(0, |four| u32::from_le_bytes(*four))
    }

    /// The chunks that a READ wants.
    fn wants(&self) -> Vec<u32> {
        let count = usize::from(u16::from_le_bytes([self.byte(6), self.byte(7)]));
        let numbers = self.body.get(12..).unwrap_or_default().as_chunks::<4>().0;
        numbers
            .iter()
            .take(count)
            .map(|four| u32::from_le_bytes(*four))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, request: u64, body: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = b"nfbl\x01".to_vec();
        bytes.extend([kind, 0, 0]);
        bytes.extend(request.to_le_bytes());
        for len in [body.len(), data.len()] {
            bytes.extend(u32::try_from(len).unwrap().to_le_bytes());
        }
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes.extend(data);
        bytes
    }

    fn read(chunks: &[u32]) -> Vec<u8> {
        let mut body = vec![0; 6];
        body.extend(u16::try_from(chunks.len()).unwrap().to_le_bytes());
        body.extend([0; 4]);
        chunks
            .iter()
            .for_each(|chunk| body.extend(chunk.to_le_bytes()));
        body
    }

    fn chunk(place: u8, status: u8) -> [u8; 8] {
        [place, 0, status, 0, 0, 0, 0, 0]
    }

    /// Shows bytes in pieces of so many.
    fn show(frames: &Frames, connection: u64, to_server: bool, bytes: &[u8], piece: usize) {
        let now = Instant::now();
        for bytes in bytes.chunks(piece) {
            frames.0.lock().read(&Piece {
                connection,
                to_server,
                sent: now,
                arrives: now,
                bytes,
            });
        }
    }

    #[test]
    fn chunks_that_come_twice_are_found_however_the_bytes_are_cut() {
        for cut in [1, 7, 40, 100_000] {
            let frames = Frames::default();
            let asked = [
                frame(1, 0, &[0; 40], &[]),
                frame(READ, 5, &read(&[3, 9]), &[]),
            ]
            .concat();
            show(&frames, 0, true, &asked, cut);
            show(&frames, 1, true, &frame(23, 7, &[0; 45], &[]), cut);
            let answers = [
                frame(CHUNK, 5, &chunk(1, 0), &[0; 1000]),
                frame(CHUNK, 5, &chunk(0, 1), &[]),
            ];
            show(&frames, 0, false, &answers.concat(), cut);
            let mut streamed = 9_u32.to_le_bytes().to_vec();
            streamed.extend([0; 8]);
            show(
                &frames,
                1,
                false,
                &frame(STREAMED, 7, &streamed, &[0; 500]),
                cut,
            );
            let seen = frames.seen();
            assert_eq!((seen.requests, seen.chunks, seen.chunk_bytes), (2, 2, 1500));
            assert_eq!((seen.twice, seen.twice_bytes), (1, 500));
            assert_eq!(seen.frames["hello"], 1);
            let log = frames.log();
            assert!(log.contains("streamed #7 500 B 9 again"), "{log}");
        }
    }
}
