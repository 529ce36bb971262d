//! One request at a time: with credentials, deadlines, retries, and a watch.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use distribution::{Call, CallError, Client, ClientConfig, Destination, Login, RealmError};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{RegistryConfig, RegistryError};
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
/// Bytes of an answer that says what went wrong.
const SMALL_ANSWER: u64 = 64 << 10;

pub(super) struct Http {
    client: Client,
    runtime: Runtime,
    registry: String,
    /// The requested access, in the registries' format.
    scope: String,
    credentials: Option<Login>,
}

fn host_of(origin: &str) -> String {
    origin.split("//").nth(1).unwrap_or_default().to_owned()
}

/// Returns who sends requests to the registry at an address.
pub(super) fn client(origin: &str, config: &RegistryConfig) -> Result<Client, RegistryError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| RegistryError::SetUp {
        registry: host_of(origin),
        source,
    };
    let registry = Url::parse(origin).map_err(|error| failed(error.into()))?;
    let client = Client::new(ClientConfig {
        registry,
        user_agent: concat!("yolofs/", env!("CARGO_PKG_VERSION")),
        token_hosts: config.token_hosts.clone(),
        networks: config.redirect_networks.clone(),
        authorities: config.authorities.clone(),
        proxy: config.proxy.clone(),
        connect: CONNECT,
        answer: STALL,
    });
    client.map_err(|error| failed(error.into()))
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http")
            .field("registry", &self.registry)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// For messages: `asking for the manifest`.
    pub(super) doing: &'static str,
    pub(super) method: Method,
    pub(super) goal: Goal,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The target of a request.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// To this URL of the registry.
    Registry(String),
    /// A target that the registry names.
    Named(Destination),
}

impl Request {
    pub(super) fn new(doing: &'static str, method: Method, url: String) -> Self {
        Self::to(doing, method, Goal::Registry(url))
    }

    pub(super) fn to(doing: &'static str, method: Method, goal: Goal) -> Self {
        Self {
            doing,
            method,
            goal,
            headers: HeaderMap::new(),
            body: Vec::new(),
        }
    }
}

impl Http {
    pub(super) fn new(
        origin: &str,
        scope: String,
        config: &RegistryConfig,
    ) -> Result<Self, RegistryError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let registry = host_of(origin);
        Ok(Self {
            client: client(origin, config)?,
            runtime: runtime.map_err(|source| RegistryError::SetUp {
                registry: registry.clone(),
                source: source.into(),
            })?,
            registry,
            scope,
            credentials: config.credentials.clone(),
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

    /// Sends a request and returns the response, whatever its status, after retries if the
    /// registry could not be reached, was busy, or required credentials.
    pub(super) fn send(
        &self,
        request: &Request,
        watch: Watch<'_>,
    ) -> Result<Response, RegistryError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (wait, result) = match self.send_once(request, &mut *watch) {
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

    /// Makes an error of a response without success.
    pub(super) fn refusal(
        &self,
        doing: &'static str,
        answer: Response,
        watch: Watch<'_>,
    ) -> RegistryError {
        let status = answer.status();
        if !self.client.is_own(answer.url()) {
            let host = answer.url().host_str().unwrap_or_default();
            return RegistryError::Refused {
                doing,
                registry: self.registry(),
                status: status.as_u16(),
                message: format!(" by way of {host}"),
            };
        }
        self.refusal_of_who_is_asked(doing, answer, watch)
    }

    /// The same, by the registry itself, or by who gives out its tokens.
    fn refusal_of_who_is_asked(
        &self,
        doing: &'static str,
        answer: Response,
        watch: Watch<'_>,
    ) -> RegistryError {
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            let hint = match self.credentials {
                Some(_) => "name and password are wrong, or not allowed to do this",
                None => "name a user (`username`), or log in with docker login",
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

    /// Reads the body of a response, which may have `limit` bytes.
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
                return Err(self.broken(doing, "the response is too large"));
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
        let doing = request.doing;
        let place = match &request.goal {
            Goal::Registry(url) => {
                let url = Url::parse(url);
                Destination::Ours(url.map_err(|_| self.broken(doing, "it names an invalid URL"))?)
            }
            Goal::Named(place) => place.clone(),
        };
        let call = Call {
            method: request.method.clone(),
            place,
            headers: request.headers.clone(),
            body: &request.body,
            scope: &self.scope,
            login: self.credentials.as_ref(),
        };
        let answer = self.run(self.client.send(&call), 0, &mut *watch)?;
        answer.map_err(|error| self.failed(doing, error, watch))
    }

    /// Returns the target that a response names.
    pub(super) fn named_by(
        &self,
        doing: &'static str,
        answer: &Response,
        place: &str,
        watch: Watch<'_>,
    ) -> Result<Destination, RegistryError> {
        let place = self.client.named_by(answer, place);
        place.map_err(|error| self.failed(doing, error, watch))
    }

    fn failed(&self, doing: &'static str, error: CallError, watch: Watch<'_>) -> RegistryError {
        let registry = self.registry();
        match error {
            CallError::NoAnswer(source) => RegistryError::NoAnswer {
                doing,
                registry,
                source,
            },
            CallError::TooSlow { seconds } => RegistryError::TooSlow {
                doing,
                registry,
                seconds,
            },
            CallError::Rule(rule) => self.broken(doing, rule),
            CallError::Inside(source) => RegistryError::Inside {
                doing,
                registry,
                source,
            },
            CallError::Realm(RealmError::Elsewhere { host, .. }) => RegistryError::Realm {
                doing,
                registry,
                host,
            },
            CallError::Realm(RealmError::NoTls) => self.broken(
                doing,
                "its realm for tokens has no TLS, and the registry has",
            ),
            CallError::Realm(_) => self.broken(doing, "the realm for tokens is not a URL"),
            CallError::NoToken(answer) => self.refusal_of_who_is_asked(doing, *answer, watch),
            error => RegistryError::SetUp {
                registry,
                source: error.into(),
            },
        }
    }
}

fn is_busy(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

fn retry_after(answer: &Response) -> Option<Duration> {
    let value = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.parse().map(Duration::from_secs).ok()
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
