//! The words that a status has: in which state a mount is, how it is served, and where its prewarm stands.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::serve_mode::ServeMode;

/// Makes an enum of words: written as the word, and read from it or from one that earlier releases wrote. A
/// word that this release does not know, as a newer one may have it, is read as `Unknown`.
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
            /// Nobody told, or in a word of another release.
            #[default]
            Unknown,
        }

        impl $name {
            /// All of them but `Unknown`.
            pub const ALL: &[Self] = &[$(Self::$word),*];

            /// Returns the word, as it is shown and as it is in JSON.
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
    /// In which state a mount is. Each state has one name, whoever serves the mount.
    pub enum MountState {
        /// The node makes it, and its first worker does not serve yet.
        Starting = "starting",
        /// Somebody serves it.
        Serving = "serving",
        /// It is unmounted, and served for those who still use it.
        Leaving = "leaving" | "detached",
        /// Its worker died, and another one takes over.
        Restarting = "restarting",
        /// It cannot be served; an error says why.
        Failed = "failed",
        /// Its daemon is gone.
        Dead = "dead",
        /// Its daemon, or the node, is there and does not answer as it should.
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
    /// Where the prewarm of a mount stands.
    pub enum PrewarmState {
        /// There was none.
        Off = "off",
        /// It is to come.
        Waiting = "waiting",
        /// It runs.
        Running = "running",
        /// All that could be is in the page cache.
        Done = "done",
        /// It was ended before its time.
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
