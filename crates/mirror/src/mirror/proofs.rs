//! What registries have said that their repositories have, and to whom.
//!
//! That bytes are here says nothing of who may have them, and a manifest that names them says no more:
//! anybody can write one. So a client gets what is here when the registry has said, to it and in its own
//! name, that the repository has it. That is believed for a while, and longer while the registry does not
//! answer.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::Method;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::catalog::{Catalog, Scope};
use super::document::{children, is_index};
use super::manifests::{WITH_FALLBACK, WITHOUT};
use super::reply::{Refusal, Source};
use super::{Granted, Mirror};
use crate::blobs::{BlobDigest, BlobKey};
use crate::upstream::{Asker, UpstreamError};

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
/// How long nobody else asks after a registry has not answered.
const PAUSE: Duration = Duration::from_secs(1);
/// Blobs of a manifest that are asked for before their client does, and how many of those at a time.
const AHEAD_MAX: usize = 128;
const AHEAD_AT_ONCE: usize = 16;
/// Manifests for which that is done at a time.
const AHEAD_PULLS: usize = 32;
/// Longer manifests are not read for it.
const AHEAD_BYTES: usize = 64 << 10;

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

    const fn terms(self) -> Terms {
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

/// What somebody says that a repository has, and what is known of that.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    whose: Whose,
    key: ProofKey,
    catalog: Arc<Catalog>,
    said: Arc<Said>,
}

impl Claim {
    pub(super) fn belief(&self) -> Belief {
        let age = match self.whose {
            Whose::Mirror => self.catalog.proof_age(&self.key),
            Whose::Client(_) => self.said.age(&self.key),
        };
        self.whose.terms().belief(age)
    }

    /// Notes that the registry has said so just now.
    pub(super) fn note(&self) {
        match self.whose {
            Whose::Mirror => self.catalog.put_proof(&self.key),
            Whose::Client(_) => self.said.note(self.key),
        }
    }

    /// Notes that it has said that it is not so.
    fn forget(&self) {
        match self.whose {
            Whose::Mirror => self.catalog.forget_proof(&self.key),
            Whose::Client(_) => self.said.forget(&self.key),
        }
    }
}

/// That somebody may have what is kept under this name. There is no other way to it.
#[derive(Clone, Debug)]
pub(super) struct Proved {
    key: BlobKey,
    belief: Belief,
}

impl Proved {
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

/// What a digest is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    Manifest,
    Blob,
}

impl Thing {
    fn path(self, digest: &BlobDigest) -> String {
        match self {
            Self::Manifest => format!("manifests/{digest}"),
            Self::Blob => format!("blobs/{digest}"),
        }
    }
}

impl Granted {
    /// Returns the name under which bytes for this client are kept.
    pub(super) fn key(&self, digest: &BlobDigest) -> BlobKey {
        BlobKey {
            realm: self.realm,
            digest: digest.clone(),
        }
    }

    /// Returns the name of something that is known of a repository to this client, and to no other.
    pub(super) fn named(&self, what: impl fmt::Display) -> String {
        let scope = &self.scope;
        match self.whose {
            Whose::Mirror => format!("{scope}{what}"),
            Whose::Client(id) => format!("{} {scope}{what}", blake3::Hash::from(id)),
        }
    }
}

impl Mirror {
    pub(super) fn claim(&self, granted: &Granted, digest: &BlobDigest) -> Claim {
        Claim {
            whose: granted.whose,
            key: ProofKey::new(granted.whose, &granted.scope, Some(digest)),
            catalog: Arc::clone(&self.catalog),
            said: Arc::clone(&self.grants.said),
        }
    }

    /// Returns the proof that a client may have something, if there is one that is good enough.
    pub(super) fn proved(
        &self,
        granted: &Granted,
        digest: &BlobDigest,
        least: Belief,
    ) -> Option<Proved> {
        let belief = self.claim(granted, digest).belief();
        (belief >= least && belief > Belief::None).then(|| Proved {
            key: granted.key(digest),
            belief,
        })
    }

