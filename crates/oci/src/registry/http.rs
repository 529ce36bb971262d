//! One request at a time: with who asks, deadlines, another try, and a watch.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::Duration;

use distribution::{Carries, Challenge, RealmError, Realms, Token, basic};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Certificate, Client, Method, Response, StatusCode, Url, redirect};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Credentials, RegistryConfig, RegistryError, Transport};
use crate::Watch;

const CONNECT: Duration = Duration::from_secs(10);
/// How long a registry may think, or a transfer stand still.
const STALL: Duration = Duration::from_secs(60);
/// How often the watch is asked while nothing happens: a person who pressed Ctrl-C notices more.
const TICK: Duration = Duration::from_millis(100);
/// Tries of one request; with the waits between them, a restart of a registry is survived.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait that a registry may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
const REDIRECTS: usize = 5;
/// Bytes of an answer that says what went wrong, or has a token.
const SMALL_ANSWER: u64 = 64 << 10;

pub(super) struct Http {
    client: Client,
    runtime: Runtime,
    /// Scheme, host and port of the registry: who is trusted with credentials.
    origin: Url,
    registry: String,
    scope: String,
    /// Who else is.
    realms: Realms,
    credentials: Option<Credentials>,
    /// What the registry accepted last.
    authorization: Mutex<Option<HeaderValue>>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http")
            .field("origin", &self.origin.as_str())
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// For messages: `asking for the manifest`.
    pub(super) doing: &'static str,
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn new(doing: &'static str, method: Method, url: String) -> Self {
        Self {
            doing,
            method,
            url,
            headers: HeaderMap::new(),
            body: Vec::new(),
        }
    }
}

impl Http {
    pub(super) fn new(
        origin: String,
        scope: String,
        config: &RegistryConfig,
    ) -> Result<Self, RegistryError> {
        let registry = origin.split("//").nth(1).unwrap_or_default().to_owned();
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| RegistryError::SetUp {
            registry: registry.clone(),
            source,
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let origin = Url::parse(&origin).map_err(|error| failed(error.into()))?;
        Ok(Self {
            client: client(config).map_err(|error| failed(error.into()))?,
            runtime: runtime.map_err(|error| failed(error.into()))?,
            realms: Realms::new(origin.clone(), config.token_hosts.clone()),
            origin,
            registry,
            scope,
            credentials: config.credentials.clone(),
            authorization: Mutex::new(None),
        })
    }

    pub(super) fn registry(&self) -> String {
        self.registry.clone()
    }

    pub(super) fn broken(&self, doing: &'static str, rule: &'static str) -> RegistryError {
        RegistryError::Protocol {
            doing,
            registry: self.registry(),
            rule,
        }
    }

    /// Sends a request and returns the answer, whatever its status, after further tries if the
    /// registry could not be reached, was busy, or wanted to know who asks.
    pub(super) fn send(
        &self,
        request: &Request,
        watch: Watch<'_>,
    ) -> Result<Response, RegistryError> {
        let mut asked_who = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let (wait, result) = match self.send_once(request, &mut *watch) {
                // Nobody else's word counts: a host that it leads to would be told the password.
                Ok(answer)
                    if answer.status() == StatusCode::UNAUTHORIZED
                        && self.is_own(answer.url())
                        && !asked_who =>
                {
                    asked_who = true;
                    tries = 0;
                    self.authorize(request.doing, &answer, &mut *watch)?;
                    continue;
                }
                Ok(answer) if is_busy(answer.status()) => (retry_after(&answer), Ok(answer)),
                Ok(answer) => return Ok(answer),
                Err(error @ (RegistryError::NoAnswer { .. } | RegistryError::TooSlow { .. })) => {
                    (None, Err(error))
                }
                Err(error) => return Err(error),
            };
            if tries >= TRIES {
                return result;
            }
            let wait = wait.unwrap_or(FIRST_WAIT * 2_u32.pow(tries - 1));
            self.pause(wait.min(LONGEST_WAIT), &mut *watch)?;
        }
    }

