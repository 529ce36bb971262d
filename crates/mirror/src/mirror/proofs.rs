//! Decides by confirmations of a registry whether a client may have cached content.
//!
//! Neither the cache nor a manifest that names content shows who may have it: anyone can write such a
//! manifest. So a client gets cached content when the registry has confirmed to it, with
//! its own credentials, that the repository has the content. A confirmation is valid for a while, and
//! for longer while the registry does not respond.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use tokio::sync::Semaphore;

use super::attempt::{WITH_FALLBACK, WITHOUT};
use super::document::{children, is_index};
use super::proof::{Claim, Freshness, Principal, ProofKey, ProofStore, Proved};
use super::reply::Refusal;
use super::{Granted, Mirror};
use crate::blobs::{BlobDigest, BlobKey};
use crate::upstream::UpstreamError;

/// How long other requests are refused after a registry did not respond.
const PAUSE: Duration = Duration::from_secs(1);
/// The most blobs of a manifest that are confirmed ahead, and how many of these concurrently.
const AHEAD_MAX: usize = 128;
const AHEAD_AT_ONCE: usize = 16;
/// Manifests for which that is done concurrently.
const AHEAD_PULLS: usize = 32;
/// Longer manifests are not parsed for that.
const AHEAD_BYTES: usize = 64 << 10;

/// The kind of content that a digest names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    Manifest,
    Blob,
}

impl ContentKind {
    fn path(self, digest: &BlobDigest) -> String {
        match self {
            Self::Manifest => format!("manifests/{digest}"),
            Self::Blob => format!("blobs/{digest}"),
        }
    }
}

impl Granted {
    /// Returns the key of content for this client in the cache.
    pub(super) fn key(&self, digest: &BlobDigest) -> BlobKey {
        BlobKey {
            realm: self.realm,
            digest: digest.clone(),
        }
    }

    /// Returns the name of a lock or a cached "not found" of this requester and repository.
    pub(super) fn named(&self, what: impl fmt::Display) -> String {
        let scope = &self.scope;
        match self.principal {
            Principal::Mirror => format!("{scope}{what}"),
            Principal::Client(id) => format!("{} {scope}{what}", blake3::Hash::from(id)),
        }
    }
}

impl Mirror {
    pub(super) fn claim(&self, granted: &Granted, digest: &BlobDigest) -> Claim {
        Claim {
            principal: granted.principal,
            key: ProofKey::new(granted.principal, &granted.scope, Some(digest)),
            blob: granted.key(digest),
            own: Arc::clone(&self.catalog) as Arc<dyn ProofStore>,
            client_proofs: Arc::clone(&self.grants.client_proofs),
        }
    }

    /// Returns the proof that a client may have some content, if its confirmation is valid enough.
    pub(super) fn proved(
        &self,
        granted: &Granted,
        digest: &BlobDigest,
        least: Freshness,
    ) -> Option<Proved> {
        self.claim(granted, digest).proved(least)
    }

    /// Has the registry confirm that a client may have some content, unless it did recently.
    pub(super) async fn prove(
        &self,
        granted: &Granted,
        digest: &BlobDigest,
        kind: ContentKind,
    ) -> Result<Proved, Refusal> {
        if let Some(proved) = self.proved(granted, digest, Freshness::Fresh) {
            return Ok(proved);
        }
        let name = granted.named(format_args!("?{digest}"));
        let _guard = self.locks.lock(name.clone()).await;
        // Whoever had the turn before has asked for all of us.
        let old = self.proved(granted, digest, Freshness::Stale);
        let may_fetch = self.config.load.may_fetch();
        match old {
            Some(proved) if proved.freshness() == Freshness::Fresh => return Ok(proved),
            Some(proved) if granted.upstream.is_out() || !may_fetch => return Ok(proved),
            None if !may_fetch => return Err(Refusal::shed()),
            _ => {}
        }
        if self.listings.is_absent(&name) {
            return Err(Refusal::absent(
                "the upstream registry did not confirm access to it",
            ));
        }
        let within = old.as_ref().map_or(WITHOUT, |_| WITH_FALLBACK);
        let claim = self.claim(granted, digest);
        let path = kind.path(digest);
        let said = match self.attempt(granted, Method::HEAD, &path, within).await {
            // It knows no HEAD: so all of it.
            Err(UpstreamError::Refused(405)) if kind == ContentKind::Manifest => {
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

    /// Removes a confirmation that the registry denied.
    fn unproved(&self, granted: &Granted, claim: &Claim, error: UpstreamError) -> Refusal {
        match (&error, granted.principal) {
            (UpstreamError::NotFound, _) => claim.forget(),
            (UpstreamError::Denied(_), Principal::Mirror) => claim.forget(),
            (UpstreamError::Denied(_), Principal::Client(_)) => {
                claim.forget();
                self.counters.denied.inc();
                self.grants.revoke(granted.principal, &granted.scope);
                return Refusal::unauthorized();
            }
            _ => {}
        }
        error.into()
    }

    /// Has the registry confirm the cached blobs of a manifest ahead of the client's requests,
    /// concurrently, so that the client need not wait for one after the other.
    pub(super) fn ask_ahead(self: &Arc<Self>, granted: &Granted, manifest: &[u8]) {
        // Nothing is refused to anybody here, so nothing is counted.
        let is_pressed = self.config.load.level() >= serving::load::Level::Shedding;
        if manifest.len() > AHEAD_BYTES || is_pressed || is_index(manifest) {
            return;
        }
        let mut blobs = children(manifest).unwrap_or_default();
        blobs.retain(|digest| self.blobs.is_here(&granted.key(digest)));
        blobs.truncate(AHEAD_MAX);
        blobs.retain(|digest| self.proved(granted, digest, Freshness::Fresh).is_none());
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
                    let _refused = mirror.prove(&granted, &digest, ContentKind::Blob).await;
                    drop(permit);
                });
            }
            let all = u32::try_from(AHEAD_AT_ONCE).unwrap_or(u32::MAX);
            let _all_done = at_once.acquire_many(all).await;
            drop(place);
        });
    }

    /// Returns the limit of pulls that are confirmed ahead.
    pub(super) fn pulls() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(AHEAD_PULLS))
    }
}
