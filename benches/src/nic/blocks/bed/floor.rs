//! What no block path can be quicker than, on this machine and in this minute: a bare answer over
//! loopback, and what has to be done to a chunk before it may be believed.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use chunks::{ChunkId, Stored};

use super::super::microseconds;
use super::{CHUNK, Content};
use crate::rounds::{Shuffle, median};

/// Answers and chunks in each turn.
const TIMES: usize = 200;
/// Bytes of a question, which begins with the length of its answer: the head of a READ.
const QUESTION: usize = 32;

/// Chunks as they are stored, and a connection to a thread that answers at once.
pub(in super::super) struct Floor {
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
    pub(in super::super) fn answer(&mut self) -> anyhow::Result<f64> {
        let mut chunk = vec![0; CHUNK];
        let mut took = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let began = Instant::now();
            self.ask(&mut chunk)?;
            took.push(microseconds(began.elapsed()));
        }
        median(&took).context("nothing was answered")
    }

    /// Returns the median of the microseconds that a chunk's stored bytes take to come and to be
    /// opened. That is more than both alone: who answers sleeps while the chunk is opened, and has
    /// to be woken.
    pub(in super::super) fn answer_and_open(&mut self, content: Content) -> anyhow::Result<f64> {
        let mut answer = vec![0; CHUNK];
        let mut took = Vec::with_capacity(TIMES);
        for at in 0..TIMES.min(self.chunks(content).len()) {
            let (id, stored) = self.chunks(content)[at].clone();
            let began = Instant::now();
            self.ask(&mut answer[..stored.bytes.len()])?;
            let raw = stored.open(&id);
            took.push(microseconds(began.elapsed()));
            raw.context("opening a chunk")?;
        }
        median(&took).context("there are no chunks")
    }

    fn ask(&mut self, answer: &mut [u8]) -> anyhow::Result<()> {
        let mut question = [0; QUESTION];
        question[..8].copy_from_slice(&(answer.len() as u64).to_le_bytes());
        self.connection.write_all(&question)?;
        Ok(self.connection.read_exact(answer)?)
    }

    fn chunks(&self, content: Content) -> &[(ChunkId, Stored)] {
        match content {
            Content::Noise => &self.noise,
            Content::Files | Content::Small => &self.files,
        }
    }

    /// Returns the median of the microseconds that decompressing and comparing a chunk take.
    pub(in super::super) fn open(&self, content: Content) -> anyhow::Result<f64> {
        let mut took = Vec::with_capacity(TIMES);
        for (id, stored) in self.chunks(content) {
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

/// Answers each question with as many bytes as it asks for.
fn answer(mut client: TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let chunk = vec![1; CHUNK];
    let mut question = [0; QUESTION];
    loop {
        client.read_exact(&mut question)?;
        let [a, b, c, d, ..] = question;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        client.write_all(&chunk[..length.min(CHUNK)])?;
    }
}
