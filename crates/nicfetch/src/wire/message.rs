//! What frames say, and how their bodies are laid out.

use blocks::{Broken, ContentId, Input};

/// The longest name of a virtual machine or of a source.
pub const NAME_MAX: usize = 255;
/// The longest text of an error.
pub const TEXT_MAX: usize = 512;
/// The most chunks that one READ may want.
pub const WANTS_MAX: usize = 64;
/// The most boot images that are listed for a source.
const BOOTS_MAX: usize = 64;

/// Random bytes that were never used before.
pub type Nonce = [u8; 32];
/// What only who has the key can tell of two nonces.
pub type Proof = [u8; 32];

/// Defines an enum of numbers on the wire.
macro_rules! numbered {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $repr:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $number:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        $vis enum $name { $($(#[$variant_meta])* $variant = $number,)+ }

        impl $name {
            /// Returns what has this number on the wire.
            #[must_use]
            $vis const fn from_number(number: $repr) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// The kind of a frame.
    pub(crate) enum Kind: u8 {
        Hello = 1, Challenge = 2, Prove = 3, Welcome = 4, Open = 5, Opened = 6, Read = 7,
        Chunk = 8, Cancel = 9, Prefetch = 10, Prefetched = 11, Get = 12, Piece = 13, Boots = 14,
        BootList = 15, Put = 16, PutDone = 17, Stat = 18, Stats = 19, GoAway = 21,
        Error = 22,
    }
}

impl Kind {
    pub(crate) const fn has_data(self) -> bool {
        matches!(self, Self::Chunk | Self::Piece | Self::Put)
    }
}

numbered! {
    /// How a client is to show who it is.
    pub enum Method: u8 {
        /// The link or its certificate says so.
        None = 0,
        /// It proves that it has its key.
        Key = 1,
    }
}

numbered! {
    /// How urgent a read is; the first is the most urgent.
    pub enum Priority: u8 {
        /// Somebody waits for it.
        Demand = 0,
        /// Somebody will, soon.
        Readahead = 1,
        /// Somebody may.
        Prefetch = 2,
    }
}

numbered! {
    /// What became of one want of a READ.
    pub enum Status: u8 {
        /// Here it is.
        Here = 0,
        /// The service has it not: ask elsewhere.
        Absent = 1,
        /// Beyond the window, or the service is full: ask again later.
        Busy = 2,
        /// Its deadline was over before its turn came.
        Late = 3,
        /// The service could not read it.
        Failed = 4,
    }
}

numbered! {
    /// What a GET is about.
    pub enum What: u8 {
        /// The index of the source.
        Index = 0,
        /// A boot image of the source.
        Boot = 1,
    }
}

numbered! {
    /// Why something was refused.
    pub enum ErrorCode: u16 {
        /// A rule of the protocol was broken.
        Rule = 1,
        /// It is not allowed.
        Denied = 2,
        /// There is no such source, or it is not for this client.
        NoSource = 3,
        /// There is too much to do.
        Busy = 4,
        /// It is larger than allowed.
        TooLarge = 5,
        /// The service failed.
        Failed = 6,
        /// There is no version that both speak.
        Version = 7,
    }
}

/// A boot image that the service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootEntry {
    /// The BLAKE3 of its bytes.
    pub id: ContentId,
    /// Its length in bytes.
    pub len: u64,
}

/// What a frame says; `docs/nicfetch-protocol.md` has the layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the protocol document explains each field once"
)]
pub enum Message {
    Hello {
        versions: (u16, u16),
        nonce: Nonce,
        name: Vec<u8>,
    },
    Challenge {
        version: u16,
        method: Method,
        nonce: Nonce,
        proof: Proof,
    },
    Prove {
        proof: Proof,
    },
    Welcome {
        window: u32,
        wants: u16,
    },
    Open {
        name: Vec<u8>,
    },
    Opened {
        handle: u32,
        len: u64,
        id: ContentId,
    },
    Read {
        handle: u32,
        priority: Priority,
        deadline_ms: u32,
        chunks: Vec<u32>,
    },
    Chunk {
        place: u16,
        status: Status,
        codec: u8,
        raw_len: u32,
    },
    Cancel,
    Prefetch {
        handle: u32,
        first: u32,
        count: u32,
    },
    Prefetched {
        present: u32,
        absent: u32,
    },
    Get {
        handle: u32,
        what: What,
        id: ContentId,
        offset: u64,
        len: u32,
    },
    Piece,
    Boots {
        handle: u32,
    },
    BootList {
        boots: Vec<BootEntry>,
    },
    Put {
        handle: u32,
        id: ContentId,
        total: u64,
        offset: u64,
    },
    PutDone {
        whole: bool,
    },
    Stat,
    Stats {
        numbers: [u64; 7],
    },
    GoAway {
        within_ms: u32,
    },
    Error {
        code: ErrorCode,
        text: String,
    },
}

impl Message {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Hello { .. } => Kind::Hello,
            Self::Challenge { .. } => Kind::Challenge,
            Self::Prove { .. } => Kind::Prove,
            Self::Welcome { .. } => Kind::Welcome,
            Self::Open { .. } => Kind::Open,
            Self::Opened { .. } => Kind::Opened,
            Self::Read { .. } => Kind::Read,
            Self::Chunk { .. } => Kind::Chunk,
            Self::Cancel => Kind::Cancel,
            Self::Prefetch { .. } => Kind::Prefetch,
            Self::Prefetched { .. } => Kind::Prefetched,
            Self::Get { .. } => Kind::Get,
            Self::Piece => Kind::Piece,
            Self::Boots { .. } => Kind::Boots,
            Self::BootList { .. } => Kind::BootList,
            Self::Put { .. } => Kind::Put,
            Self::PutDone { .. } => Kind::PutDone,
            Self::Stat => Kind::Stat,
            Self::Stats { .. } => Kind::Stats,
            Self::GoAway { .. } => Kind::GoAway,
            Self::Error { .. } => Kind::Error,
        }
    }

    /// Appends the body.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello {
                versions: (low, high),
                nonce,
                name,
            } => {
                put(
                    out,
                    &[&low.to_le_bytes(), &high.to_le_bytes(), &[0; 4], nonce],
                );
                put_name(out, name);
            }
            Self::Challenge {
                version,
                method,
                nonce,
                proof,
            } => {
                put(
                    out,
                    &[&version.to_le_bytes(), &[*method as u8, 0], nonce, proof],
                );
            }
            Self::Prove { proof } => put(out, &[proof]),
            Self::Welcome { window, wants } => {
                put(out, &[&window.to_le_bytes(), &wants.to_le_bytes(), &[0; 2]]);
            }
            Self::Open { name } => put_name(out, name),
            Self::Opened { handle, len, id } => {
                put(
                    out,
                    &[&handle.to_le_bytes(), &[0; 4], &len.to_le_bytes(), &id.0],
                );
            }
            Self::Read {
                handle,
                priority,
                deadline_ms,
                chunks,
            } => {
                let count = count16(chunks.len());
                put(
                    out,
                    &[
                        &handle.to_le_bytes(),
                        &[*priority as u8, 0],
                        &count,
                        &deadline_ms.to_le_bytes(),
                    ],
                );
                chunks
                    .iter()
                    .for_each(|chunk| put(out, &[&chunk.to_le_bytes()]));
            }
            Self::Chunk {
                place,
                status,
                codec,
                raw_len,
            } => {
                put(
                    out,
                    &[
                        &place.to_le_bytes(),
                        &[*status as u8, *codec],
                        &raw_len.to_le_bytes(),
                    ],
                );
            }
            Self::Cancel | Self::Piece | Self::Stat => {}
            Self::Prefetch {
                handle,
                first,
                count,
            } => put32(out, &[*handle, *first, *count]),
            Self::Prefetched { present, absent } => put32(out, &[*present, *absent]),
            Self::Get {
                handle,
                what,
                id,
                offset,
                len,
            } => {
                put(
                    out,
                    &[&handle.to_le_bytes(), &[*what as u8, 0, 0, 0], &id.0],
                );
                put(out, &[&offset.to_le_bytes(), &len.to_le_bytes(), &[0; 4]]);
            }
            Self::Boots { handle } => put32(out, &[*handle]),
            Self::BootList { boots } => {
                put(out, &[&count16(boots.len())]);
                boots
                    .iter()
                    .for_each(|boot| put(out, &[&boot.id.0, &boot.len.to_le_bytes()]));
            }
            Self::Put {
                handle,
                id,
                total,
                offset,
            } => {
                put(
                    out,
                    &[
                        &handle.to_le_bytes(),
                        &[0; 4],
                        &id.0,
                        &total.to_le_bytes(),
                        &offset.to_le_bytes(),
                    ],
                );
            }
            Self::PutDone { whole } => out.push(u8::from(*whole)),
            Self::Stats { numbers } => numbers
                .iter()
                .for_each(|number| put(out, &[&number.to_le_bytes()])),
            Self::GoAway { within_ms } => put32(out, &[*within_ms]),
            Self::Error { code, text } => {
                let text = cut(text);
                put(
                    out,
                    &[
                        &(*code as u16).to_le_bytes(),
                        &count16(text.len()),
                        text.as_bytes(),
                    ],
                );
            }
        }
    }

    /// Reads a body.
    pub(crate) fn parse(kind: Kind, body: &[u8]) -> Result<Self, Broken> {
        let mut input = Input::new("body of a frame", body);
        let message = Self::take(kind, &mut input)?;
        input.end()?;
        Ok(message)
    }

    fn take(kind: Kind, input: &mut Input<'_>) -> Result<Self, Broken> {
        Ok(match kind {
            Kind::Hello => {
                let versions = (input.u16()?, input.u16()?);
                zero(input, 4)?;
                Self::Hello {
                    versions,
                    nonce: input.array()?,
                    name: take_name(input)?,
                }
            }
            Kind::Challenge => {
                let version = input.u16()?;
                let method = known(input, Method::from_number)?;
                zero(input, 1)?;
                Self::Challenge {
                    version,
                    method,
                    nonce: input.array()?,
                    proof: input.array()?,
                }
            }
            Kind::Prove => Self::Prove {
                proof: input.array()?,
            },
            Kind::Welcome => {
                let (window, wants) = (input.u32()?, input.u16()?);
                zero(input, 2)?;
                Self::Welcome { window, wants }
            }
            Kind::Open => Self::Open {
                name: take_name(input)?,
            },
            Kind::Opened => {
                let handle = input.u32()?;
                zero(input, 4)?;
                Self::Opened {
                    handle,
                    len: input.u64()?,
                    id: take_id(input)?,
                }
            }
            Kind::Read => take_read(input)?,
            Kind::Chunk => Self::Chunk {
                place: input.u16()?,
                status: known(input, Status::from_number)?,
                codec: input.u8()?,
                raw_len: input.u32()?,
            },
            Kind::Cancel => Self::Cancel,
            Kind::Prefetch => Self::Prefetch {
                handle: input.u32()?,
                first: input.u32()?,
                count: input.u32()?,
            },
            Kind::Prefetched => Self::Prefetched {
                present: input.u32()?,
                absent: input.u32()?,
            },
            Kind::Get => take_get(input)?,
            Kind::Piece => Self::Piece,
            Kind::Boots => Self::Boots {
                handle: input.u32()?,
            },
            Kind::BootList => take_boots(input)?,
            Kind::Put => {
                let handle = input.u32()?;
                zero(input, 4)?;
                Self::Put {
                    handle,
                    id: take_id(input)?,
                    total: input.u64()?,
                    offset: input.u64()?,
                }
            }
            Kind::PutDone => match input.u8()? {
                0 => Self::PutDone { whole: false },
                1 => Self::PutDone { whole: true },
                _ => return Err(input.broken("there is no such outcome")),
            },
            Kind::Stat => Self::Stat,
            Kind::Stats => {
                let mut numbers = [0; 7];
                for number in &mut numbers {
                    *number = input.u64()?;
                }
                Self::Stats { numbers }
            }
            Kind::GoAway => Self::GoAway {
                within_ms: input.u32()?,
            },
            Kind::Error => take_error(input)?,
        })
    }
}

