//! ttrpc: a header of ten bytes, and a protobuf message.
//!
//! The header is the length of the message and the number of the call, each 4 bytes, big-endian, then its
//! kind and its flags, each a byte. Only calls with one request and one response are made here.

#![expect(clippy::big_endian_bytes, reason = "the protocol is big-endian")]

use prost::Message as _;

use crate::error::NriError;

/// Bytes of a header.
pub(crate) const HEADER: usize = 10;
/// The longest message that either side accepts.
pub(crate) const LENGTH_MAX: usize = 4 << 20;

/// The side that asked sends nothing more.
const REMOTE_CLOSED: u8 = 1;

/// What code a call gets whose method is not known.
const UNIMPLEMENTED: i32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Response,
    /// Parts of streams, and unknown kinds.
    Other(u8),
}

/// A message as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The number of the call.
    pub(crate) stream: u32,
    pub(crate) kind: Kind,
    pub(crate) payload: Vec<u8>,
}

/// A request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub(crate) timeout_nano: i64,
}

/// Its response.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
}

/// Why a call failed.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

impl Message {
    /// Decodes the message at the beginning of some bytes, and returns its length; `None` if it is
    /// incomplete.
    ///
    /// # Errors
    /// If it is longer than the limit.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, NriError> {
        let Some((header, rest)) = bytes.split_at_checked(HEADER) else {
            return Ok(None);
        };
        let number = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&header[at..at + 4]);
            u32::from_be_bytes(number)
        };
        let length = match usize::try_from(number(0)) {
            Ok(length) if length <= LENGTH_MAX => length,
            _ => {
                return Err(NriError::TooLong {
                    what: "a message",
                    bytes: number(0).into(),
                    max: LENGTH_MAX as u64,
                });
            }
        };
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let message = Self {
            stream: number(4),
            kind: match header[8] {
                1 => Kind::Request,
                2 => Kind::Response,
                other => Kind::Other(other),
            },
            payload: payload.to_vec(),
        };
        Ok(Some((message, HEADER + length)))
    }

    /// Encodes it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let (kind, flags) = match self.kind {
            Kind::Request => (1, REMOTE_CLOSED),
            Kind::Response => (2, 0),
            Kind::Other(kind) => (kind, 0),
        };
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Returns the response to a call.
    pub(crate) fn response(stream: u32, response: &Response) -> Self {
        Self {
            stream,
            kind: Kind::Response,
            payload: response.encode_to_vec(),
        }
    }
}

impl Response {
    /// The response of a call that is done.
    pub(crate) fn done(payload: &impl prost::Message) -> Self {
        Self {
            status: None,
            payload: payload.encode_to_vec(),
        }
    }

    /// The response to a method that is not known.
    pub(crate) fn unknown(method: &str) -> Self {
        Self {
            status: Some(Status {
                code: UNIMPLEMENTED,
                message: format!("{method} is not implemented"),
            }),
            payload: Vec::new(),
        }
    }
}
