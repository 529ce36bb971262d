//! The documents of an image: index, manifest, and what chains of layers are called.

use blocks::Digest;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// An index or a manifest; only what is needed of either.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    /// Of an index: the manifests, one for each platform.
    #[serde(default)]
    pub(super) manifests: Vec<Entry>,
    /// Of a manifest: the configuration.
    pub(super) config: Option<Entry>,
}

/// A document that another one points to.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) digest: Digest,
    pub(super) size: i64,
    pub(super) platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Platform {
    architecture: String,
    os: String,
}

/// A manifest that is understood.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) config: Entry,
}

impl Document {
    /// Returns the manifests of an index that run here, the best first.
    pub(super) fn for_this_platform(&self) -> impl Iterator<Item = &Entry> {
        let suits = |platform: &Option<Platform>| {
            let platform = platform.as_ref();
            platform.is_none_or(|it| it.os == "linux" && it.architecture == architecture())
        };
        self.manifests
            .iter()
            .filter(move |entry| suits(&entry.platform))
    }
}

/// This machine's architecture, as Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "loongarch64" => "loong64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Returns what containerd calls the snapshot of each layer: the digest of all up to it (OCI image
/// specification, "Layer ChainID").
#[must_use]
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Option<Digest> = None;
    diff_ids
        .iter()
        .map(|diff_id| {
            let next = chain.map_or(*diff_id, |chain| {
                let both = format!("{chain} {diff_id}");
                Digest(Sha256::digest(both).into())
            });
            chain = Some(next);
            next
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a containerd that had unpacked an image of three layers.
    #[test]
    fn chains_have_containerds_names() {
        let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().unwrap();
        let layers = [
            digest("b86dfb50503d296c9e88f27af88af2d4a03e36540f99f8159315b24199b025e6"),
            digest("5c149a18df288a8600983fac97b3ae49c1831a882c1560ecc75ed45082b6809d"),
            digest("f9994976b5f21f4e2dd9ba357de75af80bee986a25fdb0422390e4a2b14c1972"),
        ];
        let chains = [
            layers[0],
            digest("268634f32a728af957e71716cda5c0f1223992550c82783f235ac73724479af7"),
            digest("dda9b75757b7cae4916ba898e8d683d67aeb1c284797d1c385577d4457fbb022"),
        ];
        assert_eq!(chain_ids(&layers), chains);
        assert_eq!(chain_ids(&[]), []);
    }

    #[test]
    fn other_platforms_are_passed_over() {
        let entry = |byte: u8, platform: &str| {
            let digest = Digest([byte; 32]);
            format!(r#"{{"digest":"{digest}","size":1{platform}}}"#)
        };
        let ours = format!(
            r#","platform":{{"os":"linux","architecture":"{}"}}"#,
            architecture()
        );
        let other = r#","platform":{"os":"linux","architecture":"s390x"}"#;
        let attestation = r#","platform":{"os":"unknown","architecture":"unknown"}"#;
        let text = format!(
            r#"{{"manifests":[{},{},{}]}}"#,
            entry(1, other),
            entry(2, &ours),
            entry(3, attestation)
        );
        let index: Document = serde_json::from_str(&text).unwrap();
        let found: Vec<_> = index.for_this_platform().map(|it| it.digest.0[0]).collect();
        assert_eq!(found, [2]);
    }
}
