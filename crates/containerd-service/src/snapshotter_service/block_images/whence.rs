//! Where the layers of an image that is being pulled come from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blocks::Digest;
use engine::containerd::Containerd;
use oci::Reference;
use oci::registry::is_loopback;
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

    /// Returns the manifest of the image with these layers, the lowest first, in the namespace that the snapshot `name` is
    /// in; `None` if that is not known.
    pub(super) fn manifest_of(&self, name: &str, layers: &[Option<Digest>]) -> Option<Digest> {
        let layers: Vec<Digest> = layers.iter().copied().collect::<Option<_>>()?;
        let namespace = name.split('/').next().unwrap_or_default();
        let top = layers.last()?;
        let manifests = Containerd::connect(&self.containerd, namespace, ANY)
            .and_then(|containerd| containerd.manifests_with(top));
        let manifests = manifests.unwrap_or_else(|error| {
            log::warn!("no plan is looked for, since the manifest is not known: {error:#}");
            Vec::new()
        });
        let mut same = manifests
            .iter()
            .filter(|manifest| manifest.layers == layers);
        same.find_map(|manifest| manifest.digest)
    }

    /// Returns an address of blobs with the port of the registry, which containerd notes only in the names of images:
    /// those of the namespace that the snapshot `name` is in.
    pub(super) fn with_port(&self, name: &str, blobs: String) -> String {
        let namespace = name.split('/').next().unwrap_or_default();
        let names = Containerd::connect(&self.containerd, namespace, ANY)
            .and_then(|containerd| containerd.names());
        let names = names.unwrap_or_else(|error| {
            log::warn!("cannot look for the registry's port of {blobs}: {error:#}");
            Vec::new()
        });
        let names = names
            .iter()
            .filter_map(|image| image.reference.parse().ok());
        let mut found = names.filter_map(|image: Reference| self.address_of(&image, &blobs));
        found.next().unwrap_or(blobs)
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
        // Who cannot be asked changes nothing.
        assert_eq!(whence.with_port("default/1/x", same.to_owned()), same);
    }

    #[test]
    fn nobody_tells_nothing() {
        let whence = Whence::new(Path::new("/nonexistent"), false);
        assert_eq!(whence.blobs_of("default/1/x", &Digest([1; 32])), None);
    }
}
