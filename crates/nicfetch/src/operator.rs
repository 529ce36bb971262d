//! Where a nicfetch listens for its operator, and what the operator shows there.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Deserializer};

use mounting::confinement::Asks;

/// The default address.
pub(crate) const USUAL: &str = "unix:/run/nicfetch/admin.sock";
/// Fewer characters could be guessed.
const TOKEN_MIN: usize = 16;
/// What fits well into a header.
const TOKEN_MAX: usize = 1024;

/// Where a nicfetch listens for its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A socket in the file system: the kernel reports the user of the peer.
    Unix(PathBuf),
    /// An address on loopback and a port: clients send a token.
    Tcp(SocketAddr),
}

impl AdminAddress {
    /// Returns the token that clients must send; `None` where the kernel reports the peer.
    ///
    /// # Errors
    /// If the address can be reached from elsewhere, or it has no token and needs one, or the other
    /// way round.
    pub(crate) fn guarded_by(&self, token_file: Option<&Path>) -> anyhow::Result<Option<String>> {
        match (self, token_file) {
            (Self::Unix(_), None) => Ok(None),
            (Self::Unix(_), Some(_)) => bail!(
                "a token is for ADDRESS:PORT; at {self} the kernel identifies the client: omit the token"
            ),
            (Self::Tcp(address), _) if !address.ip().is_loopback() => bail!(
                "the admin address {self} is not on loopback: the token would cross the network unencrypted"
            ),
            (Self::Tcp(_), None) => bail!(
                "every user of this machine can reach {self}: name a file with a token \
                 (`token_file`), or a socket, unix:PATH, in the place of the port (`admin`)"
            ),
            (Self::Tcp(_), Some(path)) => read_token(path).map(Some),
        }
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        match text.parse() {
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => Err(format!("{text:?} is neither unix:PATH nor ADDRESS:PORT")),
        }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl Default for AdminAddress {
    fn default() -> Self {
        Self::Unix(USUAL.trim_start_matches("unix:").into())
    }
}

impl<'de> Deserialize<'de> for AdminAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The nicfetch that is addressed.
#[derive(Clone, Debug, Default)]
pub struct AdminSettings {
    /// Where it listens for its operator, if it is not the usual place.
    pub admin: Option<AdminAddress>,
    /// The file with the token for a port.
    pub token_file: Option<PathBuf>,
}

impl AdminSettings {
    /// Returns its address.
    pub(crate) fn address(&self) -> AdminAddress {
        self.admin.clone().unwrap_or_default()
    }

    /// Returns the network access that a client needs.
    #[must_use]
    pub fn asks(&self) -> Asks {
        match self.address() {
            AdminAddress::Unix(_) => Asks::Nobody,
            AdminAddress::Tcp(address) => Asks::Port(address.port()),
        }
    }

    /// Returns the token that a client sends, if one is needed.
    ///
    /// # Errors
    /// If its file cannot be used.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        self.token_file.as_deref().map(read_token).transpose()
    }
}

/// Reads a token: the only line of a file that is its owner's alone.
///
/// # Errors
/// If others may read it, or what it has is no token.
fn read_token(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("reading the token in {shown}"))?;
    ensure!(
        metadata.permissions().mode() & 0o077 == 0,
        "{shown} has a secret and may be read by others: chmod 600 {shown}"
    );
    let length = metadata.len();
    let fits = length <= TOKEN_MAX as u64 + 1;
    let text = match fits {
        true => {
            fs::read_to_string(path).with_context(|| format!("reading the token in {shown}"))?
        }
        false => String::new(),
    };
    let token = text.strip_suffix('\n').unwrap_or(&text);
    ensure!(
        token.len() >= TOKEN_MIN && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "{shown} has no token: write {TOKEN_MIN} to {TOKEN_MAX} letters, digits or signs into it, \
         as openssl rand -hex 32 makes them"
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_print() {
        for text in [USUAL, "127.0.0.1:5051", "[::1]:1"] {
            assert_eq!(text.parse::<AdminAddress>().unwrap().to_string(), text);
        }
        assert_eq!(AdminAddress::default().to_string(), USUAL);
        for text in ["", "unix:", "5051", "nic:5051", "/run/a"] {
            assert!(text.parse::<AdminAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_is_its_owners_alone_and_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read_token(&path).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(
            read("0123456789abcdef\n", 0o600).unwrap(),
            "0123456789abcdef"
        );
        assert!(
            read("0123456789abcdef\n", 0o640)
                .unwrap_err()
                .contains("chmod 600")
        );
        let long = "x".repeat(TOKEN_MAX + 2);
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789 abcdef",
            "0123456789abcdef\n\n",
            &long,
        ] {
            assert!(
                read(wrong, 0o600).unwrap_err().contains("openssl"),
                "{wrong}"
            );
        }
        assert_eq!(read(&long[2..], 0o400).unwrap().len(), TOKEN_MAX);
        assert!(read_token(&dir.path().join("absent")).is_err());
        let guarded = |address: &str, file: Option<&Path>| {
            let address: AdminAddress = address.parse().unwrap();
            address.guarded_by(file).map_err(|error| error.to_string())
        };
        assert_eq!(guarded(USUAL, None), Ok(None));
        assert!(guarded("127.0.0.1:1", Some(&path)).unwrap().is_some());
        assert!(
            guarded("127.0.0.1:1", None)
                .unwrap_err()
                .contains("`token_file`")
        );
        assert!(
            guarded("10.0.0.1:1", Some(&path))
                .unwrap_err()
                .contains("loopback")
        );
        assert!(guarded(USUAL, Some(&path)).unwrap_err().contains("kernel"));
    }
}
