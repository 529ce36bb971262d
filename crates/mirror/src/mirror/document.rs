//! Parses manifests and indexes, as far as a mirror needs them.

use std::fmt;
use std::marker::PhantomData;

use distribution::image::Platform;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::blobs::BlobDigest;

/// The longest manifest, in bytes: containerd's limit, which its source writes as this product (not 4 MiB).
pub(super) const MANIFEST_MAX: usize = 4 * 1048 * 1048;

/// The media types that the mirror accepts. A registry that receives fewer may convert a manifest,
/// which changes its digest.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v1+prettyjws, \
    application/json, */*";

/// The most references in a manifest that the mirror parses. An image has 500 layers at most, and
/// an index one manifest for each platform.
pub(super) const CHILDREN_MAX: usize = 1024;

#[derive(Deserialize)]
struct Document {
    config: Option<Child>,
    #[serde(default)]
    layers: Few<Child>,
    #[serde(default)]
    blobs: Few<Child>,
    #[serde(default)]
    manifests: Few<Child>,
}

#[derive(Deserialize)]
struct Child {
    digest: String,
}

/// The beginning of a list: what is beyond [`CHILDREN_MAX`] is counted, not kept.
struct Few<T> {
    first: Vec<T>,
    more: usize,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        let first = Vec::new();
        Self { first, more: 0 }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        decoder.deserialize_seq(FewVisitor(PhantomData))
    }
}

struct FewVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
    type Value = Few<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T>, A::Error> {
        let mut few = Few::default();
        while few.first.len() < CHILDREN_MAX {
            match list.next_element()? {
                Some(one) => few.first.push(one),
                None => return Ok(few),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            few.more += 1;
        }
        Ok(few)
    }
}

/// Returns the blobs that a manifest or an index names; `None` if there are too many. A document that
/// cannot be decoded names none: the mirror serves it as it is, and the client reports the error.
pub(super) fn children(bytes: &[u8]) -> Option<Vec<BlobDigest>> {
    let Ok(document) = serde_json::from_slice::<Document>(bytes) else {
        return Some(Vec::new());
    };
    let lists = [document.layers, document.blobs, document.manifests];
    let named: usize = lists.iter().map(|list| list.first.len() + list.more).sum();
    let lists = lists.into_iter().flat_map(|list| list.first);
    let all = document.config.into_iter().chain(lists);
    (named <= CHILDREN_MAX).then(|| all.filter_map(|child| child.digest.parse().ok()).collect())
}

/// Returns whether a document lists manifests.
pub(super) fn is_index(bytes: &[u8]) -> bool {
    let document = serde_json::from_slice::<Document>(bytes);
    document.is_ok_and(|document| !document.manifests.first.is_empty())
}

/// Returns the manifest of an index that is for this machine's platform, or all if none has one.
pub(super) fn for_platform(bytes: &[u8], architecture: &str) -> Vec<BlobDigest> {
    #[derive(Deserialize)]
    struct Index {
        manifests: Few<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        digest: String,
        platform: Option<Platform>,
    }
    let Ok(Index { manifests }) = serde_json::from_slice(bytes) else {
        return Vec::new();
    };
    let fits = |entry: &&Entry| {
        let platform = entry.platform.as_ref();
        platform.is_none_or(|is| is.os == "linux" && is.architecture == architecture)
    };
    let fitting = manifests.first.iter().filter(fits);
    fitting
        .filter_map(|entry| entry.digest.parse().ok())
        .collect()
}

/// Returns whether a client that sent these `Accept` headers takes this media type. One that sent
/// none takes all.
pub(super) fn accepts<'a>(mut headers: impl Iterator<Item = &'a str>, media_type: &str) -> bool {
    let essence = |text: &'a str| text.split(';').next().unwrap_or_default().trim();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    let Some(first) = headers.next() else {
        return true;
    };
    std::iter::once(first)
        .chain(headers)
        .flat_map(|header| header.split(','))
        .map(essence)
        .any(|taken| {
            matches!(taken, "*/*" | "application/*") || taken.eq_ignore_ascii_case(media_type)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::Algorithm;

    #[test]
    fn everything_that_is_named_is_found() {
        let names: Vec<_> = (0..4_u8)
            .map(|seed| BlobDigest::of(Algorithm::Sha256, &[seed]))
            .collect();
        let manifest = format!(
            r#"{{"config":{{"digest":"{}"}},"layers":[{{"digest":"{}"}},{{"digest":"md5:1"}}]}}"#,
            names[0], names[1]
        );
        assert_eq!(children(manifest.as_bytes()).as_deref(), Some(&names[..2]));
        let index = format!(
            r#"{{"manifests":[{{"digest":"{}","platform":{{"os":"linux","architecture":"amd64"}}}},
                {{"digest":"{}","platform":{{"os":"linux","architecture":"arm64"}}}}]}}"#,
            names[2], names[3]
        );
        assert_eq!(children(index.as_bytes()).as_deref(), Some(&names[2..]));
        assert_eq!(for_platform(index.as_bytes(), "arm64"), names[3..]);
        assert_eq!(children(b"<html>"), Some(Vec::new()));
        assert!(for_platform(b"7", "x").is_empty());
    }

    #[test]
    fn a_document_that_names_more_than_any_image_has_is_not_looked_into() {
        let child = format!(
            r#"{{"digest":"{}"}}"#,
            BlobDigest::of(Algorithm::Sha256, b"")
        );
        let naming = |layers: usize, blobs: usize| {
            let list = |count: usize| vec![child.as_str(); count].join(",");
            let text = format!(
                r#"{{"layers":[{}],"blobs":[{}]}}"#,
                list(layers),
                list(blobs)
            );
            children(text.as_bytes()).map(|children| children.len())
        };
        assert_eq!(naming(CHILDREN_MAX, 0), Some(CHILDREN_MAX));
        assert_eq!(naming(CHILDREN_MAX + 1, 0), None);
        assert_eq!(naming(CHILDREN_MAX, 1), None);
        assert_eq!(naming(50_000, 0), None);
    }

    #[test]
    fn accept_comes_as_lines_and_as_lists() {
        let oci = "application/vnd.oci.image.manifest.v1+json";
        let takes = |headers: &[&'static str]| accepts(headers.iter().copied(), oci);
        assert!(takes(&[]));
        assert!(takes(&["application/json", oci]));
        assert!(takes(&[
            "application/json, application/vnd.oci.image.manifest.v1+json;q=0.5"
        ]));
        assert!(takes(&["text/html, */*"]));
        assert!(!takes(&["application/json", "text/html"]));
    }
}
