//! Images of which the mirror has all blobs: chunks can be made of them without another download.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use hyper::body::Bytes;

use super::document::{children, is_index};
use super::{Access, Mirror};
use crate::blobs::{BlobDigest, BlobKey, Realm};

/// An image of which the mirror has all blobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeImage {
    /// As clients call it, with everything that they may leave out: `docker.io/library/redis:7`.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
}

impl Mirror {
    /// Returns the complete images, by their tags. Only those of registries that are open to all:
    /// for others, a registry has to confirm the access of each client.
    #[must_use]
    pub fn whole_images(&self) -> Vec<WholeImage> {
        let open: Vec<_> = self
            .access
            .iter()
            .filter(|(_, access)| matches!(access, Access::All))
            .map(|(registry, _)| format!("{registry}/"))
            .collect();
        let blobs = self.blobs.list().into_iter();
        // What another registry gives to some is not open because one that is names it.
        let whole = blobs.filter(|blob| blob.state == "whole" && blob.key.realm == Realm::Open);
        let whole: HashSet<_> = whole.map(|blob| blob.key.digest).collect();
        let tags = self.catalog.tags().into_iter();
        let tags = tags.filter(|(name, _)| open.iter().any(|open| name.starts_with(open)));
        // Many names may mean one manifest: each is read once.
        let mut images: HashMap<BlobDigest, Option<BlobDigest>> = HashMap::new();
        tags.filter_map(|(name, digest)| {
            let image = images.entry(digest);
            let image = image.or_insert_with_key(|digest| self.whole_manifest(digest, &whole));
            let digest = image.as_ref()?.to_string();
            Some(WholeImage { name, digest })
        })
        .collect()
    }

    /// Returns the manifest of the image that a document is or lists, if all of its blobs are here.
    fn whole_manifest(
        &self,
        digest: &BlobDigest,
        whole: &HashSet<BlobDigest>,
    ) -> Option<BlobDigest> {
        let is_whole = |manifest: &Bytes| {
            let blobs = children(manifest).unwrap_or_default();
            !blobs.is_empty() && blobs.iter().all(|blob| whole.contains(blob))
        };
        let document = self.catalog.document(&BlobKey::open(digest.clone()))?;
        if !is_index(&document) {
            return is_whole(&document).then(|| digest.clone());
        }
        // Which of them was pulled tells which machines there are: not this one's kind.
        let listed = children(&document).unwrap_or_default();
        drop(document);
        let known = |image: &BlobDigest| self.catalog.document(&BlobKey::open(image.clone()));
        listed
            .into_iter()
            .find(|image| known(image).is_some_and(|manifest| is_whole(&manifest)))
    }

    /// Returns the manifest or index of any realm with this digest, if it is known: for the operator,
    /// who may see all.
    #[must_use]
    pub fn document(&self, digest: &str) -> Option<Bytes> {
        let keys = self.keys(&digest.parse().ok()?);
        keys.iter().find_map(|key| self.catalog.document(key))
    }

    /// Returns the file of a complete blob in any realm, for callers that know that its image is
    /// complete. It may be evicted at any time.
    #[must_use]
    pub fn blob_file(&self, digest: &str) -> Option<PathBuf> {
        let keys = self.keys(&digest.parse().ok()?);
        keys.iter().find_map(|key| self.blobs.whole_file(key))
    }

    /// Returns all names that something may be kept under.
    fn keys(&self, digest: &BlobDigest) -> BTreeSet<BlobKey> {
        let rules = self.access.iter();
        let realms = rules.map(|(registry, access)| access.realm(registry));
        let key = |realm| BlobKey {
            realm,
            digest: digest.clone(),
        };
        realms.map(key).collect()
    }

    /// Returns whether the mirror knows which images it has: not while the file of its catalog cannot be used.
    #[must_use]
    pub fn knows_images(&self) -> bool {
        self.catalog.is_known()
    }

    /// Returns numbers that change when an image may have become complete.
    #[must_use]
    pub fn pulse(&self) -> (usize, usize) {
        (self.blobs.whole_count(), self.catalog.manifest_count())
    }
}
