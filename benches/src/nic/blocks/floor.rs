//! What no block path can be quicker than, on this machine and in this minute: a bare answer over
//! loopback, and what has to be done to a chunk before it may be believed.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use nicfetch::{ChunkId, Stored};

use super::bed::{CHUNK, Content};
use super::microseconds;
use crate::rounds::{Shuffle, median};

/// Answers and chunks in each turn.
const TIMES: usize = 200;
/// Bytes of a question: the head of a READ.
const QUESTION: usize = 32;

/// Chunks as they are stored, and a connection to a thread that answers at once.
pub(super) struct Floor {
    files: Vec<(ChunkId, Stored)>,
    noise: Vec<(ChunkId, Stored)>,
    connection: TcpStream,
}

impl Floor {
    /// Takes chunks out of `content`, and starts the thread, which ends with the connection.
    pub(super) fn lay(content: &[u8]) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
        let address = listener.local_addr().context("listening on loopback")?;
        thread::spawn(move || listener.accept().map(|(client, _)| answer(client)));
        let connection = TcpStream::connect(address).context("connecting over loopback")?;
        connection.set_nodelay(true)?;
        let chunks: Vec<_> = content.chunks_exact(CHUNK).collect();
        let step = (chunks.len() / TIMES).max(1);
        let files = chunks.into_iter().step_by(step).take(TIMES).map(packed);
        let mut shuffle = Shuffle::from_seed(2);
        let noise = (0..TIMES).map(|_| {
            let words = (0..CHUNK / 8).flat_map(|_| shuffle.below(u64::MAX).to_le_bytes());
            packed(&words.collect::<Vec<u8>>())
        });
        Ok(Self {
            files: files.collect::<anyhow::Result<_>>()?,
            noise: noise.collect::<anyhow::Result<_>>()?,
            connection,
        })
    }

    /// Returns the median of the microseconds that 128 KiB take to come when they are asked for.
    pub(super) fn answer(&mut self) -> anyhow::Result<f64> {
        let mut chunk = vec![0; CHUNK];
        let mut took = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let began = Instant::now();
            self.connection.write_all(&[0; QUESTION])?;
            self.connection.read_exact(&mut chunk)?;
            took.push(microseconds(began.elapsed()));
        }
        median(&took).context("nothing was answered")
    }

    /// Returns the median of the microseconds that decompressing and comparing a chunk take.
    pub(super) fn open(&self, content: Content) -> anyhow::Result<f64> {
        let chunks = match content {
            Content::Noise => &self.noise,
            Content::Files | Content::Small => &self.files,
        };
        let mut took = Vec::with_capacity(TIMES);
        for (id, stored) in chunks {
            let stored = stored.clone();
            let began = Instant::now();
            let raw = stored.open(id);
            took.push(microseconds(began.elapsed()));
            raw.context("opening a chunk")?;
        }
        median(&took).context("there are no chunks")
    }
}

fn packed(raw: &[u8]) -> anyhow::Result<(ChunkId, Stored)> {
    let stored = Stored::pack(raw).context("packing a chunk")?;
    Ok((ChunkId::of(raw), stored))
}

/// Answers each question with 128 KiB.
fn answer(mut client: TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let chunk = vec![1; CHUNK];
    let mut question = [0; QUESTION];
    loop {
        client.read_exact(&mut question)?;
        client.write_all(&chunk)?;
    }
}
