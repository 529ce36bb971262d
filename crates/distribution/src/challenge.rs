//! A registry's authentication challenge: `WWW-Authenticate`.

/// What a registry demands in `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// Name and password with every request.
    Basic,
    /// A token, which another service issues.
    Bearer {
        /// The URL of that service.
        realm: String,
        /// What the token is for, as the registry calls itself.
        service: Option<String>,
    },
}

impl Challenge {
    /// Returns the strongest challenge among the values of the header.
    #[must_use]
    pub fn choose<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut basic = None;
        for value in values {
            match Self::parse(value) {
                Some(Self::Basic) => basic = Some(Self::Basic),
                Some(bearer) => return Some(bearer),
                None => {}
            }
        }
        basic
    }

    fn parse(value: &str) -> Option<Self> {
        let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        for (name, value) in Parameters(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                _ => {} // the scope we know better
            }
        }
        let realm = realm?;
        Some(Self::Bearer { realm, service })
    }
}

/// `name="value", name=value, …`
struct Parameters<'a>(&'a str);

impl Iterator for Parameters<'_> {
    type Item = (String, String);

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.0.trim_start_matches([' ', ',', '\t']);
        let (name, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find([',', ' ']).unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        self.0 = rest;
        Some((name.trim().to_owned(), value))
    }
}

/// Returns the text before the closing quote, and the text after it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            _ => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_as_registries_write_them() {
        let bearer = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.docker.io/token".to_owned(),
            service: Some("registry.docker.io".to_owned()),
        };
        assert_eq!(
            Challenge::choose([bearer].into_iter()),
            Some(expected.clone())
        );
        let both = [r#"Basic realm="x""#, bearer];
        assert_eq!(Challenge::choose(both.into_iter()), Some(expected));
        assert_eq!(
            Challenge::choose(["basic"].into_iter()),
            Some(Challenge::Basic)
        );
        let bare = Challenge::parse(r#"BEARER error="a, \"b\"", realm=http://x/t , service=s"#);
        let expected = Challenge::Bearer {
            realm: "http://x/t".to_owned(),
            service: Some("s".to_owned()),
        };
        assert_eq!(bare, Some(expected));
    }

    #[test]
    fn what_is_no_challenge_is_none() {
        for bad in [
            "",
            "Digest realm=x",
            "Bearer",
            "Bearer service=\"x\"",
            "Bearer realm=\"x",
            "Bearer realm",
        ] {
            assert_eq!(Challenge::parse(bad), None, "{bad}");
        }
    }
}