    /// Has the registry say that a client may have something, unless it did not long ago.
    pub(super) async fn prove(
        &self,
        granted: &Granted,
        digest: &BlobDigest,
        thing: Thing,
    ) -> Result<Proved, Refusal> {
        if let Some(proved) = self.proved(granted, digest, Belief::Fresh) {
            return Ok(proved);
        }
        let name = granted.named(format_args!("?{digest}"));
        let _turn = self.turns.take(name.clone()).await;
        // Whoever had the turn before has asked for all of us.
        let old = self.proved(granted, digest, Belief::Old);
        let may_fetch = self.config.load.may_fetch();
        match old {
            Some(proved) if proved.belief == Belief::Fresh => return Ok(proved),
            Some(proved) if granted.upstream.is_out() || !may_fetch => return Ok(proved),
            None if !may_fetch => return Err(Refusal::shed()),
            _ => {}
        }
        if self.listings.is_absent(&name) {
            return Err(Refusal::absent("the upstream has no such thing for you"));
        }
        let within = old.as_ref().map_or(WITHOUT, |_| WITH_FALLBACK);
        let claim = self.claim(granted, digest);
        let path = thing.path(digest);
        let said = match self.attempt(granted, Method::HEAD, &path, within).await {
            // It knows no HEAD: so all of it.
            Err(UpstreamError::Refused(405)) if thing == Thing::Manifest => {
                let fetched = self.fetch(granted, &path, within).await;
                fetched.map(|_| ())
            }
            said => said.map(|_| ()),
        };
        match (said, old) {
            (Ok(()), _) => {
                claim.note();
                let (key, belief) = (granted.key(digest), Belief::Fresh);
                Ok(Proved { key, belief })
            }
            (Err(error), Some(proved)) if error.is_outage() => Ok(proved),
            (Err(error), _) => {
                let pause = match error {
                    UpstreamError::NotFound => self.config.absent_ttl,
                    _ => PAUSE,
                };
                self.listings.note_absent(name, pause);
                Err(self.unproved(granted, &claim, error))
            }
        }
    }

    /// Forgets what a registry says no longer.
    fn unproved(&self, granted: &Granted, claim: &Claim, error: UpstreamError) -> Refusal {
        match (&error, granted.whose) {
            (UpstreamError::NotFound, _) => claim.forget(),
            (UpstreamError::Denied(_), Whose::Mirror) => claim.forget(),
            (UpstreamError::Denied(_), Whose::Client(_)) => {
                claim.forget();
                self.counters.denied.fetch_add(1, Relaxed);
                self.grants.revoke(granted.whose, &granted.scope);
                return Refusal::unauthorized();
            }
            _ => {}
        }
        error.into()
    }

    /// Asks for the blobs of a manifest, as far as they are here and the registry has not said to this
    /// client that it may have them: all at once, so that the client need not wait for one after the
    /// other.
    pub(super) fn ask_ahead(self: &Arc<Self>, granted: &Granted, manifest: &[u8]) {
        // Nothing is refused to anybody here, so nothing is counted.
        let is_pressed = self.config.load.level() >= serving::load::Level::Shedding;
        if manifest.len() > AHEAD_BYTES || is_pressed || is_index(manifest) {
            return;
        }
        let mut blobs = children(manifest).unwrap_or_default();
        blobs.retain(|digest| self.blobs.is_here(&granted.key(digest)));
        blobs.truncate(AHEAD_MAX);
        blobs.retain(|digest| self.proved(granted, digest, Belief::Fresh).is_none());
        let places = Arc::clone(&self.pulls);
        let Some(place) = (!blobs.is_empty()).then(|| places.try_acquire_owned()) else {
            return;
        };
        let Ok(place) = place else {
            return;
        };
        let (mirror, granted) = (Arc::clone(self), granted.clone());
        tokio::spawn(async move {
            let at_once = Arc::new(Semaphore::new(AHEAD_AT_ONCE));
            for digest in blobs {
                let Ok(permit) = Arc::clone(&at_once).acquire_owned().await else {
                    return;
                };
                let (mirror, granted) = (Arc::clone(&mirror), granted.clone());
                tokio::spawn(async move {
                    // Whoever asks for it is told why not.
                    let _refused = mirror.prove(&granted, &digest, Thing::Blob).await;
                    drop(permit);
                });
            }
            let all = u32::try_from(AHEAD_AT_ONCE).unwrap_or(u32::MAX);
            let _all_done = at_once.acquire_many(all).await;
            drop(place);
        });
    }

    /// Returns how many pulls may be asked ahead for.
    pub(super) fn pulls() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(AHEAD_PULLS))
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
