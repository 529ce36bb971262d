//! Manifests and indexes of a repository.

use blocks::Digest;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};

use super::http::Request;
use super::{RegistryError, Repository};
use crate::{
    BlobError, DOCUMENT_MAX, DOCUMENT_TYPES, Descriptor, DocumentError, Index, Manifest,
    OCI_MANIFEST, Platform, Reference, Watch, digest_of,
};

/// The name of a manifest in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A name that may mean another manifest tomorrow.
    Tag(String),
    /// By its digest.
    Digest(Digest),
}

impl Target {
    /// Returns what a reference names in its repository: the digest if it has one.
    #[must_use]
    pub fn of(reference: &Reference) -> Self {
        match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Self::Digest(digest),
            (None, tag) => Self::Tag(tag.unwrap_or("latest").to_owned()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Tag(tag) => tag.clone(),
            Self::Digest(digest) => digest.to_string(),
        }
    }
}

/// A manifest or an index, as the registry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundManifest {
    /// Its digest, by its bytes.
    pub digest: Digest,
    /// Its media type according to the registry.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// An image, as the registry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundImage {
    /// The index by which it was found, if there is one.
    pub index: Option<FoundManifest>,
    /// Its manifest.
    pub found: FoundManifest,
    /// Its content.
    pub manifest: Manifest,
}

impl Repository {
    /// Returns a manifest or an index; `None` if there is none.
    ///
    /// # Errors
    /// If the registry's response is not valid, or has another document than the requested one.
    pub fn manifest(
        &self,
        target: &Target,
        watch: Watch<'_>,
    ) -> Result<Option<FoundManifest>, RegistryError> {
        let doing = "asking for a manifest";
        let url = format!("{}/manifests/{}", self.base, target.text());
        let mut request = Request::new(doing, Method::GET, url);
        accept_documents(&mut request.headers);
        let answer = self.http.send(&request, &mut *watch)?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !answer.status().is_success() {
            return Err(self.http.refusal(doing, answer, watch));
        }
        let media_type = answer.headers().get(CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_owned();
        let bytes = self.http.body(doing, answer, DOCUMENT_MAX, watch)?;
        let found = digest_of(&bytes);
        if let &Target::Digest(expected) = target
            && expected != found
        {
            return Err(RegistryError::Blob {
                registry: self.http.registry(),
                digest: expected,
                source: Box::new(BlobError::Digest { expected, found }),
            });
        }
        Ok(Some(FoundManifest {
            digest: found,
            media_type,
            bytes,
        }))
    }

    /// Returns the manifest of the image for a platform, by way of an index if there is one, and
    /// its own digest; `None` if there is no such tag or digest.
    ///
    /// # Errors
    /// If the registry's response is not valid, there is no image for the platform, or the
    /// document is not an image.
    pub fn image(
        &self,
        target: &Target,
        platform: &Platform,
        watch: Watch<'_>,
    ) -> Result<Option<(FoundManifest, Manifest)>, RegistryError> {
        let image = self.image_and_index(target, platform, watch)?;
        Ok(image.map(|image| (image.found, image.manifest)))
    }

    /// The same, with the index.
    ///
    /// # Errors
    /// As [`image`](Self::image).
    pub fn image_and_index(
        &self,
        target: &Target,
        platform: &Platform,
        watch: Watch<'_>,
    ) -> Result<Option<FoundImage>, RegistryError> {
        let Some(mut found) = self.manifest(target, &mut *watch)? else {
            return Ok(None);
        };
        let mut outer = None;
        if found.is_index() {
            let index = Index::decode(&found.bytes).map_err(self.unusable())?;
            let entry = index.for_platform(platform).map_err(self.unusable())?;
            let digest = entry.digest;
            let inner = self.manifest(&Target::Digest(digest), watch)?;
            let inner = inner.ok_or_else(|| {
                let rule = "a manifest that an index lists is missing";
                self.http.broken("asking for a manifest", rule)
            })?;
            outer = Some(std::mem::replace(&mut found, inner));
        }
        let manifest = Manifest::decode(&found.bytes).map_err(self.unusable())?;
        manifest.must_be_image().map_err(self.unusable())?;
        Ok(Some(FoundImage {
            index: outer,
            found,
            manifest,
        }))
    }

    /// Pushes the manifest of an image whose blobs are there, by a tag or its digest.
    ///
    /// # Errors
    /// If the registry refuses it.
    pub fn push_image(
        &self,
        target: &Target,
        manifest: &[u8],
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        self.put_document(target, OCI_MANIFEST, manifest, watch)
            .map(drop)
    }

    pub(super) fn put_document(
        &self,
        target: &Target,
        media_type: &str,
        bytes: &[u8],
        watch: Watch<'_>,
    ) -> Result<HeaderMap, RegistryError> {
        let url = format!("{}/manifests/{}", self.base, target.text());
        let mut request = Request::new("pushing a manifest", Method::PUT, url);
        if let Ok(value) = HeaderValue::from_str(media_type) {
            request.headers.insert(CONTENT_TYPE, value);
        }
        request.body = bytes.to_vec();
        let answer = self.http.ask(&request, watch)?;
        Ok(answer.headers().clone())
    }

    pub(super) fn unusable(&self) -> impl Fn(DocumentError) -> RegistryError + '_ {
        |source| RegistryError::Document {
            registry: self.http.registry(),
            source: Box::new(source),
        }
    }
}

impl FoundManifest {
    /// Returns the descriptor by which other documents refer to it.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        let media_type = match self.media_type.split(';').next().unwrap_or_default() {
            "" => OCI_MANIFEST,
            media_type => media_type,
        };
        Descriptor::new(media_type, self.digest, self.bytes.len() as u64)
    }

    /// Returns whether it is an index. Some registries do not say what they send: then it is one
    /// if it looks like one.
    fn is_index(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Looks {
            manifests: Option<serde::de::IgnoredAny>,
        }
        let looks = serde_json::from_slice::<Looks>(&self.bytes);
        looks.is_ok_and(|looks| looks.manifests.is_some())
    }
}

/// Registries that know several forms of a document give the one that is asked for.
fn accept_documents(headers: &mut HeaderMap) {
    for media_type in DOCUMENT_TYPES {
        headers.append(ACCEPT, HeaderValue::from_static(media_type));
    }
}
