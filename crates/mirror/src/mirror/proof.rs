//! Confirmations by registries that a repository has some content: for which requester, and for how
//! long they are valid.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::reply::Source;
use super::scope::Scope;
use crate::blobs::{BlobDigest, BlobKey};
use crate::upstream::Asker;

/// For confirmations with the mirror's own credentials: the operator decided what may be pulled
/// with these.
const OWN_LIFETIMES: Lifetimes = Lifetimes {
    fresh: Duration::from_secs(3600),
    away: Duration::from_secs(30 * 24 * 3600),
};
/// For confirmations with a client's credentials, which may be revoked at any time.
pub(super) const CLIENT_LIFETIMES: Lifetimes = Lifetimes {
    fresh: Duration::from_secs(300),
    away: Duration::from_secs(3600),
};
/// The most confirmations with clients' credentials in memory: 6 MiB. Others are requested again.
const SAID_MAX: usize = 112 << 10;
/// For how long a confirmation is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetimes {
    fresh: Duration,
    /// While the registry does not respond.
    away: Duration,
}

/// The validity of a confirmation; more recent is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Freshness {
    /// There is none, or it has expired.
    None,
    /// Valid only while the registry does not respond.
    Stale,
    Fresh,
}

impl Lifetimes {
    pub(super) fn freshness(&self, age: Option<Duration>) -> Freshness {
        match age {
            Some(age) if age < self.fresh => Freshness::Fresh,
            Some(age) if age < self.away => Freshness::Stale,
            _ => Freshness::None,
        }
    }
}

/// Whose credentials a request to a registry uses. A confirmation for one is not valid for another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Principal {
    /// The mirror's own, for all clients that its operator lets in.
    Mirror,
    /// A client's: a hash of name and password.
    Client([u8; 32]),
}

impl Principal {
    pub(super) fn of(asker: &Asker) -> Self {
        let login = match asker {
            Asker::Mirror => return Self::Mirror,
            Asker::Client(login) => login.as_ref(),
        };
        let mut hasher = blake3::Hasher::new();
        if let Some(login) = login {
            hash_in(&mut hasher, &login.username);
            hash_in(&mut hasher, &login.password);
        }
        Self::Client(*hasher.finalize().as_bytes())
    }

    pub(super) const fn terms(self) -> Lifetimes {
        match self {
            Self::Mirror => OWN_LIFETIMES,
            Self::Client(_) => CLIENT_LIFETIMES,
        }
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The hash of a password is a secret, too.
        f.write_str(match self {
            Self::Mirror => "Mirror",
            Self::Client(_) => "Client",
        })
    }
}

