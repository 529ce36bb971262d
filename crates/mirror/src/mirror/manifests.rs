//! Manifests: a digest always names the same one; a tag is revalidated with the registry after a while.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, WARNING};
use hyper::{Method, StatusCode};

use super::attempt::{WITH_FALLBACK, WITHOUT, claimed};
use super::catalog::{Manifest, Tagged, now_millis};
use super::document::accepts;
use super::proof::{Freshness, Principal};
use super::proofs::ContentKind;
use super::reply::{CONTENT_DIGEST, Needed, Refusal, Reply, Source, bare, document, set};
use super::route::Version;
use super::{Granted, Mirror, not_modified};
use crate::blobs::BlobDigest;
use crate::upstream::UpstreamError;

/// A manifest, or its description.
#[derive(Clone, Debug)]
struct Found {
    source: Source,
    digest: BlobDigest,
    media_type: String,
    size: u64,
    /// `None` if the request does not need them.
    bytes: Option<Bytes>,
}

impl Found {
    fn new(source: Source, digest: &BlobDigest, manifest: Manifest) -> Self {
        Self {
            source,
            digest: digest.clone(),
            size: manifest.bytes.len() as u64,
            media_type: manifest.media_type,
            bytes: Some(manifest.bytes),
        }
    }
}

impl Mirror {
    /// Handles a request for a manifest.
    pub(super) async fn manifest(
        self: &Arc<Self>,
        granted: &Granted,
        version: &Version,
        needed: Needed,
        headers: &HeaderMap,
    ) -> Result<(Source, Reply), Refusal> {
        let found = match version {
            Version::Tag(tag) => self.tagged(granted, tag, needed).await?,
            Version::Digest(digest) => self.by_digest(granted, digest, needed).await?,
        };
        let accept = headers.get_all(ACCEPT).iter();
        let accept = accept.filter_map(|value| value.to_str().ok());
        if !accepts(accept, &found.media_type) {
            let message = format!(
                "it is {}, which the client does not accept",
                found.media_type
            );
            return Err(Refusal::absent(message));
        }
        let digest = found.digest.to_string();
        let etag = format!("\"{digest}\"");
        if let Some(reply) = not_modified(headers, &etag) {
            return Ok((found.source, reply));
        }
        if needed == Needed::Body
            && let Some(bytes) = &found.bytes
        {
            self.ask_ahead(granted, bytes);
        }
        let mut reply = match (needed, found.bytes) {
            (Needed::Body, Some(bytes)) => document(StatusCode::OK, &found.media_type, bytes),
            _ => {
                let mut reply = bare(StatusCode::OK);
                set(&mut reply, CONTENT_TYPE, &found.media_type);
                set(&mut reply, CONTENT_LENGTH, &found.size.to_string());
                reply
            }
        };
        set(&mut reply, CONTENT_DIGEST, &digest);
        set(&mut reply, ETAG, &etag);
        if found.source == Source::Stale {
            set(&mut reply, WARNING, "110 - \"Response is Stale\"");
        }
        Ok((found.source, reply))
    }

    /// Returns the bytes of a manifest.
    pub(super) async fn manifest_bytes(
        self: &Arc<Self>,
        granted: &Granted,
        version: &Version,
    ) -> Result<(BlobDigest, Bytes), Refusal> {
        let found = match version {
            Version::Tag(tag) => self.tagged(granted, tag, Needed::Body).await?,
            Version::Digest(digest) => self.by_digest(granted, digest, Needed::Body).await?,
        };
        Ok((found.digest, found.bytes.unwrap_or_default()))
    }

