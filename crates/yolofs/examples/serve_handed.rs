//! Serves a mount that another process made, until its last user is gone. The tests kill it.
//!
//! `serve_handed PART` finds on its standard input, a socket, the first talk with the kernel and
//! the descriptors of the mount. It answers with what the kernel was told, and never answers reads
//! of one part of one file: it says when there is one.
//!
//! With `serve_handed PART THREADS` it may have so many threads and no more, and an earlier server has
//! left it a file that was cut short.

mod handed;

use std::env;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use blocks::{BlockSource, FileKey, SourceError, Version};
use handed::{HELD_FILE, LARGE_FILE, PART, fill, names};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, setuid};
use rawio::passing;
use yolofs::{Config, Connection, Diverted, FileSystem, Hello, Ledger, ServeOptions, Serving};

struct Pattern {
    held: u64,
}

impl BlockSource for Pattern {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        if file.file == HELD_FILE && offset / PART == self.held {
            // Whoever waits for this is the one who kills us.
            let _said = passing::send(io::stdin().as_fd(), b"held", &[]);
            loop {
                std::thread::park();
            }
        }
        let left = file.version.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        fill(file.file, offset, &mut buf[..len]);
        Ok(len)
    }
}

/// Keeps nothing: what was written down came from elsewhere.
struct Forgotten;

impl Ledger for Forgotten {
    fn note(&self, _: &Diverted) -> io::Result<()> {
        Ok(())
    }
}

/// Has a file system start with a file that was cut short.
fn cut_short(fs: FileSystem) -> Result<FileSystem, Box<dyn std::error::Error>> {
    let from = names()?.key(LARGE_FILE).ok_or("no such file")?.version;
    let cut = Diverted {
        file: LARGE_FILE,
        from,
        now: Version { size: 1, ..from },
        attr: None,
        believed: from.size,
    };
    Ok(fs.with_ledger(Arc::new(Forgotten), &[cut]))
}

/// Becomes a user whom nobody else is, and who may have so many threads: root may have any number.
fn have_no_more_threads_than(count: u64) -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_NPROC, count, count)?;
    setuid(Uid::from_raw(std::process::id() + 1_000_000))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let held = env::args().nth(1).ok_or("no part")?.parse()?;
    let mut message = vec![0; 16 << 10];
    let (len, descriptors) = passing::receive(io::stdin().as_fd(), &mut message)?;
    let (request_len, talk) = message[..len].split_first_chunk().ok_or("no talk")?;
    let (request, answer) = talk.split_at(u32::from_le_bytes(*request_len).try_into()?);
    let answer = (!answer.is_empty()).then(|| answer.to_vec());
    let hello = Hello::from_parts(request.to_vec(), answer)?;
    let [device, private] = <[_; 2]>::try_from(descriptors).map_err(|_| "not two descriptors")?;

    let mut fs = FileSystem::new(names()?, Arc::new(Pattern { held }), Config::default());
    if let Some(threads) = env::args().nth(2) {
        fs = cut_short(fs)?;
        have_no_more_threads_than(threads.parse()?)?;
    }
    let connection = Connection::from_parts(device, hello);
    let options = ServeOptions::default();
    let serving = Serving::start(Arc::new(fs), &connection, Some(private), &options)?;
    drop(connection);
    serving.let_go();
    let told = serving.hello().answer().ok_or("no answer")?;
    passing::send(io::stdin().as_fd(), told, &[])?;
    while !serving.wait_for_users(Duration::from_secs(60)) {}
    Ok(())
}
