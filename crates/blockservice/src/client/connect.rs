//! Making a connection, keeping it, and making it again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, BufReader, split};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::lane::{Command, Lane};
use crate::identity::{Meeting, nonce, same};
use crate::wire::stream::{ReadError, read_frame, write_frame};
use crate::wire::{Direction, Frame, Message, Method, Seal, VERSION};
use serving::transport::{Stream, connect};

/// What is read of a connection at once, unless it is the data of a large chunk, which goes to
/// its place without a detour.
const READ_BUFFER: usize = 16 << 10;
/// Commands that are taken at a time: so many reads fit in one batch.
const BATCH: usize = 256;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the service broke off")]
    Read(#[from] ReadError),
    #[error("no answer in time")]
    Late,
    #[error("it refused us: {0}")]
    Refused(String),
    #[error("it has not our key: is it the right one, and the right service?")]
    Impostor,
    #[error("it answered with {0}")]
    Order(&'static str),
    #[error("it was silent for too long")]
    Silent,
}

/// A connection that stands.
struct Standing {
    stream: Box<dyn Stream>,
    incoming: Seal,
    outgoing: Seal,
}

/// Keeps a connection until the client is gone.
pub(super) async fn keep(lane: Arc<Lane>, mut commands: UnboundedReceiver<Command>) {
    let patience = lane.shared.config.patience.clone();
    let (first, most) = patience.again;
    let mut again = first;
    loop {
        let made = timeout(patience.connect, meet(&lane.shared)).await;
        let lost = match made.unwrap_or(Err(Lost::Late)) {
            Ok(standing) => {
                again = first;
                run(&lane, &mut commands, standing).await
            }
            Err(lost) => lost,
        };
        lane.end();
        let address = &lane.shared.config.address;
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

/// Waits, and drops what is asked meanwhile: there is nobody to ask.
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

/// Connects, and both sides show who they are.
async fn meet(shared: &Shared) -> Result<Standing, Lost> {
    let config = &shared.config;
    let mut stream = connect(&config.address, config.tls.as_ref()).await?;
    let mut outgoing = Seal::open(Direction::ToService);
    let mut incoming = Seal::open(Direction::ToClient);
    let client = nonce()?;
    let version = u16::from(VERSION);
    let hello = Message::Hello {
        versions: (version, version),
        nonce: client,
        name: config.name.clone(),
    };
    write_frame(&mut stream, &Frame::new(0, hello), &mut outgoing).await?;
    let answer = read_frame(&mut stream, &mut incoming).await?.message;
    let (method, service, theirs) = match answer {
        Message::Challenge {
            method,
            nonce,
            proof,
            ..
        } => (method, nonce, proof),
        Message::Error { text, .. } => return Err(Lost::Refused(text)),
        _ => return Err(Lost::Order("no challenge")),
    };
    let meeting = Meeting {
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
            if !same(&theirs, &key.proof(Direction::ToClient, &meeting)) {
                return Err(Lost::Impostor);
            }
            key.proof(Direction::ToService, &meeting)
        }
    };
    write_frame(
        &mut stream,
        &Frame::new(0, Message::Prove { proof }),
        &mut outgoing,
    )
    .await?;
    if let (Method::Key, Some(key)) = (method, config.key) {
        outgoing.rekey(key.seal(Direction::ToService, &meeting));
        incoming.rekey(key.seal(Direction::ToClient, &meeting));
    }
    match read_frame(&mut stream, &mut incoming).await?.message {
        Message::Welcome { window, .. } => shared.window.store(u64::from(window), Relaxed),
        Message::Error { text, .. } => return Err(Lost::Refused(text)),
        _ => return Err(Lost::Order("no welcome")),
    }
    Ok(Standing {
        stream,
        incoming,
        outgoing,
    })
}

/// Asks and hears until the connection is lost.
async fn run(
    lane: &Arc<Lane>,
    commands: &mut UnboundedReceiver<Command>,
    standing: Standing,
) -> Lost {
    let (read, write) = split(standing.stream);
    let read = BufReader::with_capacity(READ_BUFFER, read);
    // Before anybody can read: what is read waits until it is open.
    for source in lane.shared.sources.lock().iter() {
        lane.open(source);
    }
    lane.begin();
    let reset = lane.reset.notified();
    tokio::select! {
        lost = hear(lane, read, standing.incoming) => lost,
        lost = ask(lane, commands, write, standing.outgoing) => lost,
        () = reset => Lost::Silent,
    }
}

async fn hear<R: AsyncRead + Unpin>(lane: &Lane, mut from: R, mut seal: Seal) -> Lost {
    loop {
        match read_frame(&mut from, &mut seal).await {
            Ok(frame) => {
                if !lane.take(frame) {
                    return Lost::Order("an error");
                }
            }
            Err(error) => return error.into(),
        }
    }
}

async fn ask<W: AsyncWrite + Unpin>(
    lane: &Lane,
    commands: &mut UnboundedReceiver<Command>,
    mut to: W,
    mut seal: Seal,
) -> Lost {
    let silent = lane.shared.config.patience.silent;
    loop {
        let mut batch = Vec::new();
        if commands.recv_many(&mut batch, BATCH).await == 0 {
            return Lost::Order("nothing: the client is gone");
        }
        for question in lane.questions(batch) {
            let frame = lane.note(question);
            match timeout(silent, write_frame(&mut to, &frame, &mut seal)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.into(),
                Err(_) => return Lost::Silent,
            }
        }
    }
}

/// Looks after a service that does not answer: asks whether it is back, and gives its
/// connections up when it is not for long.
pub(super) async fn probe(shared: Arc<Shared>, lanes: [Arc<Lane>; 2]) {
    let patience = shared.config.patience.clone();
    loop {
        sleep(patience.probe).await;
        if !shared.silent.load(Relaxed) {
            continue;
        }
        let mut answered = false;
        for lane in lanes.iter().filter(|lane| lane.is_up()) {
            let asked = timeout(patience.probe, lane.ask(Message::Stat, Vec::new())).await;
            answered |= matches!(asked, Ok(Some(_)));
            let silence = lane
                .heard()
                .map(|heard| Instant::now().duration_since(heard));
            if silence.is_some_and(|silence| silence > patience.silent) {
                lane.reset.notify_one();
            }
        }
        if answered {
            log::info!("the block service answers again");
            shared.silent.store(false, Relaxed);
        }
    }
}
