//! The messages of the protocol, and the layouts of their bodies.

mod put;
mod take;

use blocks::ContentId;
use chunks::BootEntry;

/// The longest text of an error.
pub const TEXT_MAX: usize = 512;
/// The most chunks that one READ may want.
pub const WANTS_MAX: usize = 64;
/// The most chunks that one SKIP may name: more are several of them.
pub const SKIPS_MAX: usize = 4096;
/// The most boot images that are listed for a source.
const BOOTS_MAX: usize = 64;

/// Random bytes that were never used before.
pub type Nonce = [u8; 32];
/// A hash of two nonces that only the holder of the key can compute.
pub type Proof = [u8; 32];

/// The proof of a client without a key that sends it with its HELLO, before any challenge.
pub const PROOF_AT_ONCE: Proof = [1; 32];

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
        Error = 22, Start = 23, Started = 24, Index = 25, Plan = 26, Streamed = 27,
        StreamEnd = 28, Skip = 29, Promote = 30, Resume = 31, Links = 32,
    }
}

impl Kind {
    pub(crate) const fn has_data(self) -> bool {
        matches!(
            self,
            Self::Chunk
                | Self::Piece
                | Self::Put
                | Self::Index
                | Self::Plan
                | Self::Streamed
                | Self::Links
        )
    }
}

numbered! {
    /// How a client authenticates.
    pub enum Method: u8 {
        /// By the link or its certificate.
        None = 0,
        /// It proves that it has its key.
        Key = 1,
    }
}

numbered! {
    /// How urgent a read is; the first is the most urgent.
    pub enum Priority: u8 {
        /// A reader waits for it.
        Demand = 0,
        /// It will be read soon.
        Readahead = 1,
        /// It may be read.
        Prefetch = 2,
    }
}

numbered! {
    /// The form in which a READ wants its chunks.
    pub enum ReadForm: u8 {
        /// The service chooses.
        Any = 0,
        /// As stored, since the client has measured that its line is slow.
        Stored = 1,
    }
}

numbered! {
    /// The result of one want of a READ.
    pub enum Status: u8 {
        /// The chunk follows.
        Here = 0,
        /// The service does not have it: use another source.
        Absent = 1,
        /// Beyond the window, or the service is full: retry later.
        Busy = 2,
        /// Its deadline had passed before its turn.
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
    /// The parts that a START requests.
    pub enum Ask: u8 {
        /// The index of the source.
        Index = 0,
        /// The index and the plan of its boots.
        Plan = 1,
        /// The index, the plan, and the chunks that the plan names.
        Chunks = 2,
    }
}

numbered! {
    /// Why a request was refused.
    pub enum ErrorCode: u16 {
        /// A rule of the protocol was broken.
        Rule = 1,
        /// It is not allowed.
        Denied = 2,
        /// There is no such source, or it is not for this client.
        NoSource = 3,
        /// The service is too busy.
        Busy = 4,
        /// It is larger than allowed.
        TooLarge = 5,
        /// An internal error of the service.
        Failed = 6,
        /// There is no common version.
        Version = 7,
    }
}

/// The content of a frame; `docs/nicfetch-protocol.md` has the layouts.
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
        form: ReadForm,
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
    Start {
        ask: Ask,
        have: ContentId,
        name: Vec<u8>,
    },
    Started {
        handle: u32,
        codec: u8,
        id: ContentId,
        raw_len: u64,
        packed_len: u64,
        plan_len: u64,
        plan_chunks: u32,
        links_len: u32,
    },
    Index,
    Plan,
    Links,
    Streamed {
        chunk: u32,
        status: Status,
        codec: u8,
        raw_len: u32,
    },
    StreamEnd {
        sent: u32,
        skipped: u32,
        failed: u32,
    },
    Skip {
        chunks: Vec<u32>,
    },
    Promote {
        chunks: Vec<u32>,
    },
    Resume {
        have: ContentId,
        plan: ContentId,
        first: u32,
        name: Vec<u8>,
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
            Self::Start { .. } => Kind::Start,
            Self::Started { .. } => Kind::Started,
            Self::Index => Kind::Index,
            Self::Plan => Kind::Plan,
            Self::Links => Kind::Links,
            Self::Streamed { .. } => Kind::Streamed,
            Self::StreamEnd { .. } => Kind::StreamEnd,
            Self::Skip { .. } => Kind::Skip,
            Self::Promote { .. } => Kind::Promote,
            Self::Resume { .. } => Kind::Resume,
        }
    }
}