    async fn tagged(
        self: &Arc<Self>,
        granted: &Granted,
        tag: &str,
        needed: Needed,
    ) -> Result<Found, Refusal> {
        let asked = now_millis();
        if let Some(found) = self.known(granted, tag, needed, asked, Source::Hit) {
            return Ok(found);
        }
        if !self.config.load.may_fetch() {
            // What is known is better than another way.
            return self
                .stale(granted, tag, needed)
                .map_err(|_| Refusal::shed());
        }
        let name = granted.named(format_args!(":{tag}"));
        let _guard = self.locks.lock(name.clone()).await;
        // Whoever had the turn before has asked for all of us.
        if let Some(found) = self.known(granted, tag, needed, asked, Source::Joined) {
            return Ok(found);
        }
        if self.listings.is_absent(&name) {
            return Err(Refusal::absent(
                "the upstream registry does not have the tag",
            ));
        }
        let old = self.catalog.tag(&granted.scope, tag);
        let what = format!("manifests/{tag}");
        let asked = match (&old, needed) {
            // What is not known is asked for once, with its body if that is needed.
            (None, Needed::Body) => self.fetch(granted, &what, WITHOUT).await.map(Fresh::Whole),
            (None, Needed::Head) => self.look(granted, &what, WITHOUT).await.map(Fresh::Tag),
            (Some(_), _) if granted.upstream.is_out() => {
                return self.stale(granted, tag, needed);
            }
            (Some(_), _) => self
                .look(granted, &what, WITH_FALLBACK)
                .await
                .map(Fresh::Tag),
        };
        match asked {
            Ok(fresh) => self.renew(granted, tag, needed, fresh).await,
            Err(error) if old.is_some() && has_fallback(&error) => {
                // If there is none after all, the reason is the first one.
                let stale = self.stale(granted, tag, needed);
                stale.map_err(|_| error.into())
            }
            Err(UpstreamError::NotFound) => {
                // What others are told of it is their affair.
                if granted.principal == Principal::Mirror {
                    self.catalog.forget_tag(&granted.scope, tag);
                }
                self.listings.note_absent(name, self.config.absent_ttl);
                Err(UpstreamError::NotFound.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Processes the response of a registry to a request for a tag.
    async fn renew(
        self: &Arc<Self>,
        granted: &Granted,
        tag: &str,
        needed: Needed,
        fresh: Fresh,
    ) -> Result<Found, Refusal> {
        let scope = &granted.scope;
        match fresh {
            Fresh::Whole((digest, manifest)) => {
                let tagged = Tagged {
                    digest: digest.clone(),
                    media_type: manifest.media_type.clone(),
                    size: manifest.bytes.len() as u64,
                    checked: now_millis(),
                };
                self.catalog.put_tag(scope, tag, &tagged);
                Ok(Found::new(Source::Miss, &digest, manifest))
            }
            Fresh::Tag(tagged) => {
                let is_here = self.catalog.has(&granted.key(&tagged.digest));
                if needed == Needed::Body && !is_here {
                    return self.replace(granted, tag, &tagged).await;
                }
                self.catalog.put_tag(scope, tag, &tagged);
                if let Some(found) = self.known(granted, tag, needed, 0, Source::Hit) {
                    return Ok(found);
                }
                self.by_digest(granted, &tagged.digest, needed).await
            }
        }
    }

    /// Fetches the manifest that a tag points to now. Until it is stored, the tag points to the old
    /// one.
    async fn replace(
        &self,
        granted: &Granted,
        tag: &str,
        tagged: &Tagged,
    ) -> Result<Found, Refusal> {
        match self.bring_manifest(granted, &tagged.digest).await {
            Ok(found) => {
                self.catalog.put_tag(&granted.scope, tag, tagged);
                Ok(found)
            }
            Err(error) if has_fallback(&error) => {
                let stale = self.stale(granted, tag, Needed::Body);
                stale.map_err(|_| error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the manifest of a tag, if it was validated after `since` or recently.
    fn known(
        &self,
        granted: &Granted,
        tag: &str,
        needed: Needed,
        since: u64,
        source: Source,
    ) -> Option<Found> {
        let tagged = self.catalog.tag(&granted.scope, tag)?;
        let age = Duration::from_millis(now_millis().saturating_sub(tagged.checked));
        let is_fresh = tagged.checked >= since || age < self.config.tag_ttl;
        is_fresh.then_some(())?;
        self.remembered(granted, &tagged, needed, source)
    }

    /// Returns the cached manifest of a tag, if this client may have it.
    fn remembered(
        &self,
        granted: &Granted,
        tagged: &Tagged,
        needed: Needed,
        source: Source,
    ) -> Option<Found> {
        let least = match source {
            Source::Stale => Freshness::Stale,
            _ => Freshness::Fresh,
        };
        let proved = self.proved(granted, &tagged.digest, least)?;
        if let Some(manifest) = self.catalog.manifest(&proved) {
            return Some(Found::new(source, &tagged.digest, manifest));
        }
        (needed == Needed::Head).then(|| Found {
            source,
            digest: tagged.digest.clone(),
            media_type: tagged.media_type.clone(),
            size: tagged.size,
            bytes: None,
        })
    }

    /// Returns the stale manifest of a tag, because the registry does not respond.
    fn stale(&self, granted: &Granted, tag: &str, needed: Needed) -> Result<Found, Refusal> {
        let tagged = self.catalog.tag(&granted.scope, tag);
        let found =
            tagged.and_then(|tagged| self.remembered(granted, &tagged, needed, Source::Stale));
        let why = "the upstream registry does not respond, and the mirror has no copy";
        found.ok_or_else(|| Refusal::unavailable(why))
    }

    async fn by_digest(
        self: &Arc<Self>,
        granted: &Granted,
        digest: &BlobDigest,
        needed: Needed,
    ) -> Result<Found, Refusal> {
        if self.catalog.has(&granted.key(digest)) {
            let proved = self.prove(granted, digest, ContentKind::Manifest).await?;
            if let Some(manifest) = self.catalog.manifest(&proved) {
                return Ok(Found::new(proved.source(), digest, manifest));
            }
        }
        if !self.config.load.may_fetch() {
            return Err(Refusal::shed());
        }
        if needed == Needed::Head {
            let what = format!("manifests/{digest}");
            let tagged = self.look(granted, &what, WITHOUT).await?;
            return Ok(Found {
                source: Source::Passed,
                digest: digest.clone(),
                media_type: tagged.media_type,
                size: tagged.size,
                bytes: None,
            });
        }
        Ok(self.bring_manifest(granted, digest).await?)
    }

    /// Fetches a manifest that is not cached, once for all clients that want it.
    async fn bring_manifest(
        &self,
        granted: &Granted,
        digest: &BlobDigest,
    ) -> Result<Found, UpstreamError> {
        let name = granted.named(format_args!("@{digest}"));
        let _guard = self.locks.lock(name).await;
        // Whoever had the turn before has fetched it for all of us.
        let proved = self.proved(granted, digest, Freshness::Fresh);
        if let Some(manifest) = proved.and_then(|proved| self.catalog.manifest(&proved)) {
            return Ok(Found::new(Source::Joined, digest, manifest));
        }
        let what = format!("manifests/{digest}");
        let (found, manifest) = self.fetch(granted, &what, WITHOUT).await?;
        // Verified under the name that was asked for, which may be of another algorithm.
        if found != *digest {
            self.catalog.put_manifest(&granted.key(digest), &manifest);
            self.claim(granted, digest).note();
        }
        Ok(Found::new(Source::Miss, digest, manifest))
    }

    /// Requests the description of a manifest by HEAD: many registries limit only the rate of GETs.
    async fn look(
        &self,
        granted: &Granted,
        what: &str,
        within: Duration,
    ) -> Result<Tagged, UpstreamError> {
        let looked = self.attempt(granted, Method::HEAD, what, within).await;
        match looked.map(|answer| described(&answer.headers)) {
            Ok(Some(tagged)) => {
                self.claim(granted, &tagged.digest).note();
                Ok(tagged)
            }
            // It does not say all that it should, or knows no HEAD: so all of it.
            Ok(None) | Err(UpstreamError::Refused(405)) => {
                let (digest, manifest) = self.fetch(granted, what, within).await?;
                Ok(Tagged {
                    digest,
                    size: manifest.bytes.len() as u64,
                    media_type: manifest.media_type,
                    checked: now_millis(),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Fetches a manifest and stores it.
    pub(super) async fn fetch(
        &self,
        granted: &Granted,
        what: &str,
        within: Duration,
    ) -> Result<(BlobDigest, Manifest), UpstreamError> {
        let answer = self.attempt(granted, Method::GET, what, within).await?;
        let media_type = answer.header(CONTENT_TYPE).unwrap_or("application/json");
        let manifest = Manifest {
            media_type: media_type.to_owned(),
            bytes: answer.bytes.clone(),
        };
        let digest = answer.digest();
        self.catalog.put_manifest(&granted.key(&digest), &manifest);
        self.claim(granted, &digest).note();
        Ok((digest, manifest))
    }
}

/// Returns the description of a manifest, if the headers have all of it.
pub(super) fn described(headers: &HeaderMap) -> Option<Tagged> {
    let header = |name: HeaderName| headers.get(name)?.to_str().ok();
    Some(Tagged {
        digest: claimed(headers)?,
        media_type: header(CONTENT_TYPE)?.to_owned(),
        size: header(CONTENT_LENGTH)?.parse().ok()?,
        checked: now_millis(),
    })
}

/// Whether stale content is served after this error.
const fn has_fallback(error: &UpstreamError) -> bool {
    error.is_outage() || matches!(error, UpstreamError::NoMemory)
}

/// The response of a registry to a request for a tag.
enum Fresh {
    Tag(Tagged),
    Whole((BlobDigest, Manifest)),
}
