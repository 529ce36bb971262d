//! What a registry wants to hear before it answers, kept until it is no longer good.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use distribution::{Carries, Challenge, RealmError, Realms, Token, basic};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Url};

use super::{HEADER, Login, UpstreamError, body, in_time, verdict};

/// Bytes of an answer with a token.
const ANSWER_MAX: usize = 64 << 10;
/// Tokens that are kept: one for each repository and client.
const TOKENS_MAX: usize = 4096;
/// A token is renewed so long before its end: it must not end on the way.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest that a token is believed to be good.
const LIFETIME_MAX: Duration = Duration::from_secs(3600);

/// Who is heard, and for what.
type Key = (String, Option<Login>);

#[derive(Debug)]
pub(super) struct Tokens {
    realms: Realms,
    held: Mutex<HashMap<Key, Held>>,
}

#[derive(Clone, Debug)]
struct Held {
    value: HeaderValue,
    until: Instant,
}

impl Tokens {
    pub(super) fn new(registry: &Url, hosts: Vec<String>) -> Self {
        Self {
            realms: Realms::new(registry.clone(), hosts),
            held: Mutex::default(),
        }
    }

    /// Returns what the registry accepted last, if it is still good.
    pub(super) fn held(&self, repository: &str, login: Option<&Login>) -> Option<HeaderValue> {
        let held = self.held.lock();
        let held = held.get(&(repository.to_owned(), login.cloned()))?;
        (Instant::now() < held.until).then(|| held.value.clone())
    }

    /// Does what the registry demands. `None` if nothing helps.
    pub(super) async fn fetch(
        &self,
        client: &Client,
        challenges: &[&str],
        repository: &str,
        login: Option<&Login>,
    ) -> Result<Option<HeaderValue>, UpstreamError> {
        let (value, lifetime) = match Challenge::choose(challenges.iter().copied()) {
            Some(Challenge::Bearer { realm, service }) => {
                let token = self.ask(client, &realm, service, repository, login).await?;
                (secret(&token.header()), token.lifetime)
            }
            Some(Challenge::Basic) => match login {
                Some(login) => (
                    secret(&basic(&login.username, &login.password)),
                    LIFETIME_MAX,
                ),
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let Some(value) = value else {
            return Ok(None);
        };
        let lifetime = lifetime.min(LIFETIME_MAX).saturating_sub(MARGIN);
        let now = Instant::now();
        let held = Held {
            value: value.clone(),
            until: now + lifetime,
        };
        let mut all = self.held.lock();
        all.retain(|_, held| now < held.until);
        if all.len() < TOKENS_MAX {
            all.insert((repository.to_owned(), login.cloned()), held);
        }
        Ok(Some(value))
    }

    async fn ask(
        &self,
        client: &Client,
        realm: &str,
        service: Option<String>,
        repository: &str,
        login: Option<&Login>,
    ) -> Result<Token, UpstreamError> {
        let carries = login.map_or(Carries::Nothing, |_| Carries::Login);
        let mut url = self.realms.check(realm, carries).map_err(no_realm)?;
        let scope = format!("repository:{repository}:pull");
        let service = service.map(|service| ("service", service));
        url.query_pairs_mut()
            .extend_pairs(service.into_iter().chain([("scope", scope)]));
        let mut request = client.get(url);
        if let Some(login) = login
            && let Some(value) = secret(&basic(&login.username, &login.password))
        {
            request = request.header(AUTHORIZATION, value);
        }
        let answer = verdict(in_time(HEADER, request.send()).await?)?;
        let answer = body(answer, ANSWER_MAX).await?;
        Token::parse(&answer).ok_or(UpstreamError::Protocol("there is a token in the answer"))
    }
}

fn no_realm(error: RealmError) -> UpstreamError {
    UpstreamError::Protocol(match error {
        RealmError::Elsewhere { .. } => {
            "passwords go to the registry's own domain only (token_hosts allows others)"
        }
        RealmError::NoTls => "who asks is not sent without TLS",
        _ => "the realm of a token is a URL",
    })
}

fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
