//! The allowed hosts of a registry's token service, with and without credentials.

use std::net::IpAddr;

use reqwest::Url;

/// The hosts that a registry may name for its tokens. Requests to them contain the password.
#[derive(Clone, Debug)]
pub struct Realms {
    registry: Url,
    /// Hosts that were allowed by name.
    hosts: Vec<String>,
}

/// Whether a name and a password go with a request for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// They do.
    Login,
    /// Nothing that is a secret.
    Nothing,
}

/// Why a realm is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RealmError {
    /// It is not a URL.
    #[error("the realm of a token is a URL with http:// or https://, and no password in it")]
    Url,
    /// The registry uses TLS, and the realm does not.
    #[error("credentials are not sent without TLS")]
    NoTls,
    /// It is not in the registry's domain.
    #[error("{host} is not in the domain of {registry}")]
    Elsewhere {
        /// The named host.
        host: String,
        /// The registry's host.
        registry: String,
    },
}

impl Realms {
    /// Makes the rule of a registry; `hosts` may issue its tokens besides those of its own domain.
    #[must_use]
    pub const fn new(registry: Url, hosts: Vec<String>) -> Self {
        Self { registry, hosts }
    }

    /// Returns the URL of a realm, if it is allowed: without credentials wherever a
    /// registry may redirect to; with credentials at the registry's host, in its domain, or at
    /// a host that was allowed by name.
    ///
    /// # Errors
    /// If it is not allowed.
    pub fn check(&self, realm: &str, carries: Carries) -> Result<Url, RealmError> {
        let url = Url::parse(realm).map_err(|_| RealmError::Url)?;
        let is_bare = url.username().is_empty() && url.password().is_none();
        let host = url.host_str().filter(|_| is_bare);
        let (Some(host), Some(own)) = (host, self.registry.host_str()) else {
            return Err(RealmError::Url);
        };
        match url.scheme() {
            "https" => {}
            "http" if self.registry.scheme() == "http" => {}
            "http" => return Err(RealmError::NoTls),
            _ => return Err(RealmError::Url),
        }
        let is_free = carries == Carries::Nothing || self.hosts.iter().any(|known| known == host);
        if is_free || host == own || is_in_domain(host, own) {
            return Ok(url);
        }
        Err(RealmError::Elsewhere {
            host: host.to_owned(),
            registry: own.to_owned(),
        })
    }
}

/// Whether a host is in the domain that a registry is in: `gitlab.com` for `registry.gitlab.com`, and
/// none for `ghcr.io`.
fn is_in_domain(host: &str, registry: &str) -> bool {
    let is_name = registry.parse::<IpAddr>().is_err();
    let parent = registry.split_once('.').map(|(_, parent)| parent);
    let parent = parent.filter(|parent| is_name && parent.contains('.'));
    parent.is_some_and(|parent| {
        let below = host.strip_suffix(parent);
        below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(registry: &str, realm: &str, carries: Carries) -> Result<Url, RealmError> {
        let hosts = vec!["sso.example.org".to_owned()];
        Realms::new(registry.parse().unwrap(), hosts).check(realm, carries)
    }

    #[test]
    fn passwords_stay_in_the_domain() {
        let hub = "https://registry-1.docker.io";
        for (registry, realm) in [
            (hub, "https://auth.docker.io/token"),
            (hub, "https://docker.io/token"),
            ("https://ghcr.io", "https://ghcr.io/token"),
            ("https://registry.gitlab.com", "https://gitlab.com/jwt/auth"),
            (hub, "https://sso.example.org/token"),
            ("http://127.0.0.1:5000", "http://127.0.0.1:5001/token"),
            ("http://127.0.0.1:5000", "https://127.0.0.1/token"),
        ] {
            let found = check(registry, realm, Carries::Login);
            assert!(found.is_ok(), "{registry} {realm}");
        }
        for (registry, realm) in [
            (hub, "https://auth.evil.io/token"),
            (hub, "https://evildocker.io/token"),
            ("https://ghcr.io", "https://evil.io/token"),
            ("http://10.0.0.1", "http://11.0.0.1/token"),
            ("http://10.0.0.1", "http://1.0.0.1/token"),
            ("http://[fd00::1]", "http://[fd00::2]/token"),
        ] {
            let found = check(registry, realm, Carries::Login);
            assert!(
                matches!(found, Err(RealmError::Elsewhere { .. })),
                "{registry} {realm}: {found:?}"
            );
            assert!(check(registry, realm, Carries::Nothing).is_ok());
        }
    }

    #[test]
    fn nothing_goes_without_tls_that_came_with_it() {
        for carries in [Carries::Login, Carries::Nothing] {
            let found = check("https://r.io", "http://r.io/token", carries);
            assert_eq!(found, Err(RealmError::NoTls));
            for bad in [
                "/token",
                "ftp://r.io/",
                "https://u:p@r.io/",
                "https://u@r.io/",
            ] {
                let found = check("https://r.io", bad, carries);
                assert_eq!(found, Err(RealmError::Url), "{bad}");
            }
        }
    }
}
