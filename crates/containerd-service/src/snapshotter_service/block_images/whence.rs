//! Where the layers of an image that is being pulled come from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blockimages::ContentRoot;
use blockimages::convert::content_of;
use blocks::Digest;
use engine::EngineError;
use engine::containerd::{Containerd, PulledManifest};
use oci::registry::is_loopback;
use oci::{Manifest, Reference};
use parking_lot::Mutex;

/// How long an answer counts: the layers of one image are asked for within it.
const FRESH: Duration = Duration::from_secs(10);
/// Which snapshotter does not matter for what is asked.
const ANY: &str = "yolofs";
/// Most answers that are kept: a few images with many layers.
const KEPT_MAX: usize = 1024;

/// Asks containerd for the repositories of blobs.
#[derive(Debug)]
pub(super) struct Whence {
    containerd: PathBuf,
    plain_http: bool,
    /// By namespace and blob.
    known: Mutex<HashMap<(String, Digest), (String, Instant)>>,
}

impl Whence {
    pub(super) fn new(containerd: &Path, plain_http: bool) -> Self {
        Self {
            containerd: containerd.to_owned(),
            plain_http,
            known: Mutex::default(),
        }
    }

    /// Returns the address of the blobs that a blob is among, for the snapshot `key` that it is pulled for. What cannot
    /// be found out is downloaded.
    pub(super) fn blobs_of(&self, key: &str, blob: &Digest) -> Option<String> {
        let namespace = key.split('/').next().unwrap_or_default().to_owned();
        if let Some((blobs, at)) = self.known.lock().get(&(namespace.clone(), *blob))
            && at.elapsed() < FRESH
        {
            return Some(blobs.clone());
        }
        let found = self.ask(&namespace, blob).unwrap_or_else(|error| {
            log::warn!("the layer {blob} is downloaded, for its registry is not known: {error:#}");
            Vec::new()
        });
        let mut known = self.known.lock();
        if known.len() >= KEPT_MAX {
            known.clear();
        }
        let now = Instant::now();
        for (blob, blobs) in found {
            known.insert((namespace.clone(), blob), (blobs, now));
        }
        known
            .get(&(namespace, *blob))
            .map(|(blobs, _)| blobs.clone())
    }

    /// Returns what the manifest says of the image with these layers, the lowest first, in the namespace that the snapshot
    /// `name` is in, or that of one that has them below others; `None` if that is not known.
    pub(super) fn manifest_of(&self, name: &str, layers: &[Option<Digest>]) -> Option<Said> {
        let layers: Vec<Digest> = layers.iter().copied().collect::<Option<_>>()?;
        let namespace = name.split('/').next().unwrap_or_default();
        let top = layers.last()?;
        let found = Containerd::connect(&self.containerd, namespace, ANY)
            .and_then(|containerd| Ok((containerd.manifests_with(top)?, containerd)));
        let (manifests, containerd) = found
            .inspect_err(|error| {
                log::warn!("no plan is looked for, since the manifest is not known: {error:#}");
            })
            .ok()?;
        let pulled = on_layers(&manifests, &layers)?;
        let manifest = containerd.pulled(pulled).inspect_err(|error| {
            log::warn!(
                "the content of layers is not known, since their manifest is not: {error:#}"
            );
        });
        Some(Said {
            manifest: pulled.digest?,
            contents: manifest
                .map_or_else(|_| Vec::new(), |manifest| contents_of(&manifest, &layers)),
        })
    }

    /// Returns an address of blobs with the port of the registry, which containerd notes only in the names of images:
    /// those of the namespace that the snapshot `name` is in. `blob` is one of them.
    pub(super) fn with_port(&self, name: &str, blob: Option<Digest>, blobs: String) -> String {
        let namespace = name.split('/').next().unwrap_or_default();
        let found = Containerd::connect(&self.containerd, namespace, ANY)
            .and_then(|containerd| self.ported(&containerd, blob, &blobs));
        let found = found.unwrap_or_else(|error| {
            log::warn!("cannot look for the registry's port of {blobs}: {error:#}");
            None
        });
        found.unwrap_or(blobs)
    }

