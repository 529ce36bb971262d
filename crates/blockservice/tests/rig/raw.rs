//! A client that sends what it likes: frames by hand, over any stream.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use blocks::ContentId;
use blockservice::wire::{Direction, ErrorCode, Frame, HEAD_BYTES, Head, Message, Seal};

use super::Rig;

/// What a piece of a boot image has at most.
pub(crate) const PIECE: usize = 128 << 10;

/// A connection of somebody who goes by a name that is believed.
pub(crate) struct Raw<S> {
    pub(crate) stream: S,
    outgoing: Seal,
    incoming: Seal,
    request: u64,
}

impl Raw<UnixStream> {
    pub(crate) fn connect(rig: &Rig, name: &str) -> Self {
        let stream = UnixStream::connect(rig.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self::meet(stream, name).unwrap()
    }
}

impl Raw<TcpStream> {
    /// Connects from an address of this machine.
    pub(crate) fn connect_from(from: [u8; 4], to: SocketAddr, name: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let connecting = async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((from, 0).into()).unwrap();
            socket.connect(to).await.unwrap().into_std().unwrap()
        };
        let stream = runtime.block_on(connecting);
        stream.set_nonblocking(false).unwrap();
        let deadline = Some(Duration::from_secs(60));
        stream.set_read_timeout(deadline).unwrap();
        Self::meet(stream, name).unwrap()
    }
}

impl<S: Read + Write> Raw<S> {
    /// Says who it is.
    pub(crate) fn meet(stream: S, name: &str) -> io::Result<Self> {
        let mut raw = Self::silent(stream);
        let hello = Message::Hello {
            versions: (1, 1),
            nonce: [1; 32],
            name: name.as_bytes().to_vec(),
        };
        raw.send(0, hello, Vec::new())?;
        let challenge = raw.hear()?.message;
        assert!(
            matches!(challenge, Message::Challenge { .. }),
            "{challenge:?}"
        );
        raw.send(0, Message::Prove { proof: [0; 32] }, Vec::new())?;
        let welcome = raw.hear()?.message;
        assert!(matches!(welcome, Message::Welcome { .. }), "{welcome:?}");
        Ok(raw)
    }

    /// Says nothing yet.
    pub(crate) fn silent(stream: S) -> Self {
        Self {
            stream,
            outgoing: Seal::open(Direction::ToService),
            incoming: Seal::open(Direction::ToClient),
            request: 0,
        }
    }

    pub(crate) fn send(&mut self, request: u64, message: Message, data: Vec<u8>) -> io::Result<()> {
        let bytes = self.sealed(&Frame {
            request,
            message,
            data,
        });
        self.stream.write_all(&bytes)
    }

    /// Returns the bytes of the next frame.
    pub(crate) fn sealed(&mut self, frame: &Frame) -> Vec<u8> {
        let mut bytes = frame.encode(&mut self.outgoing);
        bytes.extend_from_slice(&frame.data);
        bytes
    }

    pub(crate) fn hear(&mut self) -> io::Result<Frame> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head)?;
        let head = Head::parse(&head).unwrap();
        let mut body = vec![0; head.body_len()];
        self.stream.read_exact(&mut body)?;
        let mut data = vec![0; head.data_len()];
        self.stream.read_exact(&mut data)?;
        Ok(Frame::parse(&head, &body, data, &mut self.incoming).unwrap())
    }

    /// Goes on with other keys in both directions.
    pub(crate) fn rekey(&mut self, outgoing: [u8; 32], incoming: [u8; 32]) {
        self.outgoing.rekey(outgoing);
        self.incoming.rekey(incoming);
    }

    /// Returns what the next frames are sealed with.
    pub(crate) fn incoming_seal(&mut self) -> Seal {
        std::mem::replace(&mut self.incoming, Seal::open(Direction::ToClient))
    }

    /// Asks, and returns the answer.
    pub(crate) fn ask(&mut self, message: Message, data: Vec<u8>) -> Frame {
        self.request += 1;
        self.send(self.request, message, data).unwrap();
        let answer = self.hear().unwrap();
        assert!([0, self.request].contains(&answer.request), "{answer:?}");
        answer
    }

    /// Opens a source, and returns its handle.
    pub(crate) fn open(&mut self, name: &str) -> u32 {
        let name = name.as_bytes().to_vec();
        match self.ask(Message::Open { name }, Vec::new()).message {
            Message::Opened { handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a piece of a boot image, and returns why it was refused, if it was.
    pub(crate) fn put(
        &mut self,
        handle: u32,
        total: u64,
        offset: u64,
        piece: &[u8],
    ) -> Result<(), (ErrorCode, String)> {
        let put = Message::Put {
            handle,
            id: ContentId::of(b"a boot image that never comes to its end"),
            total,
            offset,
        };
        match self.ask(put, piece.to_vec()).message {
            Message::PutDone { .. } => Ok(()),
            Message::Error { code, text } => Err((code, text)),
            other => panic!("{other:?}"),
        }
    }

    /// Sends as much of a boot image as is taken, up to so many bytes, and returns how many were.
    pub(crate) fn put_some(&mut self, handle: u32, total: u64, most: usize) -> usize {
        let mut sent = 0;
        while sent < most && self.put(handle, total, sent as u64, &[7; PIECE]).is_ok() {
            sent += PIECE;
        }
        sent
    }
}
