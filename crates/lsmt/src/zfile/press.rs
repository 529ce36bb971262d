//! Compresses blocks in order: the first ones at once, and those of a longer file on a
//! separate thread, while more is read.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::codec::{Codec, Compressor};
use crate::crc;
use crate::num::wide;

/// Bytes that are handed to the thread at once.
pub(super) const BATCH_BYTES: usize = 256 << 10;
/// Batches that are on their way: more would be memory only.
const BATCHES: usize = 4;
/// Bytes before a thread is worth its start.
const ALONE_BYTES: u64 = 1 << 20;

/// The form of stored blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) codec: Codec,
    pub(super) block_size: usize,
    /// Whether a checksum follows each block.
    pub(super) checksums: bool,
}

/// Blocks as they are stored.
#[derive(Debug, Default)]
pub(super) struct Pressed {
    pub(super) bytes: Vec<u8>,
    /// How many bytes of these each block has.
    pub(super) lens: Vec<usize>,
}

type Answer = io::Result<Pressed>;

/// Compresses batches of whole blocks; only the last one of all may end with a part of a block.
pub(super) struct Press {
    form: Form,
    compressor: Compressor,
    seen: u64,
    thread: Option<Thread>,
    /// What was compressed without the thread.
    done: VecDeque<Pressed>,
}

struct Thread {
    batches: Option<Sender<Vec<u8>>>,
    answers: Receiver<Answer>,
    under_way: usize,
    handle: Option<JoinHandle<()>>,
}

impl Press {
    pub(super) fn new(form: Form) -> io::Result<Self> {
        Ok(Self {
            form,
            compressor: Compressor::new(form.codec)?,
            seen: 0,
            thread: None,
            done: VecDeque::new(),
        })
    }

    /// Adds a batch, and waits if too many are in progress.
    pub(super) fn put(&mut self, batch: Vec<u8>) -> io::Result<()> {
        self.seen += wide(batch.len());
        if self.thread.is_none() && self.seen > ALONE_BYTES {
            self.thread = Some(Thread::start(self.form)?);
        }
        let Some(thread) = &mut self.thread else {
            let pressed = press(&mut self.compressor, self.form, &batch)?;
            self.done.push_back(pressed);
            return Ok(());
        };
        while thread.under_way >= BATCHES {
            self.done.push_back(thread.wait()?);
        }
        thread.put(batch)
    }

    /// Returns the compressed batches, in their order; does not wait.
    pub(super) fn take(&mut self) -> io::Result<Option<Pressed>> {
        if let Some(done) = self.done.pop_front() {
            return Ok(Some(done));
        }
        self.thread.as_mut().map_or(Ok(None), Thread::ready)
    }

    /// Waits for the next; `None` if none is in progress.
    pub(super) fn wait(&mut self) -> io::Result<Option<Pressed>> {
        match &mut self.thread {
            _ if !self.done.is_empty() => Ok(self.done.pop_front()),
            Some(thread) if thread.under_way > 0 => thread.wait().map(Some),
            _ => Ok(None),
        }
    }
}

impl Thread {
    fn start(form: Form) -> io::Result<Self> {
        let (batches, to_do) = channel::<Vec<u8>>();
        let (told, answers) = channel();
        let builder = thread::Builder::new().name("zfile".to_owned());
        let mut compressor = Compressor::new(form.codec)?;
        let handle = builder.spawn(move || {
            for batch in to_do {
                let answer = press(&mut compressor, form, &batch);
                if told.send(answer).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            batches: Some(batches),
            answers,
            under_way: 0,
            handle: Some(handle),
        })
    }

    fn put(&mut self, batch: Vec<u8>) -> io::Result<()> {
        let sent = self.batches.as_ref().map(|batches| batches.send(batch));
        self.under_way += 1;
        sent.is_some_and(|sent| sent.is_ok())
            .then_some(())
            .ok_or_else(gone)
    }

    fn wait(&mut self) -> Answer {
        self.under_way -= 1;
        self.answers.recv().unwrap_or_else(|_| Err(gone()))
    }

    fn ready(&mut self) -> io::Result<Option<Pressed>> {
        let Ok(answer) = self.answers.try_recv() else {
            return Ok(None);
        };
        self.under_way -= 1;
        answer.map(Some)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // It ends when nothing more can come.
        drop(self.batches.take());
        if let Some(handle) = self.handle.take() {
            // A panic of it has ended the file already.
            drop(handle.join());
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that compresses has ended")
}

fn press(compressor: &mut Compressor, form: Form, batch: &[u8]) -> Answer {
    let mut pressed = Pressed {
        bytes: Vec::with_capacity(batch.len()),
        lens: Vec::with_capacity(batch.len().div_ceil(form.block_size)),
    };
    for block in batch.chunks(form.block_size) {
        let before = pressed.bytes.len();
        let stored = compressor.compress(block)?;
        if form.checksums {
            let sum = crc::raw(crc::BLOCK_SEED, &stored);
            pressed.bytes.extend(&stored);
            pressed.bytes.extend(sum.to_le_bytes());
        } else {
            pressed.bytes.extend(&stored);
        }
        pressed.lens.push(pressed.bytes.len() - before);
    }
    Ok(pressed)
}
