//! The pull-through mirror: pulls of Docker, containerd and skopeo are fetched once, cached, and served
//! to authorized clients.
//!
//! ```text
//! serve ─► route ─► access ─┬─► manifests ─► Catalog ─┐
//!  (connections, deadlines) ├─► layers ────► BlobCache ├─► Upstream
//!                           └─► listings ─────────────┘
//! ```
//!
//! Three rules hold everywhere. Requests to an upstream registry have deadlines, and cached content is
//! served while it does not respond. A client that cannot be served gets a 404 soon: then it goes to
//! the next mirror or the registry, while an error or silence makes its pull fail. And wrong content is
//! worse than none: a blob is verified before its last bytes are sent, and if that fails, the
//! connection is reset.

mod access;
mod apart;
mod attempt;
mod body;
mod catalog;
mod counters;
mod document;
mod documents;
mod fill;
#[cfg(feature = "testing")]
pub mod hostile;
mod images;
mod layers;
mod listings;
mod locks;
mod manifests;
mod openness;
mod operator;
mod prewarm;
mod proof;
mod proofs;
mod range;
mod reply;
mod route;
mod scope;
mod serve;
mod write_timeout;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use tokio::sync::Semaphore;

pub use access::{Access, ClientRule, Network, ParseNetworkError};
pub use apart::RangeStats;
#[cfg(feature = "testing")]
pub(crate) use body::{Pipe, Piped};
pub use images::WholeImage;
pub use operator::{MirrorStats, UpstreamStats};
pub use prewarm::Prewarmed;
pub use reply::{Refusal, Reply, document};
pub use route::{Version, parameter};
pub use serve::{Acceptor, ServeConfig, serve, take_connections};

use access::{Caller, Decision, Grants};
use apart::Apart;
use catalog::Catalog;
use counters::{Counters, Kind};
use documents::Documents;
use listings::Listings;
use locks::KeyedLocks;
use proof::Principal;
use reply::{Needed, Source, bare, set};
use route::{Route, unknown};
use scope::Scope;

use crate::blobs::{BlobCache, BlobConfig, Realm};
use crate::upstream::{Asker, Login, Upstream, UpstreamError, UpstreamRequest, Upstreams};
use serving::load::Load;
use serving::rate::RateLimiter;

/// Concurrent downloads of blobs. More do not make a registry faster.
const FILLS: usize = 32;
/// Downloads that wait for one of these to end. Requests for further blobs are refused.
const FILLS_WAITING: usize = 256;

/// The header that clients expect in every response of a registry.
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const OCI_NAMESPACE: HeaderName = HeaderName::from_static("oci-namespace");

/// The configuration of a mirror.
#[derive(Clone, Debug)]
pub struct MirrorConfig {
    /// How long a tag is not revalidated.
    pub tag_ttl: Duration,
    /// How long a "not found" of a registry is cached.
    pub absent_ttl: Duration,
    /// The configuration of the cache of blobs.
    pub blobs: BlobConfig,
    /// The load of the machine.
    pub load: Arc<Load>,
    /// The limit of bytes per second of blobs from all registries together, if there is one.
    pub fetch_rate: Option<NonZeroU64>,
}

/// A mirror of some registries, with its cache in one directory.
#[derive(Debug)]
pub struct Mirror {
    config: MirrorConfig,
    upstreams: Upstreams,
    access: HashMap<String, Access>,
    catalog: Arc<Catalog>,
    blobs: Arc<BlobCache>,
    grants: Grants,
    counters: Arc<Counters>,
    locks: KeyedLocks,
    listings: Listings,
    documents: Documents,
    fills: Arc<Semaphore>,
    /// Limits the downloads, with those that wait.
    fill_queue: Arc<Semaphore>,
    /// Limits the pulls whose blobs are confirmed before their clients ask for them.
    pulls: Arc<Semaphore>,
    fetching: Option<Arc<RateLimiter>>,
    apart: Arc<Apart>,
    draining: AtomicBool,
}

/// The mirror's directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenMirrorError {
    /// The cache of blobs cannot be opened.
    #[error("opening the blobs (is another process using them?)")]
    Blobs(#[source] io::Error),
}

/// A request that passed access control.
#[derive(Clone, Debug)]
struct Granted {
    upstream: Arc<Upstream>,
    scope: Scope,
    asker: Asker,
    principal: Principal,
    /// Which part of the cache holds what the upstream sends to this client.
    realm: Realm,
}

