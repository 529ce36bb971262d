//! How a block image is opened: for a mount of it, and for a device.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// What the source of a mount begins with when it is a block image.
const PREFIX: &str = "overlaybd:";

/// Most bytes of a cache unless it is said.
const CACHE_BYTES: u64 = 4 << 30;

/// How many milliseconds a read may wait unless it is said: a registry restarts within that.
const READ_DEADLINE_MS: u64 = 60_000;

/// Where layers come from that are not on this machine, and what is fetched when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Where what is fetched is kept; absolute. Nothing is fetched without it.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// Most bytes of the cache.
    #[serde(default = "cache_bytes")]
    pub cache_bytes: u64,
    /// What is fetched that nobody has read yet.
    #[serde(default)]
    pub background: Prefetch,
    /// Whether what the store knows of the start of the layers is fetched first.
    #[serde(default = "yes")]
    pub plan: bool,
    /// Whether the start is recorded, if no plan of it is known. A file only: `POST /v1/devices/{id}/plan` keeps it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub record: bool,
    /// How registries are talked to.
    #[serde(default)]
    pub registry: RegistrySpec,
    /// How many milliseconds a read may wait for registries and mirrors, whatever is tried meanwhile; also opening the image.
    /// That of the first image of a cache is for all of them.
    #[serde(
        default = "read_deadline_ms",
        skip_serializing_if = "is_usual_deadline"
    )]
    pub read_deadline_ms: u64,
    /// The addresses of mirrors of the registry, which are asked before it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
}

/// What is fetched of layers that nobody has read yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// The plan.
    Plan,
    /// The plan, and then all of each layer.
    #[default]
    Everything,
}

/// What is known of the start of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartPlanState {
    /// Nothing.
    #[default]
    Unknown,
    /// There was a plan, which is fetched first.
    Planned,
    /// There was one, and all of it has been fetched.
    Fetched,
    /// There was none, and what is read is being recorded.
    Recording,
    /// What was read became a plan.
    Recorded,
}

/// How the start of an image goes, as its worker tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartStatus {
    /// What is known of it.
    pub plan: StartPlanState,
    /// Bytes that were recorded, if it is being recorded.
    #[serde(default)]
    pub recorded_bytes: u64,
    /// For how many milliseconds nothing new was read, if it is being recorded and something was.
    #[serde(default)]
    pub quiet_ms: Option<u64>,
}

/// An image that is served, as its worker tells. Counters of a cache are for all images that share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageStatus {
    /// How its start goes.
    pub start: StartStatus,
    /// Requests to registries.
    pub fetches: u64,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
    /// Bytes in the cache.
    pub cached_bytes: u64,
}

/// A plan of a start that was recorded and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPlan {
    /// Its file.
    pub file: PathBuf,
    /// Bytes that are fetched by it.
    pub bytes: u64,
}

/// How registries are talked to. It has no secrets: a login is in a file that the process reads that fetches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrySpec {
    /// Plain HTTP; the default for registries on the loopback address.
    pub plain_http: bool,
    /// A file with authorities (PEM) that are trusted besides the system's; absolute.
    pub ca: Option<PathBuf>,
    /// A file with logins, as `docker login` writes it, of which the one of the registry is used; absolute. The default is
    /// that of the user of the process that fetches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<PathBuf>,
    /// Hosts that may be sent the password, besides those of the registry's domain.
    pub token_hosts: Vec<String>,
    /// Networks that redirects may lead into, though they are further inside than the registry.
    pub redirect_networks: Vec<String>,
}

impl Default for ImageSpec {
    fn default() -> Self {
        Self {
            cache: None,
            cache_bytes: CACHE_BYTES,
            background: Prefetch::default(),
            plan: true,
            record: false,
            registry: RegistrySpec::default(),
            read_deadline_ms: READ_DEADLINE_MS,
            mirrors: Vec::new(),
        }
    }
}

impl ImageSpec {
    /// Returns how long a read may wait for registries and mirrors.
    #[must_use]
    pub const fn read_deadline(&self) -> Duration {
        Duration::from_millis(self.read_deadline_ms)
    }

    /// Returns the image that a mount's source names, if it is one.
    #[must_use]
    pub fn of_source(source: &Path) -> Option<&Path> {
        let image = source.to_str()?.strip_prefix(PREFIX)?;
        Some(Path::new(image))
    }

    /// Returns how a mount names an image.
    #[must_use]
    pub fn source(image: &Path) -> PathBuf {
        let mut source = std::ffi::OsString::from(PREFIX);
        source.push(image);
        source.into()
    }

    /// Checks its paths, and that of the image.
    ///
    /// # Errors
    /// If one is not absolute.
    pub fn check(&self, image: &Path) -> anyhow::Result<()> {
        let paths = [
            ("image", Some(image)),
            ("cache", self.cache.as_deref()),
            ("file of authorities", self.registry.ca.as_deref()),
            ("file of logins", self.registry.login.as_deref()),
        ];
        for (what, path) in paths {
            let is_absolute = path.is_none_or(Path::is_absolute);
            let path = path.unwrap_or(Path::new("")).display();
            ensure!(is_absolute, "the {what} {path} is not absolute");
        }
        Ok(())
    }
}

const fn cache_bytes() -> u64 {
    CACHE_BYTES
}

const fn read_deadline_ms() -> u64 {
    READ_DEADLINE_MS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_usual_deadline(value: &u64) -> bool {
    *value == READ_DEADLINE_MS
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_its_image() {
        let source = ImageSpec::source(Path::new("/images/app"));
        assert_eq!(source, Path::new("overlaybd:/images/app"));
        assert_eq!(
            ImageSpec::of_source(&source),
            Some(Path::new("/images/app"))
        );
        assert_eq!(ImageSpec::of_source(Path::new("/images/app")), None);
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let spec: ImageSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, ImageSpec::default());
        assert!(spec.check(Path::new("/a")).is_ok() && spec.check(Path::new("a")).is_err());
        let cache = r#"{"cache": "here"}"#;
        let spec: ImageSpec = serde_json::from_str(cache).unwrap();
        let why = spec.check(Path::new("/a")).unwrap_err().to_string();
        assert!(why.contains("cache here"), "{why}");
    }
}
