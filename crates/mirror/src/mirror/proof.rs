//! What a registry has said: about what, in whose name, and for how long it is believed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::reply::Source;
use super::scope::Scope;
use crate::blobs::{BlobDigest, BlobKey};
use crate::upstream::Asker;

/// For what was said in the mirror's own name: what may be pulled from such a registry, the operator
/// has said.
const OWN: Terms = Terms {
    fresh: Duration::from_secs(3600),
    away: Duration::from_secs(30 * 24 * 3600),
};
/// For what was said in a client's. Its rights may end at any time.
pub(super) const CLIENTS: Terms = Terms {
    fresh: Duration::from_secs(300),
    away: Duration::from_secs(3600),
};
/// Things that were said in clients' names that are kept: 6 MiB. Who asks for more is asked about again.
const SAID_MAX: usize = 112 << 10;
/// How long something is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    fresh: Duration,
    /// While the registry does not answer.
    away: Duration,
}

/// How good it is what a registry said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Belief {
    /// It said nothing, or too long ago.
    None,
    /// Good enough while it does not answer.
    Old,
    Fresh,
}

impl Terms {
    pub(super) fn belief(&self, age: Option<Duration>) -> Belief {
        match age {
            Some(age) if age < self.fresh => Belief::Fresh,
            Some(age) if age < self.away => Belief::Old,
            _ => Belief::None,
        }
    }
}

/// In whose name a registry is asked: what it says to one it has not said to another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// In the mirror's own, for all whom its operator lets in.
    Mirror,
    /// In that of a client; a hash of name and password.
    Client([u8; 32]),
}

impl Whose {
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

    pub(super) const fn terms(self) -> Terms {
        match self {
            Self::Mirror => OWN,
            Self::Client(_) => CLIENTS,
        }
    }
}

impl fmt::Debug for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The hash of a password is a secret, too.
        f.write_str(match self {
            Self::Mirror => "Mirror",
            Self::Client(_) => "Client",
        })
    }
}

/// Adds a text so that no two lists of texts give the same bytes.
fn hash_in(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// The name of something that a registry may have said: to whom, and what of which repository.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProofKey(pub(super) [u8; 32]);

impl ProofKey {
    /// Returns the name of this: that a repository has a digest, or, for none, that somebody may come in.
    pub(super) fn new(whose: Whose, scope: &Scope, digest: Option<&BlobDigest>) -> Self {
        let mut hasher = blake3::Hasher::new();
        match whose {
            Whose::Mirror => hasher.update(&[0]),
            Whose::Client(id) => hasher.update(&[1]).update(&id),
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

/// What was said in clients' names. It ends with the process.
#[derive(Debug, Default)]
pub(super) struct Said(Mutex<HashMap<ProofKey, Instant>>);

impl Said {
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

/// Forgets what nobody believes any more, and what is oldest, at least a quarter of all.
fn let_go(said: &mut HashMap<ProofKey, Instant>) {
    let mut times: Vec<_> = said.values().copied().collect();
    let (_, quarter, _) = times.select_nth_unstable(said.len() / 4);
    let quarter = *quarter;
    said.retain(|_, at| *at > quarter && at.elapsed() < CLIENTS.away);
}

/// Keeps what was said in the mirror's own name, over restarts.
pub(super) trait ProofStore: Send + Sync + fmt::Debug {
    /// Returns how long ago it was said; `None` if it was not, or if that was forgotten.
    fn age(&self, key: &ProofKey) -> Option<Duration>;

    /// Notes that it was said just now.
    fn note(&self, key: &ProofKey);

    /// Notes that it is not so any more.
    fn forget(&self, key: &ProofKey);
}

/// That a repository has a digest, as far as a registry has said so to one client.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// In whose name the registry is asked.
    pub(super) whose: Whose,
    /// What the claim is kept under.
    pub(super) key: ProofKey,
    /// What the bytes are kept under.
    pub(super) blob: BlobKey,
    /// What was said in the mirror's own name.
    pub(super) own: Arc<dyn ProofStore>,
    /// What was said in clients' names.
    pub(super) said: Arc<Said>,
}

impl Claim {
    /// Returns how good the claim is now.
    pub(super) fn belief(&self) -> Belief {
        let age = match self.whose {
            Whose::Mirror => self.own.age(&self.key),
            Whose::Client(_) => self.said.age(&self.key),
        };
        self.whose.terms().belief(age)
    }

    /// Returns the proof of the claim, if it is at least this good.
    pub(super) fn proved(&self, least: Belief) -> Option<Proved> {
        let belief = self.belief();
        (belief >= least && belief > Belief::None).then(|| Proved {
            key: self.blob.clone(),
            belief,
        })
    }

    /// Notes that the registry has said so just now, and returns the proof.
    pub(super) fn note(&self) -> Proved {
        match self.whose {
            Whose::Mirror => self.own.note(&self.key),
            Whose::Client(_) => self.said.note(self.key),
        }
        Proved {
            key: self.blob.clone(),
            belief: Belief::Fresh,
        }
    }

    /// Notes that it has said that it is not so.
    pub(super) fn forget(&self) {
        match self.whose {
            Whose::Mirror => self.own.forget(&self.key),
            Whose::Client(_) => self.said.forget(&self.key),
        }
    }
}

/// That somebody may have what is kept under this name. Only a [`Claim`] gives one, and there is no
/// other way to what is kept.
#[derive(Clone, Debug)]
pub(super) struct Proved {
    key: BlobKey,
    belief: Belief,
}

impl Proved {
    pub(super) const fn belief(&self) -> Belief {
        self.belief
    }

    pub(super) const fn key(&self) -> &BlobKey {
        &self.key
    }

    /// Returns one that no registry gave.
    #[cfg(any(test, feature = "testing"))]
    pub(super) const fn forged(key: BlobKey) -> Self {
        let belief = Belief::Fresh;
        Self { key, belief }
    }

    /// Returns what an answer is, by what the registry said.
    pub(super) const fn source(&self) -> Source {
        match self.belief {
            Belief::Fresh => Source::Hit,
            Belief::Old | Belief::None => Source::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::Algorithm;
    use crate::upstream::Login;

    fn client(username: &str, password: &str) -> Whose {
        let (username, password) = (username.to_owned(), password.to_owned());
        Whose::of(&Asker::Client(Some(Login { username, password })))
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
        let none = Whose::of(&Asker::Client(None));
        let keys = [
            ProofKey::new(Whose::Mirror, &scope("r", "a"), Some(&digest)),
            ProofKey::new(Whose::Mirror, &scope("r", "a"), Some(&other)),
            ProofKey::new(Whose::Mirror, &scope("r", "a"), None),
            ProofKey::new(Whose::Mirror, &scope("r/a", ""), Some(&digest)),
            ProofKey::new(none, &scope("r", "a"), Some(&digest)),
            ProofKey::new(client("", ""), &scope("r", "a"), Some(&digest)),
            ProofKey::new(client("ab", "c"), &scope("r", "a"), Some(&digest)),
            ProofKey::new(client("a", "bc"), &scope("r", "a"), Some(&digest)),
        ];
        let said = Said::default();
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
        let said = Said::default();
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
        for terms in [OWN, CLIENTS] {
            let belief = |age: Duration| terms.belief(Some(age));
            assert_eq!(terms.belief(None), Belief::None);
            assert_eq!(belief(Duration::ZERO), Belief::Fresh);
            assert_eq!(belief(terms.fresh), Belief::Old);
            assert_eq!(belief(terms.away), Belief::None);
        }
    }
}
