//! A line between a mount and a block service, on which chunks come late or as something else.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;

use parking_lot::Mutex;

/// What happens to chunks, and to nothing else that comes from the service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Chunks {
    AsTheyAre,
    /// All bits of a byte in the middle of each are turned.
    Wrong,
    /// Each comes so much later, and what follows it.
    Late(Duration),
}

/// The line. Its threads end with the connections, the one that takes them with the test.
pub(crate) struct Line {
    socket: PathBuf,
    chunks: Arc<Mutex<Chunks>>,
}

/// From docs/nicfetch-protocol.md.
const HEAD_BYTES: usize = 32;
const CHUNK: u8 = 8;

impl Line {
    /// Takes connections at `socket`, each of which goes to the service at `service`.
    pub(crate) fn start(socket: PathBuf, service: PathBuf) -> Self {
        let listener = UnixListener::bind(&socket).unwrap();
        let chunks = Arc::new(Mutex::new(Chunks::AsTheyAre));
        let treatment = Arc::clone(&chunks);
        spawn(move || {
            for client in listener.incoming() {
                // A service that is away: the connection ends.
                let _lost = client.and_then(|client| connect(client, &service, &treatment));
            }
        });
        Self { socket, chunks }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    pub(crate) fn treat(&self, chunks: Chunks) {
        *self.chunks.lock() = chunks;
    }
}

fn connect(client: UnixStream, service: &Path, chunks: &Arc<Mutex<Chunks>>) -> io::Result<()> {
    let service = UnixStream::connect(service)?;
    let (mut questions, mut to_service) = (client.try_clone()?, service.try_clone()?);
    spawn(move || {
        let _lost = io::copy(&mut questions, &mut to_service);
        let _closed = to_service.shutdown(Shutdown::Both);
    });
    let chunks = Arc::clone(chunks);
    spawn(move || {
        let _lost = pass(&service, &client, &chunks);
        let _closed = client.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Passes frames on until either side is gone.
fn pass(mut from: &UnixStream, mut to: &UnixStream, chunks: &Mutex<Chunks>) -> io::Result<()> {
    loop {
        let mut frame = vec![0; HEAD_BYTES];
        from.read_exact(&mut frame)?;
        let length = |at: usize| {
            let bytes = frame[at..at + 4].try_into().unwrap();
            u32::from_le_bytes(bytes) as usize
        };
        let (body, data) = (length(16), length(20));
        frame.resize(HEAD_BYTES + body + data, 0);
        from.read_exact(&mut frame[HEAD_BYTES..])?;
        if frame[5] == CHUNK && data > 0 {
            let treatment = *chunks.lock();
            match treatment {
                Chunks::AsTheyAre => {}
                Chunks::Wrong => frame[HEAD_BYTES + body + data / 2] ^= 0xff,
                Chunks::Late(by) => sleep(by),
            }
        }
        to.write_all(&frame)?;
    }
}
