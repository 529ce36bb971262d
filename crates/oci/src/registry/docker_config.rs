//! The configuration file of `docker login`: `config.json`.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::Deserialize;

use super::Credentials;
use crate::ImageError;
use crate::error::decode;

/// Bytes of such a file; one login takes some hundred.
const CONFIG_MAX: usize = 4 << 20;
/// The Hub under the name that `docker login` still writes.
const HUB_KEY: &str = "https://index.docker.io/v1/";

/// The credentials for each registry.
#[derive(Debug, Default, Deserialize)]
pub struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct Login {
    /// `name:password` in base64.
    #[serde(default)]
    auth: Option<String>,
}

/// Where the credentials for a registry are.
#[derive(Debug, PartialEq, Eq)]
pub enum Known {
    /// In the file.
    Here(Credentials),
    /// With a credential helper: `docker-credential-NAME get`, for `server`.
    Helper {
        /// The end of the program's name.
        name: String,
        /// The name of the server.
        server: String,
    },
    /// Nowhere.
    Nowhere,
}

impl DockerConfig {
    /// Decodes the file.
    ///
    /// # Errors
    /// If it is not what `docker login` writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        if bytes.len() > CONFIG_MAX {
            return Err(ImageError::TooLarge {
                what: "configuration of docker",
                bytes: bytes.len() as u64,
                limit: CONFIG_MAX as u64,
            });
        }
        decode("configuration of docker", bytes)
    }

    /// Returns where the credentials for a registry (`docker.io`, `localhost:5000`) are.
    #[must_use]
    pub fn find(&self, registry: &str) -> Known {
        let is_hub = registry == "docker.io";
        let key = if is_hub { HUB_KEY } else { registry };
        let helper = |name: &String| Known::Helper {
            name: name.clone(),
            server: key.to_owned(),
        };
        if let Some(name) = self.helpers.get(registry).filter(|name| is_program(name)) {
            return helper(name);
        }
        let entries = self
            .auths
            .iter()
            .filter(|(known, _)| known.as_str() == key || host_of(known) == registry);
        let mut logins = entries.filter_map(|(_, login)| login.credentials());
        match (logins.next(), &self.store) {
            (Some(credentials), _) => Known::Here(credentials),
            (None, Some(name)) if is_program(name) => helper(name),
            (None, _) => Known::Nowhere,
        }
    }
}

impl Login {
    fn credentials(&self) -> Option<Credentials> {
        let auth = self.auth.as_ref()?.trim();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(auth)
            .ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (username, password) = text.split_once(':')?;
        Some(Credentials {
            username: username.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
        })
    }
}

/// Old entries are URLs.
fn host_of(key: &str) -> &str {
    let key = key.strip_prefix("https://").unwrap_or(key);
    let key = key.strip_prefix("http://").unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

/// The name becomes a part of that of a program: it does not lead to another directory.
fn is_program(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(is_plain)
}

/// Decodes what a helper printed.
///
/// # Errors
/// If it is not what helpers print.
pub fn helper_answer(bytes: &[u8]) -> Result<Credentials, ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct HelperOutput {
        username: String,
        secret: String,
    }
    let answer: HelperOutput = decode("answer of the credential helper", bytes)?;
    Ok(Credentials {
        username: answer.username,
        password: answer.secret,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(config: &str, registry: &str) -> Known {
        DockerConfig::decode(config.as_bytes())
            .unwrap()
            .find(registry)
    }

    fn here(username: &str, password: &str) -> Known {
        Known::Here(Credentials {
            username: username.to_owned(),
            password: password.to_owned(),
        })
    }

    #[test]
    fn logins_are_found_by_host() {
        let config = r#"{"auths":{"r.io:5000":{"auth":"bWU6YTpi"},"https://old.io/v2/":{"auth":"eDp5"},
            "https://index.docker.io/v1/":{"auth":"aHViOnc="},"empty.io":{}}}"#;
        assert_eq!(find(config, "r.io:5000"), here("me", "a:b"));
        assert_eq!(find(config, "old.io"), here("x", "y"));
        assert_eq!(find(config, "docker.io"), here("hub", "w"));
        for unknown in ["r.io", "empty.io", "evil.r.io:5000"] {
            assert_eq!(find(config, unknown), Known::Nowhere);
        }
        assert_eq!(find("{}", "docker.io"), Known::Nowhere);
    }

    #[test]
    fn helpers_are_named_by_registry_or_for_all() {
        let config = r#"{"credsStore":"pass","credHelpers":{"gcr.io":"gcloud","bad.io":"../x"},"auths":{"a.io":{}}}"#;
        let helper = |name: &str, server: &str| Known::Helper {
            name: name.to_owned(),
            server: server.to_owned(),
        };
        assert_eq!(find(config, "gcr.io"), helper("gcloud", "gcr.io"));
        assert_eq!(find(config, "a.io"), helper("pass", "a.io"));
        assert_eq!(find(config, "docker.io"), helper("pass", HUB_KEY));
        assert_eq!(find(config, "bad.io"), helper("pass", "bad.io"));
        assert_eq!(find(r#"{"credsStore":"/bin/sh"}"#, "a.io"), Known::Nowhere);
    }

    #[test]
    fn helpers_answer_in_json() {
        let answer = helper_answer(br#"{"ServerURL":"x","Username":"u","Secret":"s"}"#).unwrap();
        assert_eq!(Known::Here(answer), here("u", "s"));
        assert!(helper_answer(b"credentials not found in native keychain").is_err());
    }

    #[test]
    fn other_files_are_refused() {
        for bad in ["", "7", r#"{"auths":[7]}"#] {
            assert!(DockerConfig::decode(bad.as_bytes()).is_err());
        }
    }
}