/// Hashes a text with its length, so that different lists of texts have different hashes.
fn hash_in(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// The key of a confirmation: a hash of the requester, the repository, and the digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProofKey(pub(super) [u8; 32]);

impl ProofKey {
    /// Returns the key for a digest in a repository or, without a digest, for access to the
    /// repository.
    pub(super) fn new(principal: Principal, scope: &Scope, digest: Option<&BlobDigest>) -> Self {
        let mut hasher = blake3::Hasher::new();
        match principal {
            Principal::Mirror => hasher.update(&[0]),
            Principal::Client(id) => hasher.update(&[1]).update(&id),
        };
        hash_in(&mut hasher, &scope.registry);
        hash_in(&mut hasher, &scope.repository);
        if let Some(digest) = digest {
            hash_in(&mut hasher, &digest.to_string());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProofKey")
    }
}

/// Confirmations with clients' credentials. They are in memory only.
#[derive(Debug, Default)]
pub(super) struct ClientProofs(Mutex<HashMap<ProofKey, Instant>>);

impl ClientProofs {
    pub(super) fn note(&self, key: ProofKey) {
        let mut said = self.0.lock();
        if said.len() >= SAID_MAX && !said.contains_key(&key) {
            let_go(&mut said);
        }
        said.insert(key, Instant::now());
    }

    pub(super) fn age(&self, key: &ProofKey) -> Option<Duration> {
        self.0.lock().get(key).map(Instant::elapsed)
    }

    pub(super) fn forget(&self, key: &ProofKey) {
        self.0.lock().remove(key);
    }
}

/// Drops expired confirmations, and the oldest: at least a quarter of all.
fn let_go(said: &mut HashMap<ProofKey, Instant>) {
    let mut times: Vec<_> = said.values().copied().collect();
    let (_, quarter, _) = times.select_nth_unstable(said.len() / 4);
    let quarter = *quarter;
    said.retain(|_, at| *at > quarter && at.elapsed() < CLIENT_LIFETIMES.away);
}

/// Stores confirmations with the mirror's own credentials, over restarts.
pub(super) trait ProofStore: Send + Sync + fmt::Debug {
    /// Returns the age of a confirmation; `None` if there is none.
    fn age(&self, key: &ProofKey) -> Option<Duration>;

    /// Stores a confirmation of this moment.
    fn note(&self, key: &ProofKey);

    /// Removes a confirmation.
    fn forget(&self, key: &ProofKey);
}

/// The claim that a repository has a digest, for one requester.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// The requester.
    pub(super) principal: Principal,
    /// The key of its confirmation.
    pub(super) key: ProofKey,
    /// The key of the content in the cache.
    pub(super) blob: BlobKey,
    /// Confirmations with the mirror's own credentials.
    pub(super) own: Arc<dyn ProofStore>,
    /// Confirmations with clients' credentials.
    pub(super) client_proofs: Arc<ClientProofs>,
}

impl Claim {
    /// Returns how valid its confirmation is now.
    pub(super) fn freshness(&self) -> Freshness {
        let age = match self.principal {
            Principal::Mirror => self.own.age(&self.key),
            Principal::Client(_) => self.client_proofs.age(&self.key),
        };
        self.principal.terms().freshness(age)
    }

    /// Returns the proof of the claim, if its confirmation is at least this valid.
    pub(super) fn proved(&self, least: Freshness) -> Option<Proved> {
        let freshness = self.freshness();
        (freshness >= least && freshness > Freshness::None).then(|| Proved {
            key: self.blob.clone(),
            freshness,
        })
    }

    /// Stores a confirmation of this moment, and returns the proof.
    pub(super) fn note(&self) -> Proved {
        match self.principal {
            Principal::Mirror => self.own.note(&self.key),
            Principal::Client(_) => self.client_proofs.note(self.key),
        }
        Proved {
            key: self.blob.clone(),
            freshness: Freshness::Fresh,
        }
    }

    /// Removes the confirmation: the registry denied the claim.
    pub(super) fn forget(&self) {
        match self.principal {
            Principal::Mirror => self.own.forget(&self.key),
            Principal::Client(_) => self.client_proofs.forget(&self.key),
        }
    }
}

/// The proof that a requester may have the content under a key. Only a [`Claim`] creates one, and
/// cached content is returned for nothing else.
#[derive(Clone, Debug)]
pub(super) struct Proved {
    key: BlobKey,
    freshness: Freshness,
}

impl Proved {
    pub(super) const fn freshness(&self) -> Freshness {
        self.freshness
    }

    pub(super) const fn key(&self) -> &BlobKey {
        &self.key
    }

    /// Returns a proof that no registry confirmed, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) const fn forged(key: BlobKey) -> Self {
        let freshness = Freshness::Fresh;
        Self { key, freshness }
    }

    /// Returns the source of a response with this proof.
    pub(super) const fn source(&self) -> Source {
        match self.freshness {
            Freshness::Fresh => Source::Hit,
            Freshness::Stale | Freshness::None => Source::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::Algorithm;
    use crate::upstream::Login;

    fn client(username: &str, password: &str) -> Principal {
        let (username, password) = (username.to_owned(), password.to_owned());
        Principal::of(&Asker::Client(Some(Login { username, password })))
    }

    fn scope(registry: &str, repository: &str) -> Scope {
        Scope {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
        }
    }

    #[test]
    fn what_is_said_to_one_is_said_to_no_other() {
        let digest = BlobDigest::of(Algorithm::Sha256, b"a");
        let other = BlobDigest::of(Algorithm::Sha256, b"b");
        let none = Principal::of(&Asker::Client(None));
        let keys = [
            ProofKey::new(Principal::Mirror, &scope("r", "a"), Some(&digest)),
            ProofKey::new(Principal::Mirror, &scope("r", "a"), Some(&other)),
            ProofKey::new(Principal::Mirror, &scope("r", "a"), None),
            ProofKey::new(Principal::Mirror, &scope("r/a", ""), Some(&digest)),
            ProofKey::new(none, &scope("r", "a"), Some(&digest)),
            ProofKey::new(client("", ""), &scope("r", "a"), Some(&digest)),
            ProofKey::new(client("ab", "c"), &scope("r", "a"), Some(&digest)),
            ProofKey::new(client("a", "bc"), &scope("r", "a"), Some(&digest)),
        ];
        let said = ClientProofs::default();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(said.age(key), None, "{number}");
            said.note(*key);
            assert!(said.age(key).is_some());
        }
        said.forget(&keys[3]);
        assert_eq!(said.age(&keys[3]), None);
    }

    #[test]
    fn what_is_kept_has_a_bound_and_the_latest_stays() {
        let said = ClientProofs::default();
        let key = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            ProofKey(key)
        };
        for number in 0..3 * SAID_MAX {
            said.note(key(number));
            assert!(said.age(&key(number)).is_some());
        }
        let kept = said.0.lock().len();
        assert!((SAID_MAX / 2..=SAID_MAX).contains(&kept), "{kept}");
        assert_eq!(said.age(&key(0)), None);
    }

    #[test]
    fn belief_ends() {
        for terms in [OWN_LIFETIMES, CLIENT_LIFETIMES] {
            let freshness = |age: Duration| terms.freshness(Some(age));
            assert_eq!(terms.freshness(None), Freshness::None);
            assert_eq!(freshness(Duration::ZERO), Freshness::Fresh);
            assert_eq!(freshness(terms.fresh), Freshness::Stale);
            assert_eq!(freshness(terms.away), Freshness::None);
        }
    }
}