fn take_read(input: &mut Input<'_>) -> Result<Message, Broken> {
    let handle = input.u32()?;
    let priority = known(input, Priority::from_number)?;
    zero(input, 1)?;
    let count = usize::from(input.u16()?);
    let deadline_ms = input.u32()?;
    if count == 0 || count > WANTS_MAX {
        return Err(input.broken("a READ wants 1 to 64 chunks"));
    }
    let chunks = input.records::<4>(count)?;
    let chunks = chunks
        .iter()
        .map(|chunk| u32::from_le_bytes(*chunk))
        .collect();
    Ok(Message::Read {
        handle,
        priority,
        deadline_ms,
        chunks,
    })
}

fn take_get(input: &mut Input<'_>) -> Result<Message, Broken> {
    let handle = input.u32()?;
    let what = known(input, What::from_number)?;
    zero(input, 3)?;
    let id = take_id(input)?;
    let (offset, len) = (input.u64()?, input.u32()?);
    zero(input, 4)?;
    Ok(Message::Get {
        handle,
        what,
        id,
        offset,
        len,
    })
}

fn take_boots(input: &mut Input<'_>) -> Result<Message, Broken> {
    let count = usize::from(input.u16()?);
    if count > BOOTS_MAX {
        return Err(input.broken("a source has too many boot images"));
    }
    let records = input.records::<40>(count)?;
    let boots = records.iter().map(|record| {
        let mut input = Input::new("list of boot images", record);
        Ok(BootEntry {
            id: take_id(&mut input)?,
            len: input.u64()?,
        })
    });
    let boots = boots.collect::<Result<_, Broken>>()?;
    Ok(Message::BootList { boots })
}

