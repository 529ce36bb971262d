//! Establishes a connection, keeps it alive, and reconnects after it was lost.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, split};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::connection::{Command, Connection};
use super::connections::Connections;
use super::connector::connect_by;
use super::{Patience, Shared};
use crate::identity::{Transcript, nonce, same};
use crate::line_rate::LineRate;
use crate::wire::stream::{ReadError, read_frame, read_frame_timed, write_frames};
use crate::wire::versions::START_SINCE;
use crate::wire::{
    Direction, Frame, Message, Method, Nonce, PROOF_AT_ONCE, PROTOCOLS, Proof, Seal,
};
use serving::transport::{Stream, connect};

/// What is read of a connection at once, unless it is the data of a large chunk, which goes to
/// its place without a detour.
const READ_BUFFER: usize = 16 << 10;
/// Commands that are taken at a time: so many reads fit in one batch.
const BATCH: usize = 256;

/// Why a connection was lost, or not established.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the service closed the connection")]
    Read(#[from] ReadError),
    #[error("the service did not respond in time")]
    Late,
    #[error("the service refused the connection: {0}")]
    Refused(String),
    #[error("the service did not prove that it has our key: check the key and the address")]
    Impostor,
    #[error("unexpected response from the service: {0}")]
    Order(&'static str),
    #[error("the service sent nothing for too long")]
    Silent,
}

/// An established connection.
struct Established {
    stream: Box<dyn Stream>,
    incoming: Seal,
    outgoing: Seal,
    /// Frames to send before all others.
    first: Vec<Frame>,
}

/// Keeps a connection until the client is dropped.
pub(super) async fn keep(connection: Arc<Connection>, mut commands: UnboundedReceiver<Command>) {
    let patience = connection.shared.config.patience.clone();
    let (first, most) = patience.again;
    let mut again = first;
    loop {
        let made = timeout(patience.connect, meet(&connection)).await;
        let lost = match made.unwrap_or(Err(Lost::Late)) {
            Ok(standing) => {
                again = first;
                run(&connection, &mut commands, standing).await
            }
            Err(lost) => lost,
        };
        connection.end();
        let address = connection.address();
        let why = std::error::Error::source(&lost).map(|why| format!(": {why}"));
        let why = why.unwrap_or_default();
        // Said loudly once; then it is the same news again and again.
        if again == first {
            log::warn!("no connection to the block service at {address}: {lost}{why}");
        } else {
            log::debug!("no connection to the block service at {address}: {lost}{why}");
        }
        if wait(&mut commands, again).await.is_break() {
            return;
        }
        again = (again * 2).min(most);
    }
}

/// Waits before the next attempt, and drops requests: there is no connection.
async fn wait(
    commands: &mut UnboundedReceiver<Command>,
    long: Duration,
) -> std::ops::ControlFlow<()> {
    let pause = sleep(long);
    tokio::pin!(pause);
    loop {
        tokio::select! {
            () = &mut pause => return std::ops::ControlFlow::Continue(()),
            command = commands.recv() => if command.is_none() {
                return std::ops::ControlFlow::Break(());
            },
        }
    }
}

/// Connects, or has it done.
async fn reach(connection: &Connection) -> io::Result<Box<dyn Stream>> {
    let shared = &connection.shared;
    match &shared.connector {
        Some(connector) => connect_by(&**connector, connection.service()).await,
        None => connect(connection.address(), shared.config.tls.as_ref()).await,
    }
}

/// Connects, and authenticates both sides. What the connection begins with travels with the proof,
/// if the service's version of the protocol allows it. Who has nothing to prove sends both with the first
/// word, unless the line is to be measured.
async fn meet(connection: &Connection) -> Result<Established, Lost> {
    let shared = &connection.shared;
    let config = &shared.config;
    let mut stream = reach(connection).await?;
    let mut outgoing = Seal::open(Direction::ToService);
    let mut incoming = Seal::open(Direction::ToClient);
    let client = nonce()?;
    let hello = Message::Hello {
        versions: (*PROTOCOLS.start(), *PROTOCOLS.end()),
        nonce: client,
        name: config.name.clone(),
    };
    let sent = Instant::now();
    let mut packet = Frame::new(0, hello).encode(&mut outgoing);
    let at_once = connection.speaks_at_once();
    if at_once {
        packet.extend(proof_at_once(connection, &mut outgoing));
    }
    stream.write_all(&packet).await?;
    stream.flush().await?;
    let Challenge {
        version,
        method,
        nonce: service,
        proof: theirs,
    } = challenge(&mut stream, &mut incoming).await?;
    connection.measured(sent.elapsed());
    if at_once {
        check_at_once(connection, version, method)?;
        connection.agreed_on(version);
        welcomed(shared, &mut stream, &mut incoming).await?;
        return Ok(Established {
            stream,
            incoming,
            outgoing,
            first: Vec::new(),
        });
    }
    let transcript = Transcript {
        client: &client,
        service: &service,
        name: &config.name,
    };
    let proof = match (method, config.key) {
        (Method::Key, None) => return Err(Lost::Refused("it wants a key".to_owned())),
        // Who needs no proof of us has none for us: with a key, we insist.
        (Method::None, Some(_)) => return Err(Lost::Impostor),
        (Method::None, None) => [0; 32],
        (Method::Key, Some(key)) => {
            if !same(&theirs, &key.proof(Direction::ToClient, &transcript)) {
                return Err(Lost::Impostor);
            }
            key.proof(Direction::ToService, &transcript)
        }
    };
    let mut packet = Frame::new(0, Message::Prove { proof }).encode(&mut outgoing);
    if let (Method::Key, Some(key)) = (method, config.key) {
        outgoing.rekey(key.seal(Direction::ToService, &transcript));
        incoming.rekey(key.seal(Direction::ToClient, &transcript));
    }
    let mut first = connection.begin(version);
    if version >= START_SINCE {
        for frame in std::mem::take(&mut first) {
            packet.extend_from_slice(&frame.encode(&mut outgoing));
            packet.extend_from_slice(&frame.data);
        }
    }
    let sent = Instant::now();
    stream.write_all(&packet).await?;
    stream.flush().await?;
    welcomed(shared, &mut stream, &mut incoming).await?;
    connection.measured(sent.elapsed());
    Ok(Established {
        stream,
        incoming,
        outgoing,
        first,
    })
}

/// Packs the proof of a client without a key, and what the connection begins with.
fn proof_at_once(connection: &Connection, outgoing: &mut Seal) -> Vec<u8> {
    let proof = Message::Prove {
        proof: PROOF_AT_ONCE,
    };
    let first = connection.begin(*PROTOCOLS.end());
    let mut packet = Vec::new();
    for frame in std::iter::once(Frame::new(0, proof)).chain(first) {
        packet.extend_from_slice(&frame.encode(outgoing));
        packet.extend_from_slice(&frame.data);
    }
    packet
}

/// Checks that the service takes what was sent unasked.
fn check_at_once(connection: &Connection, version: u16, method: Method) -> Result<(), Lost> {
    match method {
        Method::Key => Err(Lost::Refused("it wants a key".to_owned())),
        Method::None if version < START_SINCE => {
            connection.waits_for_the_challenge();
            Err(Lost::Order("a service of an earlier release"))
        }
        Method::None => Ok(()),
    }
}

/// How the service replies to a HELLO.
struct Challenge {
    version: u16,
    method: Method,
    nonce: Nonce,
    proof: Proof,
}

/// Reads the service's response to a HELLO.
async fn challenge(stream: &mut Box<dyn Stream>, incoming: &mut Seal) -> Result<Challenge, Lost> {
    match read_frame(stream, incoming).await?.message {
        Message::Challenge {
            version,
            method,
            nonce,
            proof,
        } if PROTOCOLS.contains(&version) => Ok(Challenge {
            version,
            method,
            nonce,
            proof,
        }),
        Message::Error { text, .. } => Err(Lost::Refused(text)),
        _ => Err(Lost::Order("no challenge")),
    }
}

/// Reads the end of a handshake.
async fn welcomed(
    shared: &Shared,
    stream: &mut Box<dyn Stream>,
    incoming: &mut Seal,
) -> Result<(), Lost> {
    match read_frame(stream, incoming).await?.message {
        Message::Welcome { window, .. } => {
            shared.allows(u64::from(window));
            Ok(())
        }
        Message::Error { text, .. } => Err(Lost::Refused(text)),
        _ => Err(Lost::Order("no welcome")),
    }
}

/// Sends requests and receives responses until the connection is lost.
async fn run(
    connection: &Arc<Connection>,
    commands: &mut UnboundedReceiver<Command>,
    standing: Established,
) -> Lost {
    let (read, write) = split(standing.stream);
    let read = BufReader::with_capacity(READ_BUFFER, read);
    connection.welcomed();
    let reset = connection.reset.notified();
    tokio::select! {
        lost = hear(connection, read, standing.incoming) => lost,
        lost = ask(connection, commands, write, standing.outgoing, standing.first) => lost,
        () = reset => Lost::Silent,
    }
}

async fn hear<R: AsyncRead + Unpin>(connection: &Connection, mut from: R, mut seal: Seal) -> Lost {
    let mut line = LineRate::default();
    loop {
        match read_frame_timed(&mut from, &mut seal).await {
            Ok((frame, took)) => {
                if let Some(rate) = line.add(frame.data.len() as u64, took) {
                    connection.brings(rate);
                }
                if !connection.take(frame) {
                    return Lost::Order("an error");
                }
            }
            Err(error) => return error.into(),
        }
    }
}

async fn ask<W: AsyncWrite + Unpin>(
    connection: &Connection,
    commands: &mut UnboundedReceiver<Command>,
    mut to: W,
    mut seal: Seal,
    mut frames: Vec<Frame>,
) -> Lost {
    let silent = connection.shared.config.patience.silent;
    loop {
        // Together: one packet where they fit in one.
        if !frames.is_empty() {
            match timeout(silent, write_frames(&mut to, frames.iter(), &mut seal)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.into(),
                Err(_) => return Lost::Silent,
            }
        }
        let mut batch = Vec::new();
        if commands.recv_many(&mut batch, BATCH).await == 0 {
            return Lost::Order("nothing: the client is gone");
        }
        frames = connection.frames(batch);
    }
}

/// Probes connections that fell silent, and resets them after too long a time.
pub(super) async fn probe(patience: Patience, connections: Connections) {
    loop {
        sleep(patience.probe).await;
        for connection in connections.iter().filter(|connection| connection.is_up()) {
            if !connection.is_silent() {
                continue;
            }
            // Whatever comes, the connection hears it.
            let _heard = timeout(patience.probe, connection.ask(Message::Stat, Vec::new())).await;
            let silence = connection
                .heard()
                .map(|heard| Instant::now().duration_since(heard));
            if silence.is_some_and(|silence| silence > patience.silent) {
                connection.reset.notify_one();
            }
        }
    }
}
