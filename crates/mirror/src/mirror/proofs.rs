//! What registries have said that their repositories have, and to whom.
//!
//! That bytes are here says nothing of who may have them, and a manifest that names them says no more:
//! anybody can write one. So a client gets what is here when the registry has said, to it and in its own
//! name, that the repository has it. That is believed for a while, and longer while the registry does not
//! answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use tokio::sync::Semaphore;

use super::ask::{WITH_FALLBACK, WITHOUT};
use super::document::{children, is_index};
use super::proof::{Belief, Claim, ProofKey, ProofStore, Proved, Whose};
use super::reply::Refusal;
use super::{Granted, Mirror};
use crate::blobs::{BlobDigest, BlobKey};
use crate::upstream::UpstreamError;

/// How long nobody else asks after a registry has not answered.
const PAUSE: Duration = Duration::from_secs(1);
/// Blobs of a manifest that are asked for before their client does, and how many of those at a time.
const AHEAD_MAX: usize = 128;
const AHEAD_AT_ONCE: usize = 16;
/// Manifests for which that is done at a time.
const AHEAD_PULLS: usize = 32;
/// Longer manifests are not read for it.
const AHEAD_BYTES: usize = 64 << 10;

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
            blob: granted.key(digest),
            own: Arc::clone(&self.catalog) as Arc<dyn ProofStore>,
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
        self.claim(granted, digest).proved(least)
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
            Some(proved) if proved.belief() == Belief::Fresh => return Ok(proved),
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
            (Ok(()), _) => Ok(claim.note()),
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
                self.counters.denied.inc();
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