fn take_error(input: &mut Input<'_>) -> Result<Message, Broken> {
    let number = input.u16()?;
    let code = ErrorCode::from_number(number).ok_or(input.broken("there is no such error"))?;
    let len = usize::from(input.u16()?);
    if len > TEXT_MAX {
        return Err(input.broken("a text is too long"));
    }
    let text = str::from_utf8(input.take(len)?).map_err(|_| input.broken("a text is no text"))?;
    Ok(Message::Error {
        code,
        text: text.to_owned(),
    })
}

fn known<T>(input: &mut Input<'_>, from: impl Fn(u8) -> Option<T>) -> Result<T, Broken> {
    let number = input.u8()?;
    from(number).ok_or(input.broken("a number has no meaning"))
}

fn zero(input: &mut Input<'_>, len: usize) -> Result<(), Broken> {
    if input.take(len)?.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(input.broken("a reserved field is in use"))
}

fn take_name(input: &mut Input<'_>) -> Result<Vec<u8>, Broken> {
    let len = usize::from(input.u8()?);
    input.take(len).map(<[u8]>::to_vec)
}

fn take_id(input: &mut Input<'_>) -> Result<ContentId, Broken> {
    input.array().map(ContentId)
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn put32(out: &mut Vec<u8>, numbers: &[u32]) {
    numbers
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Names were bounded where they came from.
fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    let name = &name[..name.len().min(NAME_MAX)];
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name);
}

fn count16(count: usize) -> [u8; 2] {
    u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes()
}

/// Cuts a text to what an error may carry.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
