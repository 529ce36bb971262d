//! Artifacts that refer to a manifest: pushing and finding them.
//!
//! Registries with the referrers API list them. For others the specification
//! has a tag, made of the subject's digest, whose index the clients maintain.

use blocks::Digest;
use reqwest::{Method, StatusCode};

use super::http::Request;
use super::manifests::Target;
use super::{RegistryError, Repository};
use crate::{
    DOCUMENT_MAX, Descriptor, DocumentError, Index, Manifest, OCI_INDEX, OCI_MANIFEST, Watch,
    digest_of,
};

/// Answers of a referrers API that spans several pages. A manifest has a handful of referrers.
const PAGES_MAX: usize = 20;
/// Referrers that are looked at.
const REFERRERS_MAX: usize = 1000;
/// The header by which a registry says that it lists the artifact by itself.
const SUBJECT: &str = "oci-subject";

/// How an artifact can be found by its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// The registry lists it.
    ByRegistry,
    /// It was added to the index under the subject's tag.
    ByTag,
    /// It has no subject.
    NotAtAll,
}

/// What pushing the manifest of an artifact did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedManifest {
    /// The digest of the manifest.
    pub digest: Digest,
    /// How it is found.
    pub linked: Linked,
}

impl Repository {
    /// Pushes the manifest of an artifact whose blobs are there, and makes sure that it is found
    /// by its subject.
    ///
    /// # Errors
    /// If the registry refuses it.
    pub fn push_artifact(
        &self,
        manifest: &Manifest,
        watch: Watch<'_>,
    ) -> Result<PushedManifest, RegistryError> {
        let bytes = encode(manifest)?;
        let digest = digest_of(&bytes);
        let target = Target::Digest(digest);
        let headers = self.put_document(&target, OCI_MANIFEST, &bytes, &mut *watch)?;
        let linked = match &manifest.subject {
            None => Linked::NotAtAll,
            Some(_) if headers.contains_key(SUBJECT) => Linked::ByRegistry,
            Some(subject) => {
                let entry = Descriptor {
                    media_type: OCI_MANIFEST.to_owned(),
                    digest,
                    size: bytes.len() as u64,
                    artifact_type: manifest.artifact_type.clone(),
                    annotations: manifest.annotations.clone(),
                    platform: None,
                };
                self.add_to_tag(subject.digest, &entry, watch)?;
                Linked::ByTag
            }
        };
        Ok(PushedManifest { digest, linked })
    }

    /// Returns the artifacts of a type that refer to a manifest, in the order of the registry.
    ///
    /// # Errors
    /// If the registry's response is not valid.
    pub fn referrers(
        &self,
        subject: Digest,
        artifact_type: &str,
        watch: Watch<'_>,
    ) -> Result<Vec<Descriptor>, RegistryError> {
        let mut found = match self.listed(subject, &mut *watch)? {
            Some(found) => found,
            None => self.tagged(subject, watch)?.manifests,
        };
        found.retain(|entry| entry.artifact_type.as_deref() == Some(artifact_type));
        found.truncate(REFERRERS_MAX);
        Ok(found)
    }

    /// Asks the referrers API; `None` if the registry has none.
    fn listed(
        &self,
        subject: Digest,
        watch: Watch<'_>,
    ) -> Result<Option<Vec<Descriptor>>, RegistryError> {
        let doing = "asking for referrers";
        let mut url = Some(format!("{}/referrers/{subject}", self.base));
        let mut found = Vec::new();
        for page in 0..PAGES_MAX {
            let Some(this) = url.take() else {
                break;
            };
            let request = Request::new(doing, Method::GET, this.clone());
            let answer = self.http.send(&request, &mut *watch)?;
            // Registries without the API say that there is no such page, or no such method.
            let unknown = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
            if page == 0 && unknown.contains(&answer.status()) {
                return Ok(None);
            }
            if !answer.status().is_success() {
                return Err(self.http.refusal(doing, answer, watch));
            }
            let link = answer
                .headers()
                .get("link")
                .and_then(|link| link.to_str().ok());
            url = link.and_then(|link| next_page(&this, link));
            let body = self.http.body(doing, answer, DOCUMENT_MAX, &mut *watch)?;
            let index = Index::decode(&body).map_err(self.unusable())?;
            found.extend(index.manifests);
            if found.len() > REFERRERS_MAX {
                break;
            }
        }
        Ok(Some(found))
    }

    /// Returns the index under the subject's tag; an empty one if there is none.
    fn tagged(&self, subject: Digest, watch: Watch<'_>) -> Result<Index, RegistryError> {
        match self.manifest(&fallback_tag(subject), watch)? {
            Some(found) => Index::decode(&found.bytes).map_err(self.unusable()),
            None => Ok(Index {
                schema_version: 2,
                media_type: OCI_INDEX.to_owned(),
                manifests: Vec::new(),
            }),
        }
    }

    /// Adds an artifact to the index under the subject's tag. Two who do this at the same moment
    /// can undo each other, so the index is read again afterwards.
    fn add_to_tag(
        &self,
        subject: Digest,
        entry: &Descriptor,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        const TRIES: usize = 4;
        for _ in 0..TRIES {
            let mut index = self.tagged(subject, &mut *watch)?;
            if index
                .manifests
                .iter()
                .any(|known| known.digest == entry.digest)
            {
                return Ok(());
            }
            index.manifests.push(entry.clone());
            let bytes = encode(&index)?;
            if bytes.len() as u64 > DOCUMENT_MAX {
                return Err(self.http.broken(
                    "adding to the index of referrers",
                    "it has no room for another entry",
                ));
            }
            self.put_document(&fallback_tag(subject), OCI_INDEX, &bytes, &mut *watch)?;
        }
        let rule = "an entry of its index was lost to another push: try again";
        Err(self.http.broken("adding to the index of referrers", rule))
    }
}

fn fallback_tag(subject: Digest) -> Target {
    Target::Tag(format!("sha256-{}", subject.hex()))
}

fn encode<T: serde::Serialize>(document: &T) -> Result<Vec<u8>, RegistryError> {
    serde_json::to_vec(document).map_err(|source| RegistryError::Document {
        registry: "this program".to_owned(),
        source: Box::new(DocumentError::Json {
            what: "manifest",
            source,
        }),
    })
}

/// Returns the next page that a `Link` header names, if it is of the same registry.
fn next_page(this: &str, link: &str) -> Option<String> {
    let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    if !rest.replace('"', "").contains("rel=next") {
        return None;
    }
    let this = reqwest::Url::parse(this).ok()?;
    let next = this.join(target).ok()?;
    (next.origin() == this.origin()).then(|| next.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stay_at_the_registry() {
        let this = "https://r.io/v2/a/referrers/sha256:00";
        let next = |link| next_page(this, link);
        let expected = "https://r.io/v2/a/referrers/x?n=2".to_owned();
        assert_eq!(
            next(r#"</v2/a/referrers/x?n=2>; rel="next""#),
            Some(expected)
        );
        assert_eq!(next("<https://evil.io/x>; rel=next"), None);
        assert_eq!(next("</x>; rel=prev"), None);
        assert_eq!(next("/x"), None);
    }
}
