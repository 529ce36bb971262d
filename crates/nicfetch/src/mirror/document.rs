//! Manifests and indexes, as far as a mirror looks into them.

use serde::Deserialize;

use crate::blobs::BlobDigest;

/// The longest manifest: what containerd takes.
pub(super) const MANIFEST_MAX: usize = 4 * 1048 * 1048;

/// What the upstream is told that we take. A registry that is told less may convert, and what it
/// sends then has another digest.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v1+prettyjws, \
    application/json, */*";

#[derive(Deserialize)]
struct Document {
    config: Option<Child>,
    #[serde(default)]
    layers: Vec<Child>,
    #[serde(default)]
    blobs: Vec<Child>,
    #[serde(default)]
    manifests: Vec<Child>,
}

#[derive(Deserialize)]
struct Child {
    digest: String,
}

/// Returns what a manifest or an index names. What cannot be decoded names nothing: the mirror
/// serves it as it is, and lets the client complain.
pub(super) fn children(bytes: &[u8]) -> Vec<BlobDigest> {
    let Ok(document) = serde_json::from_slice::<Document>(bytes) else {
        return Vec::new();
    };
    let lists = [document.layers, document.blobs, document.manifests];
    let all = document
        .config
        .into_iter()
        .chain(lists.into_iter().flatten());
    all.filter_map(|child| child.digest.parse().ok()).collect()
}

/// Returns whether a document lists manifests.
pub(super) fn is_index(bytes: &[u8]) -> bool {
    let document = serde_json::from_slice::<Document>(bytes);
    document.is_ok_and(|document| !document.manifests.is_empty())
}

/// Returns the manifest of an index that is for this machine's kind, or all if none says so.
pub(super) fn for_platform(bytes: &[u8], architecture: &str) -> Vec<BlobDigest> {
    #[derive(Deserialize)]
    struct Index {
        manifests: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        digest: String,
        platform: Option<Platform>,
    }
    #[derive(Deserialize)]
    struct Platform {
        architecture: String,
        os: String,
    }
    let Ok(Index { manifests }) = serde_json::from_slice(bytes) else {
        return Vec::new();
    };
    let fits = |entry: &&Entry| {
        let platform = entry.platform.as_ref();
        platform.is_none_or(|is| is.os == "linux" && is.architecture == architecture)
    };
    let fitting = manifests.iter().filter(fits);
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
        assert_eq!(children(manifest.as_bytes()), names[..2]);
        let index = format!(
            r#"{{"manifests":[{{"digest":"{}","platform":{{"os":"linux","architecture":"amd64"}}}},
                {{"digest":"{}","platform":{{"os":"linux","architecture":"arm64"}}}}]}}"#,
            names[2], names[3]
        );
        assert_eq!(children(index.as_bytes()), names[2..]);
        assert_eq!(for_platform(index.as_bytes(), "arm64"), names[3..]);
        assert!(children(b"<html>").is_empty() && for_platform(b"7", "x").is_empty());
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
