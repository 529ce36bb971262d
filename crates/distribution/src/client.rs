//! The client of registries, for a mirror or for a command.
//!
//! Each request goes to the configured registry, or to a target that a response names: a redirect, an
//! upload location, a realm for tokens. The first is trusted with name and password. The second is
//! named by a possibly hostile server, so it gets neither, its own challenges are ignored, and its address must not be
//! further inside than the server that named it; the address that is connected to is checked.

mod error;
mod names;
mod tokens;

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Certificate, Method, Proxy, Response, StatusCode, Url, redirect::Policy};
use tokio::time::timeout;

pub use error::CallError;
use names::Names;
use tokens::{Demand, Known, LIFETIME_MAX, Tokens};

use crate::{Carries, Challenge, Login, Network, Reach, Realms, Token, Zone, basic, redirect};

/// Registries send readers of blobs to other hosts a few times.
const REDIRECTS: usize = 5;
/// Idle connections to a host that are kept: as many as those who fetch ranges use at a time, 16 for readers who wait and as
/// many for all else. Another one costs round trips.
const IDLE_CONNECTIONS: usize = 32;
/// Bytes of an answer with a token.
const TOKEN_MAX: usize = 64 << 10;
/// Bytes that are read of an answer that leads elsewhere, to use its connection again.
const LEAD_MAX: u64 = 16 << 10;
/// How long that may take: as long as a connection with TLS to a far place.
const LEAD_WAIT: Duration = Duration::from_millis(300);

/// The configuration of a registry.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where it is: `https://registry-1.docker.io`.
    pub registry: Url,
    /// What this program calls itself.
    pub user_agent: &'static str,
    /// Hosts that may receive the password and issue tokens, besides those of its domain.
    pub token_hosts: Vec<String>,
    /// Where it may lead, though that is further inside than the registry is.
    pub networks: Vec<Network>,
    /// Certificates (PEM) of authorities to trust besides the system's.
    pub authorities: Vec<Vec<u8>>,
    /// The proxy for requests with TLS, as a URL. What names mean is then its business.
    pub proxy: Option<String>,
    /// How long connecting may take.
    pub connect: Duration,
    /// How long a response may take until its head arrives, from any target.
    pub answer: Duration,
}

/// Sends requests to a registry.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    realms: Realms,
    tokens: Tokens,
    proxy_host: Option<String>,
    direct: reqwest::Client,
    /// For where it leads, by where it is itself: connections of one are not for another.
    led: [OnceLock<reqwest::Client>; 5],
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The method.
    pub method: Method,
    /// The target.
    pub place: Destination,
    /// The headers.
    pub headers: HeaderMap,
    /// The body of a push; empty for other requests.
    pub body: &'a [u8],
    /// What a token has to be good for: `repository:some/app:pull`.
    pub scope: &'a str,
    /// The credentials.
    pub login: Option<&'a Login>,
}

/// The target of a request.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A configured URL.
    Ours(Url),
    /// A target that a response names.
    Led {
        /// What it names.
        to: Url,
        /// The zone of the server that named it.
        by: Zone,
    },
}

impl Destination {
    const fn url(&self) -> &Url {
        match self {
            Self::Ours(url) | Self::Led { to: url, .. } => url,
        }
    }
}

