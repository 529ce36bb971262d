//! Bringing an image before anybody asks for it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::document::{children, for_platform};
use super::images::WholeImage;
use super::layers::Unserved;
use super::proof::Whose;
use super::reply::{Refusal, Source};
use super::route::Version;
use super::scope::Scope;
use super::{Granted, Mirror};
use crate::blobs::{BlobDigest, End, Place, Realm};
use crate::upstream::Asker;

/// Images of an index that are brought at most; an index has one for each platform.
const IMAGES_MAX: usize = 64;

/// What a prewarm did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prewarmed {
    /// What the name means now.
    pub digest: String,
    /// Blobs of the image.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were not here yet.
    pub fetched_bytes: u64,
    /// The source of the block service that is made of it in the background, if one is.
    pub source: Option<String>,
}

impl Mirror {
    /// Brings an image of a registry, as clients call it, for machines of an architecture in OCI's
    /// words (`amd64`, `arm64`). Returns when all of it is here, with the first image that it is.
    ///
    /// # Errors
    /// If the registry is not configured, does not give the image, or the machine is pressed.
    pub async fn prewarm(
        self: &Arc<Self>,
        registry: &str,
        repository: &str,
        version: Version,
        architecture: &str,
    ) -> Result<(Prewarmed, WholeImage), Refusal> {
        if !self.config.load.may_prepare() {
            let message = "its machine has too much to do for what nobody waits for";
            return Err(Refusal::absent(message));
        }
        let upstream = self.upstreams.named(registry);
        let upstream = upstream.ok_or_else(|| Refusal::absent("no such registry is configured"))?;
        let access = self.access.get(upstream.name());
        let granted = Granted {
            whose: Whose::Mirror,
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
            blobs.extend(named.ok_or_else(|| Refusal::absent("it names too many blobs"))?);
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
                    "there is no room for {size} bytes"
                )));
            }
        };
        if let Place::Growing(growing) = &served.place {
            let mut watch = growing.watch();
            let ended = watch.wait_for(|progress| progress.end.is_some()).await;
            let end = ended.ok().and_then(|progress| progress.end.clone());
            match end {
                Some(End::Whole) => {}
                Some(End::Failed(error)) => return Err(Refusal::absent(error.to_string())),
                None => return Err(Refusal::absent("the fill was given up")),
            }
        }
        Ok((served.size, served.source))
    }
}
