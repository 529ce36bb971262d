//! Prewarming: fetches an image before a client asks for it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::document::{children, for_platform};
use super::images::WholeImage;
use super::layers::Unserved;
use super::proof::Principal;
use super::reply::{Refusal, Source};
use super::route::Version;
use super::scope::Scope;
use super::{Granted, Mirror};
use crate::blobs::{BlobDigest, BlobState, End, Realm};
use crate::upstream::Asker;

/// The most images of an index that are prewarmed; an index has one for each platform.
const IMAGES_MAX: usize = 64;

/// The result of prewarming an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prewarmed {
    /// The digest that the reference means now.
    pub digest: String,
    /// Blobs of the image.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were fetched, because they were not cached.
    pub fetched_bytes: u64,
    /// The source of the block service that the image becomes in the background, if it does.
    pub source: Option<String>,
}

impl Mirror {
    /// Fetches an image, by the names that clients use, for an architecture in OCI's terms
    /// (`amd64`, `arm64`). Returns when all blobs are cached, with the first image that the
    /// reference means.
    ///
    /// # Errors
    /// If the registry is not configured or does not have the image, or if the load is high.
    pub async fn prewarm(
        self: &Arc<Self>,
        registry: &str,
        repository: &str,
        version: Version,
        architecture: &str,
    ) -> Result<(Prewarmed, WholeImage), Refusal> {
        if !self.config.load.may_prepare() {
            let message = "the machine is under load: nothing is prewarmed now";
            return Err(Refusal::absent(message));
        }
        let upstream = self.upstreams.named(registry);
        let upstream = upstream.ok_or_else(|| Refusal::absent("no such registry is configured"))?;
        let access = self.access.get(upstream.name());
        let granted = Granted {
            principal: Principal::Mirror,
            realm: access.map_or_else(
                || Realm::of(upstream.name()),
                |access| access.realm(upstream.name()),
            ),
            upstream: Arc::clone(upstream),
            scope: Scope {
                registry: upstream.name().to_owned(),
                repository: repository.to_owned(),
            },
            asker: Asker::Mirror,
        };
        let (digest, bytes) = self.manifest_bytes(&granted, &version).await?;
        let mut images = Vec::new();
        for image in for_platform(&bytes, architecture)
            .into_iter()
            .take(IMAGES_MAX)
        {
            let version = Version::Digest(image);
            images.push(self.manifest_bytes(&granted, &version).await?);
        }
        if images.is_empty() {
            images.push((digest.clone(), bytes));
        }
        let mut blobs = Vec::new();
        for (_, manifest) in &images {
            let named = children(manifest);
            blobs
                .extend(named.ok_or_else(|| Refusal::absent("the manifest names too many blobs"))?);
        }
        let mut done = Prewarmed {
            digest: digest.to_string(),
            blobs: blobs.len() as u64,
            bytes: 0,
            fetched_bytes: 0,
            source: None,
        };
        for blob in blobs {
            let (size, source) = self.bring(&granted, &blob).await?;
            done.bytes += size;
            if source == Source::Miss {
                done.fetched_bytes += size;
            }
        }
        let (digest, _) = images.swap_remove(0);
        let name = match &version {
            Version::Tag(tag) => format!("{}:{tag}", granted.scope),
            Version::Digest(digest) => format!("{}@{digest}", granted.scope),
        };
        let digest = digest.to_string();
        let image = WholeImage { name, digest };
        Ok((done, image))
    }

    async fn bring(
        self: &Arc<Self>,
        granted: &Granted,
        digest: &BlobDigest,
    ) -> Result<(u64, Source), Refusal> {
        let origin = self.origin(granted, digest);
        let served = match self.serve_blob(granted, digest, &origin).await {
            Ok(served) => served,
            Err(Unserved::Refused(refusal)) => return Err(refusal),
            Err(Unserved::NoRoom(size)) => {
                return Err(Refusal::absent(format!(
                    "the cache has no room for {size} bytes"
                )));
            }
        };
        if let BlobState::Growing(growing) = &served.place {
            let mut watch = growing.watch();
            let ended = watch.wait_for(|progress| progress.end.is_some()).await;
            let end = ended.ok().and_then(|progress| progress.end.clone());
            match end {
                Some(End::Whole) => {}
                Some(End::Failed(error)) => return Err(Refusal::absent(error.to_string())),
                None => return Err(Refusal::absent("the download of the blob was abandoned")),
            }
        }
        Ok((served.size, served.source))
    }
}