    /// Sends a request that must be answered with success.
    pub(super) fn ask(
        &self,
        request: &Request,
        watch: Watch<'_>,
    ) -> Result<Response, RegistryError> {
        let answer = self.send(request, &mut *watch)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(self.refusal(request.doing, answer, watch))
    }

    /// Makes an error of an answer that is none of success.
    pub(super) fn refusal(
        &self,
        doing: &'static str,
        answer: Response,
        watch: Watch<'_>,
    ) -> RegistryError {
        let status = answer.status();
        if !self.is_own(answer.url()) {
            let host = answer.url().host_str().unwrap_or_default();
            return RegistryError::Refused {
                doing,
                registry: self.registry(),
                status: status.as_u16(),
                message: format!(" by way of {host}"),
            };
        }
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            let hint = match self.credentials {
                Some(_) => "name and password are wrong, or not allowed to do this",
                None => "name a user with --username, or log in with docker login",
            };
            return RegistryError::Unauthorized {
                doing,
                registry: self.registry(),
                hint,
            };
        }
        let body = self.body(doing, answer, SMALL_ANSWER, watch);
        RegistryError::Refused {
            doing,
            registry: self.registry(),
            status: status.as_u16(),
            message: body.map(|body| message_in(&body)).unwrap_or_default(),
        }
    }

    /// Reads the body of an answer, which may have `limit` bytes.
    pub(super) fn body(
        &self,
        doing: &'static str,
        mut answer: Response,
        limit: u64,
        watch: Watch<'_>,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.wait(doing, answer.chunk(), 0, &mut *watch)? {
            if body.len() as u64 + chunk.len() as u64 > limit {
                return Err(self.broken(doing, "the answer is larger than such an answer can be"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Waits for a step of a transfer of which `done` bytes are through.
    pub(super) fn wait<T>(
        &self,
        doing: &'static str,
        step: impl Future<Output = reqwest::Result<T>>,
        done: u64,
        watch: Watch<'_>,
    ) -> Result<T, RegistryError> {
        let bounded = async { timeout(STALL, step).await };
        match self.run(bounded, done, watch)? {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(RegistryError::NoAnswer {
                doing,
                registry: self.registry(),
                source: source.without_url(), // it may have a signature in it
            }),
            Err(_) => Err(RegistryError::TooSlow {
                doing,
                registry: self.registry(),
                seconds: STALL.as_secs(),
            }),
        }
    }

    pub(super) fn pause(&self, time: Duration, watch: Watch<'_>) -> Result<(), RegistryError> {
        self.run(async { tokio::time::sleep(time).await }, 0, watch)
    }

    /// Runs to the end, or until the watch has enough.
    fn run<T>(
        &self,
        work: impl Future<Output = T>,
        done: u64,
        watch: Watch<'_>,
    ) -> Result<T, RegistryError> {
        self.runtime.block_on(async {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut work = std::pin::pin!(work);
            loop {
                tokio::select! {
                    biased; // so that a watch that has enough is heard first
                    _ = ticks.tick() => if let ControlFlow::Break(()) = watch(done) {
                        return Err(RegistryError::Cancelled);
                    },
                    result = &mut work => return Ok(result),
                }
            }
        })
    }

    fn send_once(&self, request: &Request, watch: Watch<'_>) -> Result<Response, RegistryError> {
        let url = Url::parse(&request.url);
        let url = url.map_err(|_| self.broken(request.doing, "its URLs are URLs"))?;
        let mut headers = request.headers.clone();
        // Only the registry itself gets to see who asks, not where it sends us for uploads.
        if self.is_own(&url)
            && let Some(value) = self.authorization()
        {
            headers.insert(AUTHORIZATION, value);
        }
        let building = self.client.request(request.method.clone(), url);
        let building = building.headers(headers).body(request.body.clone());
        // The client's own resolver and pool want a runtime around them.
        let _inside = self.runtime.enter();
        self.wait(request.doing, building.send(), 0, watch)
    }

    /// Whether somewhere is at the registry itself: scheme, host and port.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.origin.origin()
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.lock().ok()?.clone()
    }

    /// Does what the registry demands before it answers.
    fn authorize(
        &self,
        doing: &'static str,
        answer: &Response,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let values = answer.headers().get_all(WWW_AUTHENTICATE).iter();
        let challenge = Challenge::choose(values.filter_map(|value| value.to_str().ok()));
        let authorization = match (challenge, &self.credentials) {
            (Some(Challenge::Bearer { realm, service }), _) => {
                secret(&self.token(doing, &realm, service, watch)?.header())
            }
            (Some(Challenge::Basic), Some(who)) => secret(&basic(&who.username, &who.password)),
            (Some(Challenge::Basic), None) | (None, _) => None,
        };
        if let Ok(mut held) = self.authorization.lock() {
            *held = authorization;
        }
        Ok(())
    }

    fn token(
        &self,
        doing: &'static str,
        realm: &str,
        service: Option<String>,
        watch: Watch<'_>,
    ) -> Result<Token, RegistryError> {
        let broken = |rule| self.broken(doing, rule);
        let carries = self.credentials.as_ref();
        let carries = carries.map_or(Carries::Nothing, |_| Carries::Login);
        let url = self.realms.check(realm, carries);
        let mut url = url.map_err(|error| match error {
            RealmError::Elsewhere { host, .. } => RegistryError::Realm {
                doing,
                registry: self.registry(),
                host,
            },
            RealmError::NoTls => broken("who asks is not sent without TLS"),
            _ => broken("the realm of a token is a URL"),
        })?;
        let service = service.map(|service| ("service", service));
        let scope = ("scope", self.scope.clone());
        url.query_pairs_mut()
            .extend_pairs(service.into_iter().chain([scope]));
        let mut building = self.client.get(url);
        if let Some(value) = self
            .credentials
            .as_ref()
            .and_then(|who| secret(&basic(&who.username, &who.password)))
        {
            building = building.header(AUTHORIZATION, value);
        }
        let answer = self.wait(doing, building.send(), 0, &mut *watch)?;
        if !answer.status().is_success() {
            return Err(self.refusal(doing, answer, watch));
        }
        let body = self.body(doing, answer, SMALL_ANSWER, watch)?;
        Token::parse(&body).ok_or_else(|| broken("there is a token in the answer"))
    }
}

fn client(config: &RegistryConfig) -> Result<Client, reqwest::Error> {
    // Another part of the program may have chosen one already: it is as good.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("yolofs/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .redirect(redirect::Policy::custom(follow))
        .no_proxy(); // the environment is the caller's business
    if let Some(proxy) = &config.proxy {
        builder = builder.proxy(reqwest::Proxy::https(proxy)?);
    }
    if config.transport == Transport::Plain {
        // Without TLS a system without certificates is good enough.
        return builder.tls_certs_only([]).build();
    }
    let mut authorities = Vec::new();
    for pem in &config.authorities {
        authorities.extend(Certificate::from_pem_bundle(pem)?);
    }
    builder.tls_certs_merge(authorities).build()
}

/// Registries send readers of blobs to other hosts: a few times, and never from TLS to none.
fn follow(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let had_tls = attempt.previous().iter().any(|url| url.scheme() == "https");
    if attempt.previous().len() > REDIRECTS {
        return attempt.error("too many redirects");
    }
    if had_tls && attempt.url().scheme() != "https" {
        return attempt.error("a redirect leads away from TLS");
    }
    attempt.follow()
}

fn is_busy(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

fn retry_after(answer: &Response) -> Option<Duration> {
    let value = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.parse().map(Duration::from_secs).ok()
}

fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns what a registry says in an error, cut short and without what could move a cursor.
fn message_in(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(serde::Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Errors { errors }) = serde_json::from_slice(body) else {
        return String::new();
    };
    let Some(One { code, message }) = errors.into_iter().next() else {
        return String::new();
    };
    let text = format!(": {code}: {message}");
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_and_cleaned() {
        let body = r#"{"errors":[{"code":"DENIED","message":"no\u001b[2J"}]}"#;
        assert_eq!(message_in(body.as_bytes()), ": DENIED: no[2J");
        assert_eq!(message_in(b"<html>"), "");
        assert_eq!(message_in(br#"{"errors":[]}"#), "");
    }
}
