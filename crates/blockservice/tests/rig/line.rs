//! A line between a client and the service, which counts what is sent and can be cut.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use blockservice::client::{Client, ClientConfig, Patience};
use blockservice::wire::{Direction, Frame, HEAD_BYTES, Head, Message, PROTOCOLS, Seal};
use serving::transport::Address;

use super::Rig;

/// A line to the service that may be silent, and may be cut.
pub(crate) struct Line {
    pub(crate) socket: PathBuf,
    silent: Arc<AtomicBool>,
    pub(crate) streams: Arc<Mutex<Vec<UnixStream>>>,
    is_cut: Arc<AtomicBool>,
    frames: Arc<Frames>,
}

/// What a client has sent: how many frames of each kind.
#[derive(Default)]
struct Frames(Mutex<BTreeMap<u8, usize>>);

impl Line {
    pub(crate) fn start(rig: &Rig) -> Self {
        Self::to(rig, *PROTOCOLS.end())
    }

    /// Has the service look like one that speaks no later version of the protocol than `highest`.
    pub(crate) fn to(rig: &Rig, highest: u16) -> Self {
        let line = Self {
            socket: rig.dir.path().join("line"),
            silent: Arc::default(),
            streams: Arc::default(),
            is_cut: Arc::default(),
            frames: Arc::default(),
        };
        let listener = UnixListener::bind(&line.socket).unwrap();
        let service = rig.socket();
        let (silent, streams) = (Arc::clone(&line.silent), Arc::clone(&line.streams));
        let (is_cut, frames) = (Arc::clone(&line.is_cut), Arc::clone(&line.frames));
        // It ends with the test.
        spawn(move || {
            for client in listener.incoming() {
                if is_cut.load(SeqCst) {
                    continue;
                }
                let joined = client
                    .and_then(|client| join(client, &service, &silent, &streams, highest, &frames));
                let _lost = joined;
            }
        });
        line
    }

    pub(crate) fn client(&self, change: impl FnOnce(&mut Patience)) -> Client {
        let mut patience = Patience::default();
        change(&mut patience);
        let config = ClientConfig {
            address: Address::Unix(self.socket.clone()),
            others: Vec::new(),
            name: b"vm".to_vec(),
            key: None,
            tls: None,
            patience,
        };
        Client::start(config).unwrap()
    }

    /// From now on nothing comes from the service.
    pub(crate) fn fall_silent(&self) {
        self.silent.store(true, SeqCst);
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connections can be made again.
    pub(crate) fn mend(&self) {
        self.is_cut.store(false, SeqCst);
    }

    /// Returns how many frames of a kind the client has sent.
    pub(crate) fn sent(&self, kind: u8) -> usize {
        let frames = self.frames.0.lock().unwrap();
        frames.get(&kind).copied().unwrap_or(0)
    }
}

fn join(
    client: UnixStream,
    service: &Path,
    silent: &Arc<AtomicBool>,
    streams: &Mutex<Vec<UnixStream>>,
    highest: u16,
    frames: &Arc<Frames>,
) -> io::Result<()> {
    let service = UnixStream::connect(service)?;
    let mut kept = streams.lock().unwrap();
    kept.extend([client.try_clone()?, service.try_clone()?]);
    drop(kept);
    let (mut from, mut to) = (client.try_clone()?, service.try_clone()?);
    let frames = Arc::clone(frames);
    spawn(move || {
        offer(&mut from, &mut to, highest)?;
        frames.pass(&mut from, &mut to)
    });
    let silent = Arc::clone(silent);
    spawn(move || back(service, client, &silent));
    Ok(())
}

impl Frames {
    /// Passes frames on, and counts them.
    fn pass(&self, from: &mut UnixStream, to: &mut UnixStream) -> io::Result<()> {
        loop {
            let mut head = [0; HEAD_BYTES];
            from.read_exact(&mut head)?;
            let parsed = Head::parse(&head).map_err(io::Error::other)?;
            let mut rest = vec![0; parsed.body_len() + parsed.data_len()];
            from.read_exact(&mut rest)?;
            *self.0.lock().unwrap().entry(head[5]).or_default() += 1;
            to.write_all(&head)?;
            to.write_all(&rest)?;
        }
    }
}

/// Passes a HELLO on, as one that offers no later version than `highest`.
fn offer(from: &mut UnixStream, to: &mut UnixStream, highest: u16) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    from.read_exact(&mut head)?;
    let head = Head::parse(&head).map_err(io::Error::other)?;
    let mut body = vec![0; head.body_len()];
    from.read_exact(&mut body)?;
    let mut seal = Seal::open(Direction::ToService);
    let hello = Frame::parse(&head, &body, Vec::new(), &mut seal).map_err(io::Error::other)?;
    let Message::Hello {
        versions,
        nonce,
        name,
    } = hello.message
    else {
        return Err(io::Error::other("the first frame is no HELLO"));
    };
    let versions = (versions.0, versions.1.min(highest));
    let hello = Message::Hello {
        versions,
        nonce,
        name,
    };
    let mut seal = Seal::open(Direction::ToService);
    to.write_all(&Frame::new(0, hello).encode(&mut seal))
}

fn back(mut from: UnixStream, mut to: UnixStream, silent: &AtomicBool) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        match from.read(&mut piece)? {
            0 => return to.shutdown(Shutdown::Both),
            _ if silent.load(SeqCst) => {}
            len => to.write_all(&piece[..len])?,
        }
    }
}
