//! What can go wrong between a plugin and its runtime.

use std::io;
use std::path::PathBuf;

/// Why a session could not begin, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NriError {
    /// No process listens at the socket.
    #[error("connecting to {}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the runtime broke while {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The runtime closed the connection.
    #[error("the runtime closed the connection while {doing}")]
    Closed {
        /// The operation.
        doing: &'static str,
    },
    /// The runtime did not respond in time.
    #[error("the runtime did not answer the registration within {secs} s")]
    NoAnswer {
        /// The seconds.
        secs: u64,
    },
    /// A frame or a message is longer than any may be.
    #[error("{what} of {bytes} bytes is longer than {max}")]
    TooLong {
        /// The item that is too long.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// The longest.
        max: u64,
    },
    /// A message cannot be decoded.
    #[error("{what} cannot be decoded")]
    Message {
        /// The message.
        what: &'static str,
        /// The cause.
        source: prost::DecodeError,
    },
    /// The runtime refused the plugin.
    #[error("the runtime refused the plugin: {why}")]
    Refused {
        /// Its message.
        why: String,
    },
}