impl Client {
    /// Prepares requests to a registry; sends none.
    ///
    /// # Errors
    /// If certificates or the proxy cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self, CallError> {
        let proxy = config.proxy.as_deref().map(Url::parse);
        let proxy_host = proxy.and_then(|proxy| Some(proxy.ok()?.host_str()?.to_owned()));
        let direct = build(&config, None).map_err(CallError::SetUp)?;
        Ok(Self {
            realms: Realms::new(config.registry.clone(), config.token_hosts.clone()),
            tokens: Tokens::default(),
            proxy_host,
            direct,
            led: Default::default(),
            config,
        })
    }

    /// Returns whether somewhere is at the registry itself: scheme, host and port.
    #[must_use]
    pub fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.config.registry.origin()
    }

    /// Sends a request, authenticates if the registry requires it, follows redirects, and returns the
    /// response, whatever its status.
    ///
    /// # Errors
    /// If there is no response, or a target is not allowed.
    pub async fn send(&self, call: &Call<'_>) -> Result<Response, CallError> {
        let is_own = self.is_own(call.place.url());
        let held = match self.tokens.known(call.scope, call.login) {
            _ if !is_own => None,
            Known::Good(value) => Some(value),
            // What was demanded will be again. If that goes wrong, the registry says how.
            Known::Over(demand) => self.meet(demand, call).await.ok().flatten(),
            Known::Nothing => None,
        };
        let answer = self.travel(call, held).await?;
        // Nobody else's word counts: a host that it leads to would be told the password.
        if answer.status() != StatusCode::UNAUTHORIZED || !self.is_own(answer.url()) {
            return Ok(answer);
        }
        let demands = answer.headers().get_all(WWW_AUTHENTICATE).iter();
        let Some(challenge) = Challenge::choose(demands.filter_map(|one| one.to_str().ok())) else {
            return Ok(answer);
        };
        let by = self.zone_of(&answer);
        match self.meet(Demand { challenge, by }, call).await? {
            Some(fresh) if is_own => self.travel(call, Some(fresh)).await,
            _ => Ok(answer),
        }
    }

    /// Returns the target that a response names.
    ///
    /// # Errors
    /// If it is not allowed; the error is the rule that it breaks.
    pub fn named_by(&self, answer: &Response, place: &str) -> Result<Destination, CallError> {
        let to = answer.url().join(place);
        let to = to.map_err(|_| CallError::Rule("it redirects to an invalid URL"))?;
        redirect::check(answer.url(), &to).map_err(CallError::Rule)?;
        let by = self.zone_of(answer);
        Ok(Destination::Led { to, by })
    }

    /// Goes to where a request is sent, and on to where that leads.
    async fn travel(
        &self,
        call: &Call<'_>,
        authorization: Option<HeaderValue>,
    ) -> Result<Response, CallError> {
        self.in_time(self.go(call, authorization)).await
    }

    async fn go(
        &self,
        call: &Call<'_>,
        mut authorization: Option<HeaderValue>,
    ) -> Result<Response, CallError> {
        let home = call.place.url().origin();
        let mut place = call.place.clone();
        for _ in 0..=REDIRECTS {
            let mut headers = call.headers.clone();
            if let Some(value) = &authorization {
                headers.insert(AUTHORIZATION, value.clone());
            }
            let client = self.client_for(&place)?;
            let mut request = client.request(call.method.clone(), place.url().clone());
            request = request.headers(headers);
            if !matches!(call.method, Method::GET | Method::HEAD) {
                request = request.body(call.body.to_vec());
            }
            let answer = request.send().await.map_err(CallError::no_answer)?;
            let (status, headers) = (answer.status(), answer.headers());
            let next = redirect::next(&call.method, answer.url(), status, headers);
            let Some(to) = next.map_err(CallError::Rule)? else {
                return Ok(answer);
            };
            if to.origin() != home {
                // For good: who leads back here does not speak for whose name this is.
                authorization = None;
            }
            let by = self.zone_of(&answer);
            drain(answer).await;
            place = Destination::Led { to, by };
        }
        Err(CallError::Rule("it redirects too often"))
    }

    /// Does what the registry demands. `None` if nothing helps.
    async fn meet(
        &self,
        demand: Demand,
        call: &Call<'_>,
    ) -> Result<Option<HeaderValue>, CallError> {
        let (scope, login) = (call.scope, call.login);
        let (value, lifetime) = match (&demand.challenge, login) {
            (Challenge::Bearer { realm, service }, _) => {
                let asked = self.token(realm, service.as_deref(), demand.by, scope, login);
                let token = asked.await?;
                (secret(&token.header()), token.lifetime)
            }
            (Challenge::Basic, Some(login)) => (login_header(login), LIFETIME_MAX),
            (Challenge::Basic, None) => return Ok(None),
        };
        if let Some(value) = &value {
            let value = value.clone();
            self.tokens.keep(scope, login, demand, value, lifetime);
        }
        Ok(value)
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        by: Zone,
        scope: &str,
        login: Option<&Login>,
    ) -> Result<Token, CallError> {
        let carries = login.map_or(Carries::Nothing, |_| Carries::Login);
        let mut to = self.realms.check(realm, carries)?;
        let service = service.map(|service| ("service", service));
        // Services take one scope in each parameter, and some split none.
        let scopes = scope.split(' ').map(|scope| ("scope", scope));
        to.query_pairs_mut()
            .extend_pairs(service.into_iter().chain(scopes));
        let call = Call {
            method: Method::GET,
            place: Destination::Led { to, by },
            headers: HeaderMap::new(),
            body: &[],
            scope,
            login,
        };
        let answer = self.travel(&call, login.and_then(login_header)).await?;
        if !answer.status().is_success() {
            return Err(CallError::NoToken(Box::new(answer)));
        }
        let body = self.in_time(small_body(answer)).await?;
        Token::parse(&body).ok_or(CallError::Rule("the response has no token"))
    }

    /// Returns where the sender of an answer is.
    fn zone_of(&self, answer: &Response) -> Zone {
        let is_proxied = self.config.proxy.is_some() && answer.url().scheme() == "https";
        let address = answer.remote_addr().filter(|_| !is_proxied);
        address.map_or(Zone::Public, |address| Zone::of(address.ip()))
    }

    /// Returns who connects there, if anybody may.
    fn client_for(&self, place: &Destination) -> Result<&reqwest::Client, CallError> {
        let Destination::Led { to, by } = place else {
            return Ok(&self.direct);
        };
        let reach = Reach::from(*by, self.config.networks.clone());
        let host = to.host_str().unwrap_or_default();
        // Addresses need no look-up, so none would be judged.
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            reach.check(host, address)?;
        }
        // Its name is looked up for everybody: only as the proxy's.
        if self.proxy_host.as_deref() == Some(host) {
            return Err(CallError::Rule("it redirects to the proxy"));
        }
        let cell = &self.led[*by as usize];
        if let Some(client) = cell.get() {
            return Ok(client);
        }
        let names = Names {
            reach,
            proxy: self.proxy_host.clone(),
        };
        let client = build(&self.config, Some(names)).map_err(CallError::SetUp)?;
        Ok(cell.get_or_init(|| client))
    }

    async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let deadline = self.config.answer;
        let late = |_| CallError::TooSlow {
            seconds: deadline.as_secs(),
        };
        timeout(deadline, step).await.map_err(late)?
    }
}

