//! The registries behind the mirror.
//!
//! A registry that refuses connections fails at once; one that drops packets would block a client for
//! minutes. So connecting, the head of a response and each piece of its body have separate deadlines,
//! and for a while after an outage, requests that can be served from older content do not wait
//! for the registry at all.

mod error;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use distribution::Login;
use distribution::{Call, Client, ClientConfig, Destination, Network};
use hyper::body::Bytes;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};
use tokio::time::timeout;

pub use error::UpstreamError;

/// The deadline of connecting.
const CONNECT: Duration = Duration::from_secs(2);
/// The deadline of the head of a response.
const HEADER: Duration = Duration::from_secs(5);
/// The deadline of the next piece of a body.
const STALL: Duration = Duration::from_secs(10);
/// How long after an outage requests with a fallback do not wait for the registry.
const OUTAGE: Duration = Duration::from_secs(5);

/// The configuration of a registry.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// As clients call it: `docker.io`, `ghcr.io`, `registry:5000`.
    pub name: String,
    /// Where it is: `https://registry-1.docker.io`.
    pub url: String,
    /// The mirror's credentials there.
    pub login: Option<Login>,
    /// Hosts that may give out its tokens, beside its own.
    pub token_hosts: Vec<String>,
    /// Networks that it may lead to, though they are further inside than it is itself.
    pub redirect_networks: Vec<Network>,
    /// Certificate authorities beside the system's, as PEM.
    pub authorities: Vec<Vec<u8>>,
}

/// A registry.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    base: Url,
    login: Option<Login>,
    client: Client,
    out_until: Mutex<Option<Instant>>,
}

/// A request to a registry.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamRequest {
    pub(crate) method: Method,
    pub(crate) repository: String,
    /// Behind the repository: `manifests/latest`, with a query if there is one.
    pub(crate) what: String,
    pub(crate) headers: HeaderMap,
    pub(crate) asker: Asker,
}

/// Whose credentials a request uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The mirror's.
    Mirror,
    /// A client's, which may have none.
    Client(Option<Login>),
}

impl UpstreamRequest {
    pub(crate) fn new(method: Method, repository: &str, what: String) -> Self {
        Self {
            method,
            repository: repository.to_owned(),
            what,
            headers: HeaderMap::new(),
            asker: Asker::Mirror,
        }
    }
}

impl Upstream {
    /// Prepares requests to a registry; sends none.
    ///
    /// # Errors
    /// If its URL is invalid, or its certificates cannot be used.
    pub fn new(config: UpstreamConfig) -> Result<Self, UpstreamError> {
        let bad_url = || UpstreamError::Url(config.url.clone());
        let base = Url::parse(&config.url).map_err(|_| bad_url())?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad_url());
        }
        let client = Client::new(ClientConfig {
            registry: base.clone(),
            user_agent: concat!("nicfetch/", env!("CARGO_PKG_VERSION")),
            token_hosts: config.token_hosts,
            networks: config.redirect_networks,
            authorities: config.authorities,
            proxy: None,
            connect: CONNECT,
            answer: HEADER,
        })?;
        Ok(Self {
            name: config.name,
            base,
            login: config.login,
            client,
            out_until: Mutex::new(None),
        })
    }

    /// Returns how clients call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it failed a moment ago.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.out_until
            .lock()
            .is_some_and(|until| Instant::now() < until)
    }

    /// Notes that it did not respond in time.
    pub(crate) fn note_outage(&self) {
        *self.out_until.lock() = Some(Instant::now() + OUTAGE);
    }

    /// Sends a request, and returns a response with a status of success.
    pub(crate) async fn ask(&self, ask: &UpstreamRequest) -> Result<Response, UpstreamError> {
        let answer = self.ask_as(ask).await;
        let failed = matches!(&answer, Err(error) if error.is_outage());
        *self.out_until.lock() = failed.then(|| Instant::now() + OUTAGE);
        answer
    }

    async fn ask_as(&self, ask: &UpstreamRequest) -> Result<Response, UpstreamError> {
        let login = match &ask.asker {
            Asker::Mirror => self.login.as_ref(),
            Asker::Client(login) => login.as_ref(),
        };
        let path = format!("v2/{}/{}", ask.repository, ask.what);
        let url = self.base.join(&path);
        let url = url.map_err(|_| UpstreamError::Url(path))?;
        let mut headers = ask.headers.clone();
        // A registry that compresses what it sends would send other bytes than those it named.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let call = Call {
            method: ask.method.clone(),
            place: Destination::Ours(url),
            headers,
            body: &[],
            scope: &format!("repository:{}:pull", ask.repository),
            login,
        };
        verdict(self.client.send(&call).await?)
    }
}

/// Returns the next piece of a body.
pub(crate) async fn chunk(answer: &mut Response) -> Result<Option<Bytes>, UpstreamError> {
    in_time(STALL, answer.chunk()).await
}

/// Returns a whole body of at most `limit` bytes.
pub(crate) async fn body(mut answer: Response, limit: usize) -> Result<Vec<u8>, UpstreamError> {
    let declared = answer.content_length();
    let mut whole = Vec::new();
    while let Some(chunk) = chunk(&mut answer).await? {
        if whole.len() + chunk.len() > limit {
            return Err(UpstreamError::Protocol("the response is too large"));
        }
        whole.extend_from_slice(&chunk);
    }
    if declared.is_some_and(|declared| declared != whole.len() as u64) {
        return Err(UpstreamError::Cut);
    }
    Ok(whole)
}

async fn in_time<T>(
    deadline: Duration,
    step: impl Future<Output = reqwest::Result<T>>,
) -> Result<T, UpstreamError> {
    match timeout(deadline, step).await {
        Ok(Ok(value)) => Ok(value),
        // The URL of a redirect may have a signature in it.
        Ok(Err(source)) => Err(UpstreamError::NoAnswer(source.without_url())),
        Err(_) => Err(UpstreamError::TooSlow {
            seconds: deadline.as_secs(),
        }),
    }
}

fn verdict(answer: Response) -> Result<Response, UpstreamError> {
    match answer.status() {
        status if status.is_success() => Ok(answer),
        StatusCode::NOT_FOUND => Err(UpstreamError::NotFound),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            Err(UpstreamError::Denied(status.as_u16()))
        }
        status => Err(UpstreamError::Refused(status.as_u16())),
    }
}

/// The fixed set of registries that a mirror knows. A client's name of a registry is looked up here and
/// never resolved by DNS.
#[derive(Clone, Debug)]
pub struct Upstreams(Vec<Arc<Upstream>>);

impl Upstreams {
    /// Makes a set; the first is for clients that do not name one.
    #[must_use]
    pub const fn new(upstreams: Vec<Arc<Upstream>>) -> Self {
        Self(upstreams)
    }

    /// Returns the registry of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        let name = match name {
            "index.docker.io" | "registry-1.docker.io" => "docker.io",
            other => other,
        };
        self.0.iter().find(|upstream| upstream.name() == name)
    }

    /// Returns the registry for clients that do not name one.
    #[must_use]
    pub fn default(&self) -> Option<&Arc<Upstream>> {
        self.0.first()
    }

    /// Returns all of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.0.iter()
    }
}
