//! A source that was opened by name: what all connections open again when they are made again.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock, Weak};

use blocks::ContentId;
use chunks::{Codec, Stored};
use fetch::{StreamId, Via};

use crate::wire::Status;

/// The response of a service about a chunk.
#[derive(Debug)]
pub(super) enum Reply {
    /// The chunk, not verified.
    Here(Stored),
    /// The service does not have it.
    Absent,
    /// The service is too busy.
    Busy,
    /// The service could not read it, or answered something else.
    Failed,
}

impl Reply {
    /// Converts a service's response for a chunk.
    pub(super) fn of(status: Status, codec: u8, raw_len: u32, bytes: Vec<u8>) -> Self {
        match (status, Codec::from_number(codec)) {
            (Status::Here, Some(codec)) => Self::Here(Stored {
                codec,
                raw_len,
                bytes,
            }),
            (Status::Busy | Status::Late, _) => Self::Busy,
            (Status::Absent, _) => Self::Absent,
            (Status::Here | Status::Failed, _) => Self::Failed,
        }
    }
}

/// Receives the chunks of one source, and the state of its connections.
pub(super) trait Receiver: Debug + Send + Sync {
    /// A response came on the connection of this number.
    fn came(&self, connection: usize, via: Via, chunk: u32, reply: Reply);

    /// A stream is over: promised chunks that have not arrived will not arrive.
    fn stream_ended(&self, stream: StreamId);

    /// The connection of this number was made or lost.
    fn link_changed(&self, connection: usize);

    /// The connection of this number was made, but the source could not be opened on it.
    fn refused(&self, connection: usize);

    /// Something came on the connection of this number after a silence.
    fn progressed(&self, connection: usize);
}

/// A source that was opened by name.
#[derive(Debug)]
pub(super) struct RegisteredSource {
    /// Its number among those of the client.
    pub(super) number: u64,
    pub(super) name: Vec<u8>,
    /// The only index that is accepted under this name; unset until the service has sent it.
    id: OnceLock<ContentId>,
    receiver: OnceLock<Weak<dyn Receiver>>,
}

impl RegisteredSource {
    pub(super) fn new(number: u64, name: &[u8]) -> Self {
        Self {
            number,
            name: name.to_vec(),
            id: OnceLock::new(),
            receiver: OnceLock::new(),
        }
    }

    /// Returns the id of its index, if it is known.
    pub(super) fn id(&self) -> Option<&ContentId> {
        self.id.get()
    }

    /// Records the id of its index; only the first call has an effect.
    pub(super) fn name_index(&self, id: ContentId) {
        let _first = self.id.set(id);
    }

    /// Returns the receiver, if there is one.
    pub(super) fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        self.receiver.get()?.upgrade()
    }

    /// Sets the receiver; only the first call has an effect.
    pub(super) fn tell(&self, receiver: Weak<dyn Receiver>) {
        let _first = self.receiver.set(receiver);
    }

    /// Returns whether all its readers are gone.
    pub(super) fn is_over(&self) -> bool {
        self.receiver
            .get()
            .is_some_and(|receiver| receiver.strong_count() == 0)
    }
}