    fn ported(
        &self,
        containerd: &Containerd,
        blob: Option<Digest>,
        blobs: &str,
    ) -> Result<Option<String>, EngineError> {
        let names = containerd.names()?.into_iter();
        let places = names.filter_map(|image| {
            let parsed: Reference = image.reference.parse().ok()?;
            Some((self.address_of(&parsed, blobs)?, image.reference))
        });
        let mut places: Vec<_> = places.collect();
        let is_one = places.iter().all(|(address, _)| *address == places[0].0);
        if let (false, Some(blob)) = (is_one, blob) {
            // Several registries of one host have a repository of this name: the image tells which of them has the blob.
            let with_blob = containerd.manifests_with(&blob)?.into_iter();
            let with_blob: Vec<_> = with_blob.filter_map(|manifest| manifest.digest).collect();
            let has_blob = |(_, image): &&(String, String)| {
                let image = containerd.described(image);
                image.is_ok_and(|image| image.is_some_and(|its| with_blob.contains(&its.manifest)))
            };
            if let Some((address, _)) = places.iter().find(has_blob) {
                return Ok(Some(address.clone()));
            }
        }
        Ok((!places.is_empty()).then(|| places.swap_remove(0).0))
    }

    /// Returns an address of blobs with the port of the registry that an image is pulled from: containerd has the name of
    /// the image only when all of it is unpacked, and usual layers above are unpacked on the device.
    pub(super) fn with_port_of(&self, image: Option<&str>, blobs: String) -> String {
        let image = image.and_then(|image| image.parse().ok());
        let found = image.and_then(|image: Reference| self.address_of(&image, &blobs));
        found.unwrap_or(blobs)
    }

    /// Returns the address of the blobs of an image's repository, if it is `blobs` but for the port.
    fn address_of(&self, image: &Reference, blobs: &str) -> Option<String> {
        let (registry, repository) = (image.registry(), image.repository());
        let of = |registry: &str| address(&format!("{registry}/{repository}"), self.plain_http);
        let is_same = of(without_port(registry)).as_deref() == Some(blobs);
        is_same.then(|| of(registry)).flatten()
    }

    /// Returns the addresses of all layers of the images that have a blob.
    fn ask(&self, namespace: &str, blob: &Digest) -> anyhow::Result<Vec<(Digest, String)>> {
        let containerd = Containerd::connect(&self.containerd, namespace, ANY)?;
        let mut found = Vec::new();
        for manifest in containerd.manifests_with(blob)? {
            if let Some(repository) = manifest.repositories.first()
                && let Some(blobs) = address(repository, self.plain_http)
            {
                let layers = manifest.layers.into_iter();
                found.extend(layers.map(|layer| (layer, blobs.clone())));
            }
        }
        Ok(found)
    }
}

/// What a manifest says of an image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// Its digest.
    pub(super) manifest: Digest,
    /// The content of each layer, the lowest first, as far as it is known.
    pub(super) contents: Vec<Option<ContentRoot>>,
}

/// Returns what a manifest says of the content of its lowest layers, if it has these.
fn contents_of(manifest: &Manifest, layers: &[Digest]) -> Vec<Option<ContentRoot>> {
    let both = manifest.layers.iter().zip(layers);
    both.map(|(said, layer)| content_of(said).filter(|_| said.digest == *layer))
        .collect()
}

/// Returns the manifest with just these layers, or else one that has them below others: what an engine committed is
/// often the only image of a machine with its block layers.
fn on_layers<'a>(manifests: &'a [PulledManifest], layers: &[Digest]) -> Option<&'a PulledManifest> {
    let above = manifests
        .iter()
        .filter(|manifest| manifest.layers.starts_with(layers));
    above.min_by_key(|manifest| manifest.layers.len())
}

fn without_port(registry: &str) -> &str {
    match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    }
}

/// Returns where the blobs of a repository are, as overlaybd's configurations have it.
fn address(repository: &str, plain_http: bool) -> Option<String> {
    let (registry, name) = repository.split_once('/')?;
    let scheme = if plain_http || is_loopback(registry) {
        "http"
    } else {
        "https"
    };
    Some(format!("{scheme}://{registry}/v2/{name}/blobs"))
}

#[cfg(test)]
mod tests {
    use blockimages::convert::CONTENT_ROOT;
    use oci::Descriptor;

    use super::*;

