//! Parses the path of a request.

use distribution::{is_repository, is_tag};

use crate::blobs::BlobDigest;

/// Bytes of a repository's name; engines allow no more.
const REPOSITORY_MAX: usize = 255;

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The check whether this is a registry.
    Base,
    /// A manifest.
    Manifest(String, Version),
    /// A blob.
    Blob(String, BlobDigest),
    /// The names of all tags.
    Tags(String),
    /// What refers to a manifest.
    Referrers(String, BlobDigest),
}

/// A reference to a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The one that a tag points to.
    Tag(String),
    /// The one that has this digest.
    Digest(BlobDigest),
}

impl Route {
    /// Parses a path. `None` if it is not one of a registry.
    pub(super) fn parse(path: &str) -> Option<Self> {
        // The only character of a name that some clients escape.
        let path = path.replace("%3A", ":").replace("%3a", ":");
        let rest = path.strip_prefix("/v2")?;
        if matches!(rest, "" | "/") {
            return Some(Self::Base);
        }
        let rest = rest.strip_prefix('/')?;
        if let Some(repository) = rest.strip_suffix("/tags/list") {
            return Some(Self::Tags(name(repository)?));
        }
        let (rest, last) = rest.rsplit_once('/')?;
        let (repository, kind) = rest.rsplit_once('/')?;
        let repository = name(repository)?;
        match kind {
            "manifests" if last.contains(':') => Some(Self::Manifest(
                repository,
                Version::Digest(last.parse().ok()?),
            )),
            "manifests" if is_tag(last) => {
                Some(Self::Manifest(repository, Version::Tag(last.to_owned())))
            }
            "blobs" => Some(Self::Blob(repository, last.parse().ok()?)),
            "referrers" => Some(Self::Referrers(repository, last.parse().ok()?)),
            _ => None,
        }
    }

    /// Returns the repository, which may begin with the name of a registry.
    pub(super) const fn repository(&self) -> Option<&String> {
        match self {
            Self::Base => None,
            Self::Manifest(name, _)
            | Self::Blob(name, _)
            | Self::Tags(name)
            | Self::Referrers(name, _) => Some(name),
        }
    }
}

/// Returns the error code for a "not found" at this path.
pub(super) fn unknown(path: &str) -> &'static str {
    match path.rsplit('/').nth(1) {
        Some("manifests") => "MANIFEST_UNKNOWN",
        Some("blobs") => "BLOB_UNKNOWN",
        // The registry has no such list for anybody. "No such repository" would keep clients from
        // looking for the tag that stands in for it.
        Some("referrers") => "UNSUPPORTED",
        _ => "NAME_UNKNOWN",
    }
}

/// A repository, with or without a registry before it, whose port no repository's name has.
fn name(text: &str) -> Option<String> {
    let (registry, repository) = match text.split_once('/') {
        Some((first, rest)) if first.contains([':', '.']) => (first, rest),
        _ => ("", text),
    };
    let of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    // No registry's name begins with a dot: `..` is none.
    let is_host = registry.chars().all(of_host) && !registry.starts_with(['.', '-', ':']);
    let fits = text.len() <= REPOSITORY_MAX;
    (fits && is_host && is_repository(repository)).then(|| text.to_owned())
}

/// Returns the value of a parameter of a query; names of registries need no escapes but `:`.
pub fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(value.replace("%3A", ":").replace("%3a", ":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b";

    #[test]
    fn paths_as_clients_send_them() {
        let digest: BlobDigest = DIGEST.parse().unwrap();
        for (path, route) in [
            ("/v2/".to_owned(), Route::Base),
            ("/v2".to_owned(), Route::Base),
            (
                "/v2/library/deb/manifests/v1".to_owned(),
                Route::Manifest("library/deb".to_owned(), Version::Tag("v1".to_owned())),
            ),
            (
                format!("/v2/a/manifests/{}", DIGEST.replace(':', "%3A")),
                Route::Manifest("a".to_owned(), Version::Digest(digest.clone())),
            ),
            (
                format!("/v2/r:5000/a/blobs/blobs/{DIGEST}"),
                Route::Blob("r:5000/a/blobs".to_owned(), digest.clone()),
            ),
            (
                "/v2/manifests/tags/list".to_owned(),
                Route::Tags("manifests".to_owned()),
            ),
            (
                format!("/v2/a/b/referrers/{DIGEST}"),
                Route::Referrers("a/b".to_owned(), digest),
            ),
        ] {
            assert_eq!(Route::parse(&path), Some(route), "{path}");
        }
    }

    #[test]
    fn nothing_else_is_there() {
        for path in [
            "/",
            "/v1/",
            "/v2/a",
            "/v2x/",
            "/v2/a/manifests/",
            "/v2/a/manifests/sha256:1",
            "/v2/a/blobs/latest",
            "/v2/../a/manifests/v1",
            "/v2/A/manifests/v1",
            "/v2//manifests/v1",
            "/v2/a/blobs/uploads/",
            "/v2/r:5000/../a/manifests/v1",
            "/v2/_catalog",
        ] {
            assert_eq!(Route::parse(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_not_there_is_called_by_what_it_is() {
        for (path, code) in [
            ("/v2/a/manifests/v1", "MANIFEST_UNKNOWN"),
            ("/v2/a/manifests/.bad", "MANIFEST_UNKNOWN"),
            ("/v2/manifests/blobs/sha256:1", "BLOB_UNKNOWN"),
            ("/v2/a/referrers/sha256:1", "UNSUPPORTED"),
            ("/v2/a/tags/list", "NAME_UNKNOWN"),
            ("/", "NAME_UNKNOWN"),
        ] {
            assert_eq!(unknown(path), code, "{path}");
        }
    }

    #[test]
    fn parameters_are_found_by_name() {
        let query = Some("n=5&ns=r%3A5000&last=a");
        assert_eq!(parameter(query, "ns").as_deref(), Some("r:5000"));
        assert_eq!(parameter(query, "s"), None);
        assert_eq!(parameter(None, "ns"), None);
    }
}
