//! A client of the block service that asks and does not read: it speaks the frames of
//! docs/nicfetch-protocol.md itself, because the real client always reads.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use blockservice::wire::{
    Direction, Frame, HEAD_BYTES, Head, Message, Priority, ReadForm, Seal, VERSION, WANTS_MAX,
};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// READs of 64 chunks: together what a window of 16 MiB allows.
const READS: u64 = 2;

/// One connection.
#[derive(Debug)]
pub(super) struct Asker {
    stream: TcpStream,
    incoming: Seal,
    outgoing: Seal,
    handle: u32,
}

impl Asker {
    /// Connects as the machine `name`, and opens a source.
    pub(super) fn connect(to: SocketAddr, name: &str, source: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
        let patience = Some(PATIENCE);
        stream
            .set_read_timeout(patience)
            .context("setting up a socket")?;
        let mut asker = Self {
            stream,
            incoming: Seal::open(Direction::ToClient),
            outgoing: Seal::open(Direction::ToService),
            handle: 0,
        };
        let version = u16::from(VERSION);
        asker.send(
            0,
            Message::Hello {
                versions: (version, version),
                nonce: [0; 32],
                name: name.as_bytes().to_vec(),
            },
        )?;
        asker.hear()?;
        asker.send(0, Message::Prove { proof: [0; 32] })?;
        asker.hear()?;
        let name = source.as_bytes().to_vec();
        asker.send(1, Message::Open { name })?;
        let Message::Opened { handle, .. } = asker.hear()? else {
            bail!("the source was not opened");
        };
        asker.handle = handle;
        Ok(asker)
    }

    /// Asks for as much as a machine may have asked for.
    pub(super) fn ask_for_much(&mut self) -> anyhow::Result<()> {
        let wants = u32::try_from(WANTS_MAX).context("a READ wants too much")?;
        for number in 0..READS {
            let read = Message::Read {
                handle: self.handle,
                priority: Priority::Demand,
                form: ReadForm::Any,
                deadline_ms: 0,
                chunks: (0..wants).collect(),
            };
            self.send(2 + number, read)?;
        }
        Ok(())
    }

    fn send(&mut self, request: u64, message: Message) -> anyhow::Result<()> {
        let bytes = Frame::new(request, message).encode(&mut self.outgoing);
        self.stream.write_all(&bytes).context("sending a frame")
    }

    fn hear(&mut self) -> anyhow::Result<Message> {
        let mut head = [0; HEAD_BYTES];
        self.stream
            .read_exact(&mut head)
            .context("waiting for a frame")?;
        let head = Head::parse(&head)?;
        let (mut body, mut data) = (vec![0; head.body_len()], vec![0; head.data_len()]);
        self.stream
            .read_exact(&mut body)
            .context("reading a frame")?;
        self.stream
            .read_exact(&mut data)
            .context("reading a frame")?;
        let frame = Frame::parse(&head, &body, data, &mut self.incoming)?;
        match frame.message {
            Message::Error { text, .. } => bail!("the block service refused: {text}"),
            message => Ok(message),
        }
    }
}
