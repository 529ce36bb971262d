//! Images all of whose blobs are here: what chunks can be made of without another download.

use std::collections::HashSet;
use std::path::PathBuf;

use hyper::body::Bytes;

use super::document::{children, is_index};
use super::{Access, Mirror};
use crate::blobs::BlobDigest;

/// An image that is here as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeImage {
    /// As clients call it, with everything that they may leave out: `docker.io/library/redis:7`.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
    /// Its manifest: a list of blobs that are here.
    pub manifest: Bytes,
}

impl Mirror {
    /// Returns the images that are here as a whole, by their tags. Only those of registries that
    /// everybody may pull from: of what others have, somebody has to say who may have it.
    #[must_use]
    pub fn whole_images(&self) -> Vec<WholeImage> {
        let open: Vec<_> = self
            .access
            .iter()
            .filter(|(_, access)| matches!(access, Access::All))
            .map(|(registry, _)| format!("{registry}/"))
            .collect();
        let blobs = self.blobs.list().into_iter();
        let whole = blobs.filter(|blob| blob.state == "whole");
        let whole: HashSet<_> = whole.map(|blob| blob.digest).collect();
        let tags = self.catalog.tags().into_iter();
        let tags = tags.filter(|(name, _)| open.iter().any(|open| name.starts_with(open)));
        tags.filter_map(|(name, digest)| {
            let (digest, manifest) = self.whole_manifest(digest, &whole)?;
            let digest = digest.to_string();
            Some(WholeImage {
                name,
                digest,
                manifest,
            })
        })
        .collect()
    }

    /// Returns the manifest of the image that a document is or lists, if all of its blobs are here.
    fn whole_manifest(
        &self,
        digest: BlobDigest,
        whole: &HashSet<BlobDigest>,
    ) -> Option<(BlobDigest, Bytes)> {
        let document = self.catalog.document(&digest)?;
        let mut images = vec![(digest, document)];
        if is_index(&images[0].1) {
            // Which of them was pulled tells which machines there are: not this one's kind.
            let listed = children(&images[0].1).into_iter();
            let known = listed.filter_map(|image| {
                let document = self.catalog.document(&image)?;
                Some((image, document))
            });
            images = known.collect();
        }
        images.into_iter().find(|(_, manifest)| {
            let blobs = children(manifest);
            !blobs.is_empty() && blobs.iter().all(|blob| whole.contains(blob))
        })
    }

    /// Returns an image by the digest of its manifest, if that is known.
    #[must_use]
    pub fn image(&self, name: &str, digest: &str) -> Option<WholeImage> {
        let manifest = self.catalog.document(&digest.parse().ok()?)?;
        Some(WholeImage {
            name: name.to_owned(),
            digest: digest.to_owned(),
            manifest,
        })
    }

    /// Returns the file of a blob that is whole. It may be removed at any time.
    #[must_use]
    pub fn blob_file(&self, digest: &str) -> Option<PathBuf> {
        self.blobs.whole_file(&digest.parse().ok()?)
    }

    /// Returns numbers that change when images may have become whole.
    #[must_use]
    pub fn pulse(&self) -> (usize, usize) {
        (self.blobs.whole_count(), self.catalog.manifest_count())
    }
}
