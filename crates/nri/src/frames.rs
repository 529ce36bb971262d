//! Frames: which of the connections in a stream some bytes belong to.
//!
//! A frame is the number of its connection and its length, each 4 bytes, big-endian, and the bytes. Where
//! frames are cut has no meaning: a message may come in several.

#![expect(clippy::big_endian_bytes, reason = "the protocol is big-endian")]

use std::collections::BTreeMap;

use crate::error::NriError;
use crate::ttrpc::{self, Message};

/// The connection on which the runtime sends requests to the plugin.
pub(crate) const PLUGIN: u32 = 1;
/// The connection on which the plugin sends requests to the runtime.
pub(crate) const RUNTIME: u32 = 2;

const HEADER: usize = 8;
/// The longest frame: that of the longest message.
const FRAME_MAX: usize = ttrpc::HEADER + ttrpc::LENGTH_MAX;

/// Puts messages together from the bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Received bytes of an incomplete frame.
    pending: Vec<u8>,
    /// What came of each connection and is no whole message yet: at most one message and one frame.
    streams: BTreeMap<u32, Vec<u8>>,
}

impl Frames {
    /// Adds received bytes.
    ///
    /// # Errors
    /// If a frame or a message is longer than the limit.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), NriError> {
        self.pending.extend_from_slice(bytes);
        while let Some((connection, length)) = self.header()? {
            let whole = HEADER + length;
            if self.pending.len() < whole {
                break;
            }
            // Others are of no plugin that we know.
            if connection == PLUGIN || connection == RUNTIME {
                let stream = self.streams.entry(connection).or_default();
                stream.extend_from_slice(&self.pending[HEADER..whole]);
            }
            self.pending.drain(..whole);
        }
        Ok(())
    }

    fn header(&self) -> Result<Option<(u32, usize)>, NriError> {
        let number = |at: usize| {
            let bytes = self.pending.get(at..at + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        let Some((connection, length)) = number(0).zip(number(4)) else {
            return Ok(None);
        };
        match usize::try_from(length) {
            Ok(length) if length <= FRAME_MAX => Ok(Some((connection, length))),
            _ => Err(NriError::TooLong {
                what: "a frame",
                bytes: length.into(),
                max: FRAME_MAX as u64,
            }),
        }
    }

    /// Removes and returns the next message, with its connection.
    ///
    /// # Errors
    /// If it is longer than the limit.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Message)>, NriError> {
        for (connection, stream) in &mut self.streams {
            if let Some((message, length)) = Message::read(stream)? {
                stream.drain(..length);
                return Ok(Some((*connection, message)));
            }
        }
        Ok(None)
    }
}

/// Returns the frame of some bytes of a connection.
pub(crate) fn frame(connection: u32, message: &Message) -> Vec<u8> {
    let bytes = message.bytes();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEADER + bytes.len());
    frame.extend_from_slice(&connection.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ttrpc::Kind;

    fn message(stream: u32, payload: &[u8]) -> Message {
        Message {
            stream,
            kind: Kind::Request,
            payload: payload.to_vec(),
        }
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (long, short) = (message(3, &[7; 10_000]), message(5, b""));
        let mut bytes = frame(PLUGIN, &long);
        bytes.extend(frame(9, &message(1, b"of nobody")));
        bytes.extend(frame(RUNTIME, &short));
        for step in [1, 7, 4096, bytes.len()] {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for part in bytes.chunks(step) {
                frames.push(part).unwrap();
                while let Some(one) = frames.next().unwrap() {
                    found.push(one);
                }
            }
            assert_eq!(found, [(PLUGIN, long.clone()), (RUNTIME, short.clone())]);
        }
    }

    #[test]
    fn a_message_may_come_in_several_frames() {
        let bytes = message(1, b"hello").bytes();
        let mut frames = Frames::default();
        for part in bytes.chunks(4) {
            let mut frame = PLUGIN.to_be_bytes().to_vec();
            frame.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
            frame.extend(part);
            frames.push(&frame).unwrap();
        }
        assert_eq!(frames.next().unwrap(), Some((PLUGIN, message(1, b"hello"))));
        assert_eq!(frames.next().unwrap(), None);
    }

    #[test]
    fn nothing_is_kept_for_a_length_that_is_too_large() {
        let mut frames = Frames::default();
        let error = frames.push(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(error, Err(NriError::TooLong { .. })), "{error:?}");
        let mut frames = Frames::default();
        // A frame that may be, with a message that may not.
        let mut bytes = vec![0, 0, 0, 1, 0, 0, 0, 10];
        bytes.extend([0x7f, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
        frames.push(&bytes).unwrap();
        let error = frames.next();
        assert!(matches!(error, Err(NriError::TooLong { .. })), "{error:?}");
    }
}