async fn small_body(mut answer: Response) -> Result<Vec<u8>, CallError> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(CallError::no_answer)? {
        if body.len() + piece.len() > TOKEN_MAX {
            return Err(CallError::Rule("the token is too long"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Reads what an answer says beside where it leads, if that is short: then its connection can be used
/// again. If it cannot, nothing is lost.
async fn drain(mut answer: Response) {
    if answer.content_length().is_some_and(|all| all <= LEAD_MAX) {
        let rest = async { while let Ok(Some(_)) = answer.chunk().await {} };
        let _late = timeout(LEAD_WAIT, rest).await;
    }
}

fn build(config: &ClientConfig, names: Option<Names>) -> Result<reqwest::Client, reqwest::Error> {
    // Another part of the program may have chosen one already: it is as good.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(config.user_agent)
        .connect_timeout(config.connect)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .redirect(Policy::none()) // `travel` goes, and looks where
        .no_proxy(); // the environment is the caller's business
    if let Some(names) = names {
        builder = builder.dns_resolver(names);
    }
    if let Some(proxy) = &config.proxy {
        builder = builder.proxy(Proxy::https(proxy)?);
    }
    if config.registry.scheme() == "http" && config.authorities.is_empty() {
        // Without TLS a system without certificates is good enough.
        return builder.tls_certs_only([]).build();
    }
    let mut certificates = Vec::new();
    for pem in &config.authorities {
        certificates.extend(Certificate::from_pem_bundle(pem)?);
    }
    builder.tls_certs_merge(certificates).build()
}

fn login_header(login: &Login) -> Option<HeaderValue> {
    secret(&basic(&login.username, &login.password))
}

fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
