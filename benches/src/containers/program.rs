//! The programs of the image set, and how one talks to them.

use clap::ValueEnum;
use serde::Serialize;

/// One image of `scripts/images/set.sh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// A web server.
    Nginx,
    /// A store of keys in memory.
    Redis,
    /// A web application behind gunicorn.
    Python,
    /// A database.
    Postgres,
    /// A web application with Express.
    Node,
    /// A web application on the JVM.
    Java,
}

// What usual clients say first, so that a program does nothing that it did not when it was recorded.
const HTTP: &[u8] =
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nConnection: close\r\n\r\n";
const REDIS: &[u8] = b"*1\r\n$4\r\nPING\r\n";
/// Length, protocol 3.0, user and database, each ended by a zero byte.
const POSTGRES: &[u8] = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";

impl Program {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Nginx,
        Self::Redis,
        Self::Python,
        Self::Postgres,
        Self::Node,
        Self::Java,
    ];

    /// Returns the image's name.
    #[must_use]
    pub const fn image(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Redis => "redis",
            Self::Python => "python",
            Self::Postgres => "postgres",
            Self::Node => "node",
            Self::Java => "java",
        }
    }

    /// Returns the port it listens on.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Nginx => 80,
            Self::Redis => 6379,
            Self::Python => 8000,
            Self::Postgres => 5432,
            Self::Node => 3000,
            Self::Java => 8080,
        }
    }

    /// Returns when it is ready, as `bootimg record --until` has it.
    #[must_use]
    pub fn until(self) -> String {
        let port = self.port();
        match self {
            Self::Redis | Self::Postgres => format!("tcp:{port}"),
            Self::Nginx | Self::Python | Self::Node | Self::Java => {
                format!("http://127.0.0.1:{port}/")
            }
        }
    }

    /// Returns what a client says to it first.
    #[must_use]
    pub const fn question(self) -> &'static [u8] {
        match self {
            Self::Redis => REDIS,
            Self::Postgres => POSTGRES,
            Self::Nginx | Self::Python | Self::Node | Self::Java => HTTP,
        }
    }

    /// Returns whether this beginning of an answer is that of a program that is ready.
    #[must_use]
    pub fn is_ready(self, answer: &[u8]) -> bool {
        match self {
            Self::Redis => answer.starts_with(b"+PONG"),
            // An authentication message; while it starts up, it sends an error instead.
            Self::Postgres => answer.starts_with(b"R"),
            Self::Nginx | Self::Python | Self::Node | Self::Java => {
                answer.starts_with(b"HTTP/1.") && answer.get(8..12) == Some(b" 200")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_ready_programs() {
        assert!(Program::Nginx.is_ready(b"HTTP/1.1 200 OK\r\n"));
        assert!(!Program::Java.is_ready(b"HTTP/1.1 503 Unavailable\r\n"));
        assert!(!Program::Python.is_ready(b""));
        assert!(Program::Redis.is_ready(b"+PONG\r\n"));
        assert!(!Program::Redis.is_ready(b"-LOADING Redis is loading\r\n"));
        assert!(!Program::Postgres.is_ready(b"E\0\0\0\x50SFATAL"));
    }

    #[test]
    fn the_first_message_to_the_database_says_its_length() {
        let (length, rest) = (&POSTGRES[..4], &POSTGRES[4..]);
        assert_eq!(length[..3], [0, 0, 0]);
        assert_eq!(usize::from(length[3]), rest.len() + 4);
    }
}
