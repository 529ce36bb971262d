//! Messages of a service to its manager: assignments, one a line, as `sd_notify(3)` lists them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The longest name of a descriptor.
pub const MAX_NAME_BYTES: usize = 255;

/// Returns whether a descriptor may have this name: ASCII without control characters and colons.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b':';
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

/// One message. Unknown assignments are ignored, as the protocol requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `READY=1`: the start is over.
    pub ready: bool,
    /// `STOPPING=1`: the end has begun.
    pub stopping: bool,
    /// `STATUS=`: one line for people.
    pub status: Option<String>,
    /// `FDSTORE=1`: keep the descriptors that come with this.
    pub store: bool,
    /// `FDPOLL=0`: keep them even if their other end is closed.
    pub unpolled: bool,
    /// `FDSTOREREMOVE=1`: forget the descriptors of that name.
    pub remove: bool,
    /// `FDNAME=`.
    pub name: Option<String>,
    /// `BARRIER=1`: close the descriptor that comes with this.
    pub barrier: bool,
    /// `X_YOLOFS_PROGRAM=`: what to start the next time.
    pub program: Option<PathBuf>,
}

impl Message {
    /// Parses a message. Unknown or malformed parts are ignored.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut message = Self::default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Some(equals) = line.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            let (key, value) = (&line[..equals], &line[equals + 1..]);
            let text = || std::str::from_utf8(value).ok().map(str::to_owned);
            match (key, value) {
                (b"READY", b"1") => message.ready = true,
                (b"STOPPING", b"1") => message.stopping = true,
                (b"STATUS", _) => message.status = text(),
                (b"FDSTORE", b"1") => message.store = true,
                (b"FDPOLL", b"0") => message.unpolled = true,
                (b"FDSTOREREMOVE", b"1") => message.remove = true,
                (b"FDNAME", _) => message.name = text().filter(|name| is_name(name)),
                (b"BARRIER", b"1") => message.barrier = true,
                (b"X_YOLOFS_PROGRAM", [b'/', ..]) => {
                    message.program = Some(OsStr::from_bytes(value).into());
                }
                _ => (),
            }
        }
        // A barrier stands alone: with anything else, nothing of it counts.
        let alone = Self {
            barrier: true,
            ..Self::default()
        };
        if message.barrier && message != alone {
            return Self::default();
        }
        message
    }

    /// Writes it as it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut assign = |key: &str, value: &[u8]| {
            lines.extend_from_slice(key.as_bytes());
            lines.push(b'=');
            // A newline would begin another assignment.
            lines.extend(
                value
                    .iter()
                    .map(|byte| if *byte == b'\n' { b' ' } else { *byte }),
            );
            lines.push(b'\n');
        };
        let flags = [
            (self.ready, "READY", b"1"),
            (self.stopping, "STOPPING", b"1"),
            (self.store, "FDSTORE", b"1"),
            (self.unpolled, "FDPOLL", b"0"),
            (self.remove, "FDSTOREREMOVE", b"1"),
            (self.barrier, "BARRIER", b"1"),
        ];
        for (_, key, value) in flags.into_iter().filter(|(set, ..)| *set) {
            assign(key, value);
        }
        if let Some(name) = &self.name {
            assign("FDNAME", name.as_bytes());
        }
        if let Some(program) = &self.program {
            assign("X_YOLOFS_PROGRAM", program.as_os_str().as_bytes());
        }
        if let Some(status) = &self.status {
            assign("STATUS", status.as_bytes());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines are those of sd_notify(3).
    #[test]
    fn the_wording_is_systemds() {
        let store = Message {
            store: true,
            unpolled: true,
            name: Some("device-1".to_owned()),
            ..Message::default()
        };
        assert_eq!(store.encode(), b"FDSTORE=1\nFDPOLL=0\nFDNAME=device-1\n");
        let remove = Message {
            remove: true,
            name: Some("device-1".to_owned()),
            ..Message::default()
        };
        assert_eq!(remove.encode(), b"FDSTOREREMOVE=1\nFDNAME=device-1\n");
        let ready = Message {
            ready: true,
            status: Some("3 mounts".to_owned()),
            ..Message::default()
        };
        assert_eq!(ready.encode(), b"READY=1\nSTATUS=3 mounts\n");
        for message in [store, remove, ready] {
            assert_eq!(Message::parse(&message.encode()), message);
        }
    }

    #[test]
    fn a_trailing_newline_is_optional_and_the_unknown_is_ignored() {
        let message = Message::parse(b"MAINPID=1\nnonsense\nREADY=1\nWATCHDOG=1\nSTOPPING=1");
        let expected = Message {
            ready: true,
            stopping: true,
            ..Message::default()
        };
        assert_eq!(message, expected);
        for bytes in [
            &b""[..],
            b"\n\n",
            b"=",
            b"READY=0",
            b"\xff\xfe=\xff",
            b"STATUS=\xff",
        ] {
            assert_eq!(Message::parse(bytes), Message::default(), "{bytes:?}");
        }
    }

    #[test]
    fn a_barrier_stands_alone() {
        assert!(Message::parse(b"BARRIER=1").barrier);
        assert_eq!(Message::parse(b"BARRIER=1\nREADY=1"), Message::default());
    }

    #[test]
    fn names_are_those_that_a_list_with_colons_can_carry() {
        assert!(is_name("source-0123456789abcdef"));
        assert!(is_name(&"x".repeat(255)));
        for name in ["", "a:b", "a\nb", "\u{e9}", &"x".repeat(256)] {
            assert!(!is_name(name), "{name}");
            let line = format!("FDNAME={name}");
            assert_eq!(
                Message::parse(line.as_bytes()).name.as_deref(),
                match name {
                    // What follows the newline is another line.
                    "a\nb" => Some("a"),
                    _ => None,
                }
            );
        }
    }

    #[test]
    fn a_value_never_becomes_a_second_assignment() {
        let message = Message {
            status: Some("one\nSTOPPING=1".to_owned()),
            ..Message::default()
        };
        assert!(!Message::parse(&message.encode()).stopping);
    }
}
