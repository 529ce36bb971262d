//! Authentication of clients, and which sources each of them may open.

use std::collections::{BTreeMap, BTreeSet};

use blocks::ContentId;

use crate::wire::{Direction, Nonce, Proof};
use chunks::NAME_MAX;

/// The shared secret of a virtual machine and the service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Returns the key of these bytes, which must be random.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the key that is written as 64 hexadecimal digits, or `None`.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        text.parse().ok().map(|ContentId(bytes)| Self(bytes))
    }

    /// Returns the proof to the peer that this side has the key.
    pub(crate) fn proof(&self, by: Direction, transcript: &Transcript<'_>) -> Proof {
        let who = match by {
            Direction::ToService => "nicfetch client",
            Direction::ToClient => "nicfetch server",
        };
        self.hash(who, transcript)
    }

    /// Returns the key of the seals in one direction.
    pub(crate) fn seal(&self, direction: Direction, transcript: &Transcript<'_>) -> [u8; 32] {
        let what = match direction {
            Direction::ToService => "nicfetch seal c",
            Direction::ToClient => "nicfetch seal s",
        };
        self.hash(what, transcript)
    }

    fn hash(&self, what: &str, transcript: &Transcript<'_>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // All but the name, which is last, have a fixed length.
        hasher.update(what.as_bytes());
        hasher.update(transcript.client);
        hasher.update(transcript.service);
        hasher.update(transcript.name);
        *hasher.finalize().as_bytes()
    }
}

/// The transcript of a handshake: nonces of both sides, and the client's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transcript<'a> {
    pub(crate) client: &'a Nonce,
    pub(crate) service: &'a Nonce,
    pub(crate) name: &'a [u8],
}

/// Compares two proofs in constant time.
pub(crate) fn same(one: &Proof, other: &Proof) -> bool {
    // The comparison of BLAKE3's hashes takes constant time.
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

/// Returns random bytes from the kernel.
pub(crate) fn nonce() -> std::io::Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(std::io::Error::other)?;
    Ok(nonce)
}

/// The sources that a virtual machine may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Every source.
    All,
    /// The sources with these names.
    Named(BTreeSet<Vec<u8>>),
}

impl Sources {
    /// Returns whether a source may be opened.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(name),
        }
    }
}

/// A virtual machine in the access list.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its key; without one it needs a certificate.
    pub key: Option<Key>,
    /// What it may open.
    pub sources: Sources,
}

/// The access list: which machines may connect, and which sources each may open.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tenants: BTreeMap<Vec<u8>, Tenant>,
    open: bool,
}

/// The first invalid line of an access list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {rule}; a line is NAME KEY SOURCE..., the key 64 hexadecimal digits or -")]
pub struct AccessError {
    /// The line, from 1.
    pub line: usize,
    /// The rule that it violates.
    pub rule: &'static str,
}

impl Access {
    /// Returns access for all machines to all sources: names are not authenticated.
    #[must_use]
    pub fn open() -> Self {
        Self {
            tenants: BTreeMap::new(),
            open: true,
        }
    }

    /// Parses an access list: in each line the name of a machine, its key or `-`, and the sources
    /// that it may open, `*` for all. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// If a line is invalid.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let mut tenants = BTreeMap::new();
        for (line, words) in (1..).zip(text.lines()) {
            let mut words = words.split_ascii_whitespace();
            let Some(name) = words.next().filter(|name| !name.starts_with('#')) else {
                continue;
            };
            let fault = |rule| AccessError { line, rule };
            let key = match words.next() {
                None => return Err(fault("there is no key")),
                Some("-") => None,
                Some(text) => Some(Key::from_hex(text).ok_or(fault("this is no key"))?),
            };
            let names: BTreeSet<_> = words.map(|name| name.as_bytes().to_vec()).collect();
            let sources = if names.contains(&b"*"[..]) {
                Sources::All
            } else {
                Sources::Named(names)
            };
            if name.len() > NAME_MAX {
                return Err(fault("the name is too long"));
            }
            let tenant = Tenant { key, sources };
            if tenants.insert(name.as_bytes().to_vec(), tenant).is_some() {
                return Err(fault("the name is there twice"));
            }
        }
        let open = false;
        Ok(Self { tenants, open })
    }

    /// Returns whether names are accepted without authentication.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open
    }

    /// Returns a virtual machine of the list.
    #[must_use]
    pub fn tenant(&self, name: &[u8]) -> Option<&Tenant> {
        self.tenants.get(name)
    }

    /// Returns the sources that an authenticated machine may open.
    #[must_use]
    pub fn sources(&self, name: &[u8]) -> Option<Sources> {
        match self.tenants.get(name) {
            Some(tenant) => Some(tenant.sources.clone()),
            None if self.open => Some(Sources::All),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn a_list_says_who_may_open_what() {
        let list = format!("# ours\n\nvm1 {KEY} python debian\nvm2 - *\n");
        let access = Access::parse(&list).unwrap();
        let one = access.tenant(b"vm1").unwrap();
        assert_eq!(one.key, Key::from_hex(KEY));
        assert!(one.sources.has(b"python") && !one.sources.has(b"nginx"));
        assert_eq!(access.sources(b"vm2"), Some(Sources::All));
        assert!(access.tenant(b"vm2").unwrap().key.is_none());
        assert_eq!(access.sources(b"vm3"), None);
        assert_eq!(Access::open().sources(b"vm3"), Some(Sources::All));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let line = |text: &str| Access::parse(text).unwrap_err().line;
        assert_eq!(line("vm1"), 1);
        assert_eq!(line("vm1 - *\nvm2 00 *"), 2);
        assert_eq!(line("vm1 - *\n\nvm1 - a"), 3);
    }

    #[test]
    fn proofs_differ_by_side_key_nonce_and_name() {
        let (client, service) = ([1; 32], [2; 32]);
        let transcript = Transcript {
            client: &client,
            service: &service,
            name: b"vm",
        };
        let key = Key::new([7; 32]);
        let proof = key.proof(Direction::ToService, &transcript);
        let others = [
            key.proof(Direction::ToClient, &transcript),
            key.seal(Direction::ToService, &transcript),
            Key::new([8; 32]).proof(Direction::ToService, &transcript),
            key.proof(
                Direction::ToService,
                &Transcript {
                    client: &service,
                    ..transcript
                },
            ),
            key.proof(
                Direction::ToService,
                &Transcript {
                    service: &client,
                    ..transcript
                },
            ),
            key.proof(
                Direction::ToService,
                &Transcript {
                    name: b"v",
                    ..transcript
                },
            ),
        ];
        for other in others {
            assert!(!same(&proof, &other));
        }
        assert!(same(&proof, &key.proof(Direction::ToService, &transcript)));
    }
}
