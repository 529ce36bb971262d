//! The service's side of the handshake: authenticates a client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::link::Link;
use super::machine::{Identity, Name, Vm};
use crate::identity::{Key, Sources, Transcript, nonce, same};
use crate::wire::stream::{ReadError, read_frame, write_frame};
use crate::wire::{
    Direction, ErrorCode, Frame, Message, Method, PROOF_AT_ONCE, PROTOCOLS, Seal, WANTS_MAX,
};
use serving::connections::ConnectionPermit;
use serving::transport::Connected;

/// An authenticated client.
pub(super) struct Authenticated {
    pub(super) vm: Arc<Vm>,
    /// Its name.
    pub(super) name: Vec<u8>,
    /// Counts it among the connections of its machine.
    pub(super) seat: ConnectionPermit<Identity>,
    pub(super) sources: Sources,
    /// The agreed version of the protocol.
    pub(super) protocol: u16,
    pub(super) link: Link,
    /// What its frames are sealed with.
    pub(super) incoming: Seal,
    /// What frames to it are sealed with.
    pub(super) outgoing: Seal,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the connection was lost during the handshake")]
    Read(#[from] ReadError),
    #[error("the connection was lost during the handshake")]
    Io(#[from] std::io::Error),
    #[error("the first frame is not HELLO")]
    Order,
    #[error("the client speaks versions {0} to {1} of the protocol")]
    Version(u16, u16),
    #[error("{name:?} failed to authenticate")]
    Denied { name: String },
    #[error("{name:?} has too many connections")]
    TooMany { name: String },
}

impl Refused {
    /// Returns the error frame for the client.
    fn answer(&self) -> Option<Message> {
        let (code, text) = match self {
            Self::Read(ReadError::Frame(error)) => (ErrorCode::Rule, error.to_string()),
            Self::Read(_) | Self::Io(_) => return None,
            Self::Order => (ErrorCode::Rule, self.to_string()),
            Self::Version(..) => {
                let text = format!(
                    "this service speaks versions {} to {}",
                    PROTOCOLS.start(),
                    PROTOCOLS.end()
                );
                (ErrorCode::Version, text)
            }
            Self::Denied { .. } => (ErrorCode::Denied, "authentication failed".to_owned()),
            Self::TooMany { .. } => (ErrorCode::Busy, "too many connections".to_owned()),
        };
        Some(Message::Error { code, text })
    }
}

/// Authenticates a client. The caller sets the deadline.
pub(super) async fn meet(shared: &Shared, with: &mut Connected) -> Result<Authenticated, Refused> {
    let mut incoming = Seal::open(Direction::ToService);
    let mut outgoing = Seal::open(Direction::ToClient);
    let met = greet(shared, with, &mut incoming, &mut outgoing).await;
    let link = with.peer.link;
    let met = met.and_then(|greeted| {
        let identity = Identity::of(&greeted.name, greeted.is, &link);
        match shared.seat_of(&identity) {
            Some(seat) => Ok((greeted, identity, seat)),
            None => {
                let name = shown(&greeted.name);
                Err(Refused::TooMany { name })
            }
        }
    });
    let answer = match &met {
        Ok(_) => Some(Message::Welcome {
            window: shared.limits.window_bytes,
            wants: u16::try_from(WANTS_MAX).unwrap_or(u16::MAX),
        }),
        Err(refused) => refused.answer(),
    };
    if let Some(answer) = answer {
        write_frame(&mut with.stream, &Frame::new(0, answer), &mut outgoing).await?;
    }
    let (greeted, identity, seat) = met?;
    Ok(Authenticated {
        vm: shared.vm(&identity),
        name: greeted.name,
        seat,
        sources: greeted.sources,
        protocol: greeted.protocol,
        link: greeted.link,
        incoming,
        outgoing,
    })
}

/// What a client said and proved.
struct Greeted {
    name: Vec<u8>,
    is: Name,
    sources: Sources,
    protocol: u16,
    link: Link,
}

async fn greet(
    shared: &Shared,
    with: &mut Connected,
    incoming: &mut Seal,
    outgoing: &mut Seal,
) -> Result<Greeted, Refused> {
    let hello = read_frame(&mut with.stream, incoming).await?;
    let Message::Hello {
        versions,
        nonce: client,
        name,
    } = hello.message
    else {
        return Err(Refused::Order);
    };
    let (low, high) = versions;
    let protocol = high.min(*PROTOCOLS.end());
    if protocol < low.max(*PROTOCOLS.start()) {
        return Err(Refused::Version(low, high));
    }
    let service = nonce()?;
    // A certificate says more than the client does.
    let (name, is, key) = match with.peer.certified.take() {
        Some(certified) => (certified, Name::Proved, None),
        None => match key_of(shared, &name)? {
            Some(key) => (name, Name::Proved, Some(key)),
            None => (name, Name::Believed, None),
        },
    };
    let transcript = Transcript {
        client: &client,
        service: &service,
        name: &name,
    };
    let challenge = Message::Challenge {
        version: protocol,
        method: if key.is_some() {
            Method::Key
        } else {
            Method::None
        },
        nonce: service,
        proof: key.map_or([0; 32], |key| key.proof(Direction::ToClient, &transcript)),
    };
    let asked = Instant::now();
    write_frame(&mut with.stream, &Frame::new(0, challenge), outgoing).await?;
    let answer = read_frame(&mut with.stream, incoming).await?;
    let Message::Prove { proof } = answer.message else {
        return Err(Refused::Order);
    };
    // What was on its way before the challenge says nothing about the line: a long one, to be safe.
    let round_trip = match proof == PROOF_AT_ONCE {
        true => Duration::MAX,
        false => asked.elapsed(),
    };
    let link = shared.link(&with.peer.link, round_trip);
    if let Some(key) = key {
        if !same(&proof, &key.proof(Direction::ToService, &transcript)) {
            return Err(denied(&name));
        }
        incoming.rekey(key.seal(Direction::ToService, &transcript));
        outgoing.rekey(key.seal(Direction::ToClient, &transcript));
    }
    let sources = shared.access.sources(&name);
    let sources = sources.ok_or_else(|| denied(&name))?;
    Ok(Greeted {
        name,
        is,
        sources,
        protocol,
        link,
    })
}

/// Returns the key that a client has to prove; `None` if it need not.
fn key_of(shared: &Shared, name: &[u8]) -> Result<Option<Key>, Refused> {
    match shared.access.tenant(name).and_then(|tenant| tenant.key) {
        Some(key) => Ok(Some(key)),
        None if shared.access.is_open() => Ok(None),
        // A name that nobody has is challenged like any other, with a key that nobody has.
        None => Ok(Some(Key::new(nonce()?))),
    }
}

fn denied(name: &[u8]) -> Refused {
    let name = shown(name);
    Refused::Denied { name }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