impl Mirror {
    /// Opens a mirror in a directory, which is created if it does not exist. Sends no request. A
    /// registry without an access rule is served to no client.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open(
        dir: &Path,
        config: MirrorConfig,
        registries: Vec<(Arc<Upstream>, Access)>,
    ) -> Result<Arc<Self>, OpenMirrorError> {
        std::fs::create_dir_all(dir).map_err(OpenMirrorError::Blobs)?;
        // The catalog second: the lock is with the blobs.
        let shared: Arc<std::sync::OnceLock<Arc<Catalog>>> = Arc::default();
        let known = Arc::clone(&shared);
        let worth = move |digest: &_| known.get().map_or((0, 0), |catalog| catalog.worth(digest));
        let realms = registries.iter();
        let realms = realms.map(|(upstream, access)| access.realm(upstream.name()));
        let realms: Vec<_> = realms.collect();
        let blobs = BlobCache::open(dir, config.blobs, &realms, Box::new(worth));
        let blobs = blobs.map_err(OpenMirrorError::Blobs)?;
        let rules = registries.iter();
        let rules = rules.map(|(upstream, access)| (upstream.name(), access));
        openness::settle(dir, rules, &blobs).map_err(OpenMirrorError::Blobs)?;
        let documents = Documents::default();
        let budget = config.blobs.budget;
        let catalog = Catalog::open(&dir.join(openness::CATALOG), budget, documents.clone());
        let catalog = Arc::clone(shared.get_or_init(|| Arc::new(catalog)));
        let upstreams = registries.iter().map(|(upstream, _)| Arc::clone(upstream));
        Ok(Arc::new(Self {
            fetching: config
                .fetch_rate
                .map(|rate| Arc::new(RateLimiter::new(rate))),
            config,
            upstreams: Upstreams::new(upstreams.collect()),
            access: registries
                .into_iter()
                .map(|(upstream, access)| (upstream.name().to_owned(), access))
                .collect(),
            catalog,
            blobs: Arc::new(blobs),
            grants: Grants::default(),
            counters: Arc::default(),
            locks: KeyedLocks::default(),
            listings: Listings::default(),
            documents,
            fills: Arc::new(Semaphore::new(FILLS)),
            fill_queue: Arc::new(Semaphore::new(FILLS + FILLS_WAITING)),
            pulls: Self::pulls(),
            apart: Arc::default(),
            draining: AtomicBool::new(false),
        }))
    }

    /// Marks the mirror as shutting down: `/readyz` fails from now on.
    pub fn drain(&self) {
        self.draining.store(true, SeqCst);
    }

    /// Returns whether it is not shutting down.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.draining.load(SeqCst)
    }

    /// Handles a request of a client.
    async fn answer<B>(
        self: &Arc<Self>,
        peer: IpAddr,
        request: &Request<B>,
    ) -> (Kind, Source, Reply) {
        let unknown = unknown(request.uri().path());
        let Some(route) = Route::parse(request.uri().path()) else {
            let refusal = Refusal::absent("nothing is served at this path").named(unknown);
            return (Kind::Other, Source::None, refusal.into_reply());
        };
        let kind = match &route {
            Route::Manifest(..) => Kind::Manifest,
            Route::Blob(..) => Kind::Blob,
            _ => Kind::Other,
        };
        let ns = parameter(request.uri().query(), "ns");
        let answered = self
            .answer_route(peer, request, &route, ns.as_deref())
            .await;
        let (source, mut reply) =
            answered.unwrap_or_else(|refusal| (Source::None, refusal.named(unknown).into_reply()));
        let version = HeaderValue::from_static("registry/2.0");
        reply.headers_mut().insert(API_VERSION, version);
        if let Some(ns) = ns {
            set(&mut reply, OCI_NAMESPACE, &ns);
        }
        (kind, source, reply)
    }

    async fn answer_route<B>(
        self: &Arc<Self>,
        peer: IpAddr,
        request: &Request<B>,
        route: &Route,
        ns: Option<&str>,
    ) -> Result<(Source, Reply), Refusal> {
        let needed = match *request.method() {
            Method::GET => Needed::Body,
            Method::HEAD => Needed::Head,
            _ => return Err(Refusal::read_only()),
        };
        let Some(repository) = route.repository() else {
            let reply = document(StatusCode::OK, "application/json", "{}".into());
            return Ok((Source::Hit, reply));
        };
        let (upstream, repository) = self.place(repository, ns)?;
        let scope = Scope {
            registry: upstream.name().to_owned(),
            repository,
        };
        let caller = Caller {
            peer,
            login: login_in(request.headers()),
        };
        let granted = self.admit(&caller, upstream, scope, route).await?;
        match route {
            Route::Base => Err(Refusal::absent("unreachable")),
            Route::Manifest(_, version) => {
                self.manifest(&granted, version, needed, request.headers())
                    .await
            }
            Route::Blob(_, digest) => {
                self.layer(&granted, digest, needed, request.headers())
                    .await
            }
            Route::Tags(_) | Route::Referrers(..) => {
                self.listing(&granted, route, request.uri().query()).await
            }
        }
    }

    /// Finds the registry that a client means, and the repository there.
    fn place(&self, name: &str, ns: Option<&str>) -> Result<(Arc<Upstream>, String), Refusal> {
        let unknown = || Refusal::no_repository("the mirror is not configured for this registry");
        if let Some(ns) = ns {
            let upstream = self.upstreams.named(ns).ok_or_else(unknown)?;
            return Ok((Arc::clone(upstream), name.to_owned()));
        }
        if let Some((first, rest)) = name.split_once('/')
            && first.contains(['.', ':'])
        {
            let upstream = self.upstreams.named(first).ok_or_else(unknown)?;
            return Ok((Arc::clone(upstream), rest.to_owned()));
        }
        let upstream = self.upstreams.default().ok_or_else(unknown)?;
        Ok((Arc::clone(upstream), name.to_owned()))
    }

    /// Applies access control to a request, before the cache is looked up.
    async fn admit(
        &self,
        caller: &Caller,
        upstream: Arc<Upstream>,
        scope: Scope,
        route: &Route,
    ) -> Result<Granted, Refusal> {
        let nobody = Access::Clients(Vec::new());
        let access = self.access.get(upstream.name()).unwrap_or(&nobody);
        let realm = access.realm(upstream.name());
        let granted = |asker| Granted {
            principal: Principal::of(&asker),
            upstream,
            scope: scope.clone(),
            asker,
            realm,
        };
        let (granted, stale) = match self.grants.decide(access, caller, &scope) {
            Decision::Yes(asker) => return Ok(granted(asker)),
            Decision::No => {
                self.counters.denied.inc();
                return Err(Refusal::denied());
            }
            Decision::UpstreamRequest { asker, stale } => (granted(asker), stale),
        };
        let what = match route {
            Route::Manifest(_, route::Version::Tag(tag)) => format!("manifests/{tag}"),
            Route::Manifest(_, route::Version::Digest(digest)) => format!("manifests/{digest}"),
            Route::Blob(_, digest) => format!("blobs/{digest}"),
            // Whoever may see the names of tags may see the tags.
            _ => "tags/list".to_owned(),
        };
        let method = match route {
            Route::Manifest(..) | Route::Blob(..) => Method::HEAD,
            _ => Method::GET,
        };
        let mut ask = UpstreamRequest::new(method, &scope.repository, what);
        ask.asker = granted.asker.clone();
        let accept = HeaderValue::from_static(document::ACCEPT);
        ask.headers.insert(hyper::header::ACCEPT, accept);
        self.counters.asked.inc();
        match granted.upstream.ask(&ask).await {
            Ok(answer) => {
                self.grants.grant(granted.principal, &scope);
                self.learn(&granted, route, answer.headers());
            }
            Err(error) if error.is_outage() && stale => {
                self.counters.outages.inc();
            }
            Err(UpstreamError::Denied(_)) => {
                self.counters.denied.inc();
                self.grants.revoke(granted.principal, &scope);
                return Err(Refusal::unauthorized());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(granted)
    }

    /// Notes what the response of a registry to an access check says of the requested content.
    fn learn(&self, granted: &Granted, route: &Route, headers: &HeaderMap) {
        match route {
            Route::Blob(_, digest) | Route::Manifest(_, route::Version::Digest(digest)) => {
                self.claim(granted, digest).note();
            }
            Route::Manifest(_, route::Version::Tag(tag)) => {
                if let Some(tagged) = manifests::described(headers) {
                    self.claim(granted, &tagged.digest).note();
                    self.catalog.put_tag(&granted.scope, tag, &tagged);
                }
            }
            _ => {}
        }
    }
}

/// The longest Authorization header that is read. A token in place of a password has some KiB; a
/// longer header is ignored.
const LOGIN_MAX: usize = 16 << 10;

/// Returns the name and the password that a client sent.
fn login_in(headers: &HeaderMap) -> Option<Login> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    if value.len() > LOGIN_MAX {
        return None;
    }
    let (username, password) = distribution::parse_basic(value)?;
    Some(Login { username, password })
}

/// Returns whether what a client has is what it would get: the condition of `If-None-Match`.
fn has_it(headers: &HeaderMap, etag: &str) -> bool {
    let conditions = headers.get_all(hyper::header::IF_NONE_MATCH).iter();
    let conditions = conditions.filter_map(|value| value.to_str().ok());
    // Compared weakly, as the standard has it for this header.
    let mut tags = conditions.flat_map(|value| value.split(',').map(str::trim));
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// Answers a condition: what the client has is what it would get.
fn not_modified(headers: &HeaderMap, etag: &str) -> Option<Reply> {
    has_it(headers, etag).then(|| {
        let mut reply = bare(StatusCode::NOT_MODIFIED);
        set(&mut reply, hyper::header::ETAG, etag);
        reply
    })
}

#[cfg(test)]
mod tests;