    #[test]
    fn a_repository_has_an_address_of_blobs() {
        let cases = [
            (
                "127.0.0.1:5000/a/b",
                false,
                "http://127.0.0.1:5000/v2/a/b/blobs",
            ),
            (
                "docker.io/library/nginx",
                false,
                "https://docker.io/v2/library/nginx/blobs",
            ),
            (
                "registry.test/app",
                true,
                "http://registry.test/v2/app/blobs",
            ),
        ];
        for (repository, plain_http, expected) in cases {
            let found = address(repository, plain_http).unwrap();
            assert_eq!(found, expected);
            // It names the same repository to whoever fetches.
            let reference = blockimages::repository_of(&found).unwrap();
            assert_eq!(
                format!("{}/{}", reference.registry(), reference.repository()),
                repository
            );
        }
        assert_eq!(address("app", false), None);
    }

    #[test]
    fn the_port_is_that_of_the_image() {
        let whence = Whence::new(Path::new("/nonexistent"), false);
        let found = |image: &str, blobs: &str| whence.address_of(&image.parse().unwrap(), blobs);
        let blobs = "http://127.0.0.1/v2/a/b/blobs";
        let with_port = found("127.0.0.1:5000/a/b:1", blobs);
        assert_eq!(
            with_port.as_deref(),
            Some("http://127.0.0.1:5000/v2/a/b/blobs")
        );
        for other in [
            "127.0.0.1:5000/a/c:1",
            "127.0.0.2:5000/a/b:1",
            "docker.io/a/b:1",
        ] {
            assert_eq!(found(other, blobs), None, "{other}");
        }
        let same = "https://registry.test/v2/app/blobs";
        assert_eq!(found("registry.test/app:1", same).as_deref(), Some(same));
        // The image that is pulled tells it, too, if it is of this repository.
        let pulled = |image| whence.with_port_of(image, blobs.to_owned());
        assert_eq!(Some(pulled(Some("127.0.0.1:5000/a/b:1"))), with_port);
        for other in [None, Some("127.0.0.1:5000/a/c:1"), Some("no name")] {
            assert_eq!(pulled(other), blobs);
        }
        // Who cannot be asked changes nothing.
        assert_eq!(whence.with_port("default/1/x", None, same.to_owned()), same);
    }

    #[test]
    fn an_image_is_that_with_just_the_layers_or_one_above_them() {
        let manifest = |number: u8, layers: &[u8]| PulledManifest {
            digest: Some(Digest([number; 32])),
            size: 0,
            repositories: Vec::new(),
            layers: layers.iter().map(|layer| Digest([*layer; 32])).collect(),
        };
        let committed = [manifest(1, &[7, 8, 9, 10]), manifest(2, &[7, 8, 9])];
        let layers = [7, 8].map(|layer| Digest([layer; 32]));
        assert_eq!(on_layers(&committed, &layers), Some(&committed[1]));
        let all = [&committed[..], &[manifest(3, &[7, 8])]].concat();
        assert_eq!(on_layers(&all, &layers), Some(&all[2]));
        let others = [manifest(4, &[6, 7, 8]), manifest(5, &[7])];
        assert_eq!(on_layers(&others, &layers), None);
    }

    #[test]
    fn the_content_of_layers_is_what_their_manifest_says() {
        let root = |number: u8| ContentRoot([number; 32]);
        let said = [
            root(1).to_string(),
            "nothing".to_owned(),
            root(3).to_string(),
        ];
        let layers = (1..).zip(said).map(|(number, said)| {
            let mut layer = Descriptor::new("", Digest([number; 32]), 1);
            layer.annotations.insert(CONTENT_ROOT.to_owned(), said);
            layer
        });
        let config = Descriptor::new("", Digest([0; 32]), 1);
        let subject = config.clone();
        let manifest = Manifest::of_artifact("", config, layers.collect(), subject);
        let of = |layers: &[u8]| {
            let layers: Vec<_> = layers.iter().map(|layer| Digest([*layer; 32])).collect();
            contents_of(&manifest, &layers)
        };
        assert_eq!(of(&[1, 2, 3]), [Some(root(1)), None, Some(root(3))]);
        assert_eq!(of(&[1, 2]), [Some(root(1)), None]);
        assert_eq!(of(&[3, 2, 1]), [None; 3]);
    }

    #[test]
    fn nobody_tells_nothing() {
        let whence = Whence::new(Path::new("/nonexistent"), false);
        assert_eq!(
            whence.manifest_of("default/1/x", &[Some(Digest([1; 32]))]),
            None
        );
        assert_eq!(whence.blobs_of("default/1/x", &Digest([1; 32])), None);
    }
}
