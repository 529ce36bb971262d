//! The head of a frame, and the seal over it.

use blocks::{Broken, Input};

use super::Message;
use super::message::Kind;

/// The version of frames: all versions of the protocol have the same.
pub const VERSION: u8 = 1;
/// Bytes of a head.
pub const HEAD_BYTES: usize = 32;
/// The most bytes of a body: a list of 64 wants takes 300, a name 255.
pub const BODY_MAX: usize = 64 << 10;
/// The most bytes of data: a chunk that does not compress.
pub const DATA_MAX: usize = chunks::CHUNK_MAX;

const MAGIC: [u8; 4] = *b"nfbl";
const SEALED_HEAD_BYTES: usize = 24;

/// Why a frame cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The other side uses another protocol.
    #[error("this is not the protocol of nicfetch")]
    Magic,
    /// The other side uses another version.
    #[error("version {found} of a frame is not known")]
    Version {
        /// The version in the head.
        found: u8,
    },
    /// There is no such kind of frame.
    #[error("there is no frame of kind {found}")]
    Kind {
        /// The kind in the head.
        found: u8,
    },
    /// A length is beyond its limit. Nothing was allocated.
    #[error("a frame's {what} has {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// How long it would be.
        bytes: u32,
        /// How long it may be.
        limit: usize,
    },
    /// It was damaged in transit, or forged.
    #[error("the authentication code of a frame is wrong: it was damaged, or the keys differ")]
    Seal,
    /// A field breaks a rule.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a client.
    ToService,
    /// To a client.
    ToClient,
}

impl Direction {
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Self::ToService => b'c',
            Self::ToClient => b's',
        }
    }
}

/// What frames of one direction are sealed with: a key, and how many there were.
#[derive(Clone)]
pub struct Seal {
    key: [u8; 32],
    next: u64,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let next = self.next;
        f.debug_struct("Seal")
            .field("next", &next)
            .finish_non_exhaustive()
    }
}

impl Seal {
    /// Returns the public seal of a connection's beginning, which only detects damage.
    #[must_use]
    pub fn open(direction: Direction) -> Self {
        let key = blake3::derive_key("nicfetch 2026 frames", &[direction.letter()]);
        Self { key, next: 0 }
    }

    /// Changes the key; the count stays.
    pub const fn rekey(&mut self, key: [u8; 32]) {
        self.key = key;
    }

    fn of_next(&mut self, head: &[u8], body: &[u8]) -> [u8; 8] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes());
        hasher.update(head);
        hasher.update(body);
        self.next += 1;
        let mut seal = [0; 8];
        hasher.finalize_xof().fill(&mut seal);
        seal
    }
}

/// The head of a frame; its lengths were checked, and nothing else yet.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; HEAD_BYTES],
    kind: Kind,
    request: u64,
    body: usize,
    data: usize,
}

impl Head {
    /// Reads a head.
    ///
    /// # Errors
    /// If it is invalid, or a length is beyond its limit.
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Self, FrameError> {
        let mut input = Input::new("head of a frame", bytes);
        if input.array()? != MAGIC {
            return Err(FrameError::Magic);
        }
        let version = input.u8()?;
        if version != VERSION {
            return Err(FrameError::Version { found: version });
        }
        let found = input.u8()?;
        let kind = Kind::from_number(found).ok_or(FrameError::Kind { found })?;
        if input.u16()? != 0 {
            return Err(input.broken("a reserved field is in use").into());
        }
        let request = input.u64()?;
        let data_max = if kind.has_data() { DATA_MAX } else { 0 };
        Ok(Self {
            bytes: *bytes,
            kind,
            request,
            body: bounded("body", input.u32()?, BODY_MAX)?,
            data: bounded("data", input.u32()?, data_max)?,
        })
    }

    /// Returns the length of the body that follows.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        self.body
    }

    /// Returns the length of the data that follows the body.
    #[must_use]
    pub const fn data_len(&self) -> usize {
        self.data
    }
}

fn bounded(what: &'static str, bytes: u32, limit: usize) -> Result<usize, FrameError> {
    let len = bytes as usize;
    if len > limit {
        return Err(FrameError::TooLarge { what, bytes, limit });
    }
    Ok(len)
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of the request, or of the one it responds to; 0 for none.
    pub request: u64,
    /// Its content.
    pub message: Message,
    /// The bytes it brings: a chunk as stored, or a piece.
    pub data: Vec<u8>,
}

impl Frame {
    /// Returns a frame without data.
    #[must_use]
    pub const fn new(request: u64, message: Message) -> Self {
        Self {
            request,
            message,
            data: Vec::new(),
        }
    }

    /// Returns head and body, sealed; the data follows them as it is.
    ///
    /// # Panics
    /// If body or data are longer than their limits: the caller must check.
    #[must_use]
    pub fn encode(&self, seal: &mut Seal) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        self.message.put(&mut out);
        let body = out.len() - HEAD_BYTES;
        assert!(
            body <= BODY_MAX && self.data.len() <= DATA_MAX,
            "a frame of {body} and {} bytes",
            self.data.len()
        );
        let (head, rest) = out.split_at_mut(HEAD_BYTES);
        head[..4].copy_from_slice(&MAGIC);
        head[4] = VERSION;
        head[5] = self.message.kind() as u8;
        head[8..16].copy_from_slice(&self.request.to_le_bytes());
        head[16..20].copy_from_slice(&length(body).to_le_bytes());
        head[20..24].copy_from_slice(&length(self.data.len()).to_le_bytes());
        let sealed = seal.of_next(&head[..SEALED_HEAD_BYTES], rest);
        head[SEALED_HEAD_BYTES..].copy_from_slice(&sealed);
        out
    }

    /// Decodes a frame whose head was read before.
    ///
    /// # Errors
    /// If the seal does not fit, or the body breaks a rule.
    pub fn parse(
        head: &Head,
        body: &[u8],
        data: Vec<u8>,
        seal: &mut Seal,
    ) -> Result<Self, FrameError> {
        let (sealed, found) = head.bytes.split_at(SEALED_HEAD_BYTES);
        let expected = seal.of_next(sealed, body);
        // In constant time: where they first differ is nobody's business.
        let differing = expected.iter().zip(found).fold(0, |d, (a, b)| d | (a ^ b));
        if differing != 0 {
            return Err(FrameError::Seal);
        }
        Ok(Self {
            request: head.request,
            message: Message::parse(head.kind, body)?,
            data,
        })
    }
}

/// Lengths were compared with limits that fit 32 bits.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
