//! The states in a status: of a mount, of how it is served, and of its prewarm.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::serve_mode::ServeMode;

/// Defines an enum of states, each with the name that is written, and names of earlier releases that are also read.
/// A name that this release does not know, as of a newer one, is read as `Unknown`.
macro_rules! words {
    (
        $(#[$outer:meta])*
        pub enum $name:ident {
            $($(#[$inner:meta])* $word:ident = $text:literal $(| $old:literal)*,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "&'static str")]
        pub enum $name {
            $($(#[$inner])* $word,)*
            /// Not reported, or a name of another release.
            #[default]
            Unknown,
        }

        impl $name {
            /// All states but `Unknown`.
            pub const ALL: &[Self] = &[$(Self::$word),*];

            /// Returns the name, as it is shown and as it is in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($text $(| $old)* => Self::$word,)*
                    _ => Self::Unknown,
                }
            }
        }

        impl From<$name> for &'static str {
            fn from(word: $name) -> Self {
                word.name()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

words! {
    /// The state of a mount. Each state has one name, whatever process serves the mount.
    pub enum MountState {
        /// The node makes it; its first worker does not serve yet.
        Starting = "starting",
        /// It is served.
        Serving = "serving",
        /// It is unmounted, and still served to its remaining users.
        Leaving = "leaving" | "detached",
        /// Its worker died, and another one takes over.
        Restarting = "restarting",
        /// It cannot be served; an error gives the reason.
        Failed = "failed",
        /// Its daemon has ended.
        Dead = "dead",
        /// Its daemon, or the node, exists and does not respond as it should.
        NotAnswering = "not answering" | "confused",
    }
}

words! {
    /// How a mount is served, if that is known.
    pub enum MountMode {
        /// As [`ServeMode::Lower`].
        Lower = "lower",
        /// As [`ServeMode::Disk`].
        Disk = "disk",
    }
}

words! {
    /// The state of the prewarm of a mount.
    pub enum PrewarmState {
        /// No prewarm was requested.
        Off = "off",
        /// It has not begun.
        Waiting = "waiting",
        /// It runs.
        Running = "running",
        /// All that could be is in the page cache.
        Done = "done",
        /// It was stopped before it was complete.
        Cancelled = "cancelled",
        /// It failed; the log says why.
        Failed = "failed",
    }
}

impl From<ServeMode> for MountMode {
    fn from(mode: ServeMode) -> Self {
        match mode {
            ServeMode::Lower => Self::Lower,
            ServeMode::Disk => Self::Disk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(word: &str) -> T {
        serde_json::from_value(word.into()).unwrap()
    }

    #[test]
    fn states_are_written_and_read_as_their_words() {
        let words = [
            "starting",
            "serving",
            "leaving",
            "restarting",
            "failed",
            "dead",
            "not answering",
        ];
        assert_eq!(words.map(read::<MountState>), *MountState::ALL);
        for state in MountState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
        for mode in [ServeMode::Lower, ServeMode::Disk] {
            assert_eq!(MountMode::from(mode).name(), mode.name());
            assert_eq!(read::<MountMode>(mode.name()), mode.into());
        }
        let words = ["off", "waiting", "running", "done", "cancelled", "failed"];
        assert_eq!(words.map(read::<PrewarmState>), *PrewarmState::ALL);
        assert_eq!(format!("{:>5}|", PrewarmState::Off), "  off|");
    }

    #[test]
    fn words_of_other_releases_are_read() {
        assert_eq!(read::<MountState>("detached"), MountState::Leaving);
        assert_eq!(read::<MountState>("confused"), MountState::NotAnswering);
        assert_eq!(read::<MountState>("thawing"), MountState::Unknown);
        assert_eq!(read::<MountMode>("unknown"), MountMode::Unknown);
        assert_eq!(read::<PrewarmState>(""), PrewarmState::Unknown);
    }
}
