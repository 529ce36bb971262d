//! Names of images.

use std::fmt;
use std::str::FromStr;

use blocks::Digest;
use distribution::{is_repository, is_tag};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The registry that a name without one means.
const HUB: &str = "docker.io";
/// The same registry under the name that old configurations use.
const HUB_BEFORE: &str = "index.docker.io";
/// Where the Hub keeps the repositories whose names have one part.
const OFFICIAL: &str = "library/";
/// The tag that a name without tag and digest means.
const LATEST: &str = "latest";
/// Bytes of registry and repository together, as engines allow them.
const NAME_MAX: usize = 255;

/// The name of an image, with all defaults filled in:
/// `[registry[:port]/]name[:tag][@digest]`.
///
/// It is displayed in full (`docker.io/library/nginx:latest`); [`familiar`](Self::familiar) is the
/// short form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Returns the host, with the port if it has one: `docker.io`, `localhost:5000`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the repository in the registry: `library/nginx`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag. There is none if there is a digest and no tag was given.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest of the manifest, if one was given.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Returns the same repository with this digest and no tag.
    #[must_use]
    pub fn at(&self, digest: Digest) -> Self {
        Self {
            tag: None,
            digest: Some(digest),
            ..self.clone()
        }
    }

    /// Returns the short form of the name: without defaults.
    #[must_use]
    pub fn familiar(&self) -> String {
        let mut text = if self.registry == HUB {
            let official = self.repository.strip_prefix(OFFICIAL);
            let name = official.filter(|name| !name.contains('/'));
            let name = name.unwrap_or(&self.repository);
            match split_registry(name) {
                (HUB, path) if path == name => name.to_owned(),
                // Alone it would mean another registry.
                _ => format!("{HUB}/{name}"),
            }
        } else {
            format!("{}/{}", self.registry, self.repository)
        };
        match (&self.tag, self.digest) {
            (Some(tag), None) if tag == LATEST => {}
            _ => text.push_str(&self.suffix()),
        }
        text
    }

    /// Returns what follows the repository: `:tag@digest`.
    fn suffix(&self) -> String {
        let tag = self.tag.as_ref().map(|tag| format!(":{tag}"));
        let digest = self.digest.map(|digest| format!("@{digest}"));
        tag.unwrap_or_default() + &digest.unwrap_or_default()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = self.suffix();
        write!(f, "{}/{}{suffix}", self.registry, self.repository)
    }
}

/// The text is not the name of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name of an image: {text:?}: {rule}")]
pub struct ParseReferenceError {
    /// The text, truncated.
    pub text: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

impl FromStr for Reference {
    type Err = ParseReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|rule| ParseReferenceError {
            text: text.chars().take(80).collect(),
            rule,
        })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            let digest = digest.parse();
            let digest = digest.map_err(|_| "the digest must be sha256: and 64 hex digits")?;
            (rest, Some(digest))
        }
        None => (text, None),
    };
    let (name, tag) = split_tag(rest);
    let (registry, path) = split_registry(name);
    let repository = if registry == HUB && !path.contains('/') {
        format!("{OFFICIAL}{path}")
    } else {
        path.to_owned()
    };
    check_registry(registry)?;
    check_repository(&repository)?;
    tag.map_or(Ok(()), check_tag)?;
    if registry.len() + repository.len() >= NAME_MAX {
        return Err("it is longer than 255 bytes");
    }
    let tag = tag.or_else(|| digest.is_none().then_some(LATEST));
    Ok(Reference {
        registry: registry.to_owned(),
        repository,
        tag: tag.map(str::to_owned),
        digest,
    })
}

/// A colon behind the last slash starts the tag; one before it belongs to the port.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    let last = text.rfind('/').map_or(0, |slash| slash + 1);
    match text[last..].find(':') {
        Some(colon) => {
            let (name, tag) = text.split_at(last + colon);
            (name, Some(&tag[1..]))
        }
        None => (text, None),
    }
}

/// The first part is a registry if it looks like a host; otherwise it belongs to the name.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((HUB | HUB_BEFORE, path)) => (HUB, path),
        Some((host, path)) if looks_like_host(host) => (host, path),
        _ => (HUB, name),
    }
}

