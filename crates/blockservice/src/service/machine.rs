//! The machines that a service serves: the identity of each, and the bytes that it has requested.
//!
//! Limits apply to the authenticated identity of a machine. A name that is not authenticated
//! (`--blocks-open`) does not count: a client that uses a hundred names is one machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::memory::Memory;
use serving::rate::RateLimiter;
use serving::transport::PeerAddress;

/// What a machine is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Identity {
    /// The name that its key or its certificate proves.
    Proved(Vec<u8>),
    /// Where it comes from: its name is only believed.
    Address(IpAddr),
    /// The number that a host gives to a virtual machine.
    Context(u32),
    /// The user of its process, as reported by the kernel.
    User(u32),
    /// The name that it sends, where the link identifies no machine: at a socket in the file system
    /// root, and the user that the service runs as, may connect for many machines.
    Named(Vec<u8>),
}

/// Whether a name was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A key or a certificate shows that it is right.
    Proved,
    /// The other side's own claim.
    Believed,
}

impl Identity {
    /// Returns the machine that sends `name` over a link.
    pub(crate) fn of(name: &[u8], is: Name, link: &PeerAddress) -> Self {
        match (is, link) {
            (Name::Proved, _) => Self::Proved(name.to_vec()),
            (Name::Believed, PeerAddress::Address(address)) => {
                Self::Address(address.to_canonical())
            }
            (Name::Believed, PeerAddress::Context(cid)) => Self::Context(*cid),
            (Name::Believed, PeerAddress::User(user)) if !speaks_for_many(*user) => {
                Self::User(*user)
            }
            (Name::Believed, PeerAddress::User(_) | PeerAddress::Unknown) => {
                Self::Named(name.to_vec())
            }
        }
    }

    /// Returns a number for it that is the same after a restart, and not 0.
    pub(crate) fn tag(&self) -> u64 {
        let (kind, bytes) = match self {
            Self::Proved(name) => (b'p', name.clone()),
            Self::Address(address) => (b'a', address.to_string().into_bytes()),
            Self::Context(cid) => (b'c', cid.to_le_bytes().to_vec()),
            Self::User(user) => (b'u', user.to_le_bytes().to_vec()),
            Self::Named(name) => (b'n', name.clone()),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"nicfetch machine").update(&[kind]);
        let hash = hasher.update(&bytes).finalize();
        let tag = hash.as_bytes().first_chunk();
        tag.map_or(1, |tag| u64::from_le_bytes(*tag)).max(1)
    }
}

fn speaks_for_many(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// The state of a machine, over all its connections.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) identity: Identity,
    /// Raw bytes that were requested and not sent yet.
    asked: AtomicU64,
    /// The budget of all machines.
    memory: Arc<Memory>,
    /// The limit of its rate, if there is one.
    pub(crate) pace: Option<Arc<RateLimiter>>,
}

impl Vm {
    pub(super) fn new(
        identity: Identity,
        memory: &Arc<Memory>,
        pace: Option<Arc<RateLimiter>>,
    ) -> Self {
        Self {
            identity,
            asked: AtomicU64::new(0),
            memory: Arc::clone(memory),
            pace,
        }
    }

    /// Takes `bytes` of the window until the credit is dropped, or `None` if it is used up.
    pub(crate) fn credit(self: &Arc<Self>, bytes: u32, window: u32) -> Option<Credit> {
        let bytes = u64::from(bytes);
        if !self.memory.take(bytes) {
            return None;
        }
        let add = |asked: u64| (asked + bytes <= u64::from(window)).then_some(asked + bytes);
        if self.asked.fetch_update(Relaxed, Relaxed, add).is_err() {
            self.memory.give(bytes);
            return None;
        }
        Some(Credit {
            vm: Arc::clone(self),
            bytes,
        })
    }
}

/// A part of a window that is in use.
#[derive(Debug)]
pub(crate) struct Credit {
    vm: Arc<Vm>,
    bytes: u64,
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.vm.asked.fetch_sub(self.bytes, Relaxed);
        self.vm.memory.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_who_it_is_and_not_what_it_says() {
        let address = PeerAddress::Address([10, 0, 0, 1].into());
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let of = |name: &[u8], is, link: &PeerAddress| Identity::of(name, is, link);
        let one = of(b"a", Name::Believed, &address);
        assert_eq!(one, of(b"b", Name::Believed, &address));
        assert_eq!(one, of(b"b", Name::Believed, &PeerAddress::Address(mapped)));
        assert_ne!(one, of(b"a", Name::Proved, &address));
        let proved = of(b"a", Name::Proved, &PeerAddress::Unknown);
        assert_eq!(proved, of(b"a", Name::Proved, &address));
        let user = of(b"a", Name::Believed, &PeerAddress::User(65534));
        assert_eq!(user, of(b"b", Name::Believed, &PeerAddress::User(65534)));
        assert_ne!(user, of(b"a", Name::Believed, &PeerAddress::User(65533)));
        // Who may do what it likes with the socket speaks for others.
        let spoken = of(b"a", Name::Believed, &PeerAddress::User(0));
        assert_ne!(spoken, of(b"b", Name::Believed, &PeerAddress::User(0)));
        let context = of(b"a", Name::Believed, &PeerAddress::Context(3));
        assert_eq!(context, of(b"b", Name::Believed, &PeerAddress::Context(3)));
        let all = [one, proved, user, spoken, context];
        for (number, identity) in all.iter().enumerate() {
            assert_eq!(identity.tag(), all[number].clone().tag());
            let others = all.iter().filter(|other| other.tag() == identity.tag());
            assert_eq!(others.count(), 1, "{identity:?}");
        }
    }
}
