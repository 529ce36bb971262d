//! Credentials of a request: a token, or a name and a password.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// How long a token is good that does not say it; the specification's value.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(60);

/// A name and a password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Login {
    /// The name.
    pub username: String,
    /// The password, or a token in its place.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The password is a secret.
        f.debug_struct("Login")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// A token for `Authorization: Bearer`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Only visible ASCII.
    pub value: String,
    /// How long it is good, from when it was given out.
    pub lifetime: Duration,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The value is a secret.
        f.debug_struct("Token")
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Token {
    /// Parses the token in the response of a token service.
    #[must_use]
    pub fn parse(answer: &[u8]) -> Option<Self> {
        let answer: TokenResponse = serde_json::from_slice(answer).ok()?;
        let value = answer.token.or(answer.access_token)?;
        let is_plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain.then_some(Self {
            value,
            lifetime: answer
                .expires_in
                .map_or(DEFAULT_LIFETIME, Duration::from_secs),
        })
    }

    /// Returns the value of the header.
    #[must_use]
    pub fn header(&self) -> String {
        format!("Bearer {}", self.value)
    }
}

/// Returns the value of the header `Authorization` for a name and a password.
#[must_use]
pub fn basic(username: &str, password: &str) -> String {
    let text = STANDARD.encode(format!("{username}:{password}"));
    format!("Basic {text}")
}

/// Returns the name and the password in a value of the header `Authorization`.
#[must_use]
pub fn parse_basic(value: &str) -> Option<(String, String)> {
    let (scheme, text) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(answer: &[u8]) -> Option<String> {
        Token::parse(answer).map(|token| token.value)
    }

    #[test]
    fn tokens_have_two_names() {
        assert_eq!(value(br#"{"token":"a"}"#).as_deref(), Some("a"));
        let other = br#"{"access_token":"b","expires_in":90}"#;
        assert_eq!(value(other).as_deref(), Some("b"));
        for bad in [
            &b"{}"[..],
            br#"{"token":""}"#,
            br#"{"token":"a\nb"}"#,
            b"[]",
        ] {
            assert_eq!(value(bad), None);
        }
    }

    #[test]
    fn a_token_lives_as_long_as_it_says_or_a_minute() {
        let lifetime = |answer: &[u8]| Token::parse(answer).map(|token| token.lifetime.as_secs());
        assert_eq!(lifetime(br#"{"token":"a","expires_in":300}"#), Some(300));
        assert_eq!(lifetime(br#"{"token":"a"}"#), Some(60));
    }

    #[test]
    fn secrets_are_not_printed() {
        let token = Token::parse(br#"{"token":"hush"}"#);
        assert!(!format!("{token:?}").contains("hush"));
        let login = Login {
            username: "me".to_owned(),
            password: "hush".to_owned(),
        };
        assert!(!format!("{login:?}").contains("hush"));
    }

    #[test]
    fn names_and_passwords_come_through() {
        assert_eq!(basic("a", "b:c"), "Basic YTpiOmM=");
        let pair = ("a".to_owned(), "b:c".to_owned());
        assert_eq!(parse_basic("basic YTpiOmM="), Some(pair));
        for bad in ["", "Basic", "Basic !", "Basic YQ==", "Bearer YTpiOmM="] {
            assert_eq!(parse_basic(bad), None, "{bad}");
        }
    }
}