fn looks_like_host(part: &str) -> bool {
    part == "localhost"
        || part.contains(['.', ':'])
        || part.contains(|c: char| c.is_ascii_uppercase())
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    const RULE: &str = "the registry must be a host, with or without a port";
    let (host, port) = match registry.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (registry, None),
    };
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_is_good = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(is_label),
    };
    // Numbers may have a sign, ports may not.
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let port_is_good = port.is_none_or(|port| is_number(port) && port.parse::<u16>().is_ok());
    (host_is_good && port_is_good).then_some(()).ok_or(RULE)
}

fn is_label(label: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_alphanumeric();
    let bytes = label.as_bytes();
    bytes.first().copied().is_some_and(alphanumeric)
        && bytes.last().copied().is_some_and(alphanumeric)
        && bytes.iter().all(|&c| alphanumeric(c) || c == b'-')
}

fn check_repository(repository: &str) -> Result<(), &'static str> {
    is_repository(repository).then_some(()).ok_or(
        "a name has lower-case letters and digits, separated by '.', '_', '__' or '-', and '/'",
    )
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    is_tag(tag)
        .then_some(())
        .ok_or("a tag has at most 128 letters, digits, '_', '.' and '-'")
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b";

    #[test]
    fn fills_in_what_people_leave_out() {
        for (text, full, familiar) in [
            ("nginx", "docker.io/library/nginx:latest", "nginx"),
            ("nginx:1.25", "docker.io/library/nginx:1.25", "nginx:1.25"),
            ("me/app", "docker.io/me/app:latest", "me/app"),
            ("docker.io/nginx", "docker.io/library/nginx:latest", "nginx"),
            ("index.docker.io/a/b", "docker.io/a/b:latest", "a/b"),
            ("localhost/a", "localhost/a:latest", "localhost/a"),
            ("r:5000/a:1", "r:5000/a:1", "r:5000/a:1"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a"),
            ("ghcr.io/a/b/c", "ghcr.io/a/b/c:latest", "ghcr.io/a/b/c"),
            ("Host/a", "Host/a:latest", "Host/a"),
            (
                "docker.io/a.b/c",
                "docker.io/a.b/c:latest",
                "docker.io/a.b/c",
            ),
            (
                "a__b/c-----d.e",
                "docker.io/a__b/c-----d.e:latest",
                "a__b/c-----d.e",
            ),
            ("library/a/b", "docker.io/library/a/b:latest", "library/a/b"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), full);
            assert_eq!(reference.familiar(), familiar, "{text}");
            assert_eq!(full.parse(), Ok(reference.clone()), "{text}");
            assert_eq!(familiar.parse(), Ok(reference), "{text}");
        }
    }

    #[test]
    fn a_digest_needs_no_tag_and_may_have_one() {
        let bare: Reference = format!("nginx@{DIGEST}").parse().unwrap();
        assert_eq!((bare.tag(), bare.digest()), (None, DIGEST.parse().ok()));
        assert_eq!(bare.familiar(), format!("nginx@{DIGEST}"));
        let both: Reference = format!("r.io/a:latest@{DIGEST}").parse().unwrap();
        assert_eq!(both.to_string(), format!("r.io/a:latest@{DIGEST}"));
        assert_eq!(both.familiar(), format!("r.io/a:latest@{DIGEST}"));
        assert_eq!(
            both.at(both.digest().unwrap()).to_string(),
            format!("r.io/a@{DIGEST}")
        );
    }

    #[test]
    fn nothing_else_is_a_name() {
        let long = format!("a/{}", "b".repeat(255));
        for bad in [
            "",
            ":",
            "@",
            "r.io:+5/a",
            "/",
            "a/",
            "/a",
            "a//b",
            "A",
            "a/B",
            "-a",
            "a-",
            "a..b",
            "a___b",
            "a._b",
            "a:",
            "a:-b",
            "a:b/c",
            "a@sha256:12",
            "a b",
            "é",
            "../a",
            "r:99999/a",
            "-r.io/a",
            "r..io/a",
            "http://r/a",
            "[::1/a",
            "[g::]:1/a",
            "a:\u{e9}",
            &long,
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
        assert!(
            format!("a:{}", "b".repeat(128))
                .parse::<Reference>()
                .is_ok()
        );
        assert!(
            format!("a:{}", "b".repeat(129))
                .parse::<Reference>()
                .is_err()
        );
    }
}
