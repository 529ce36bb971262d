//! The operator's API: health, status, metrics, prewarming, pins, and removal of cached data.

mod door;
mod metrics;
mod sources;
mod upkeep;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use blocks::ContentId;
use hyper::body::Incoming;
use hyper::header::ORIGIN;
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use door::{AdminDoor, AdminToken};
pub use sources::{ListedSource, TakenChunk};
pub use upkeep::{BlocksStatus, Collected, CollectedChunks, Verified};

use blockservice::service::Service;
use chunks::{Sources, Stay};
use mirror::blobs::{BlobCache, Evicted};
use mirror::{
    Mirror, RangeStats, Refusal, Reply, ServeConfig, UpstreamStats, Version, WholeImage, document,
    parameter, take_connections,
};
use serving::load::LoadReport;
use serving::metrics::{CONTENT_TYPE, exposition};
use sources::on_disk;

/// Enough for an operator, Prometheus and a prober or two.
const CONNECTIONS: ServeConfig = ServeConfig {
    connections: 32,
    connections_of_one: 32,
    send_rate_of_one: None,
};

/// A blob that no image needs is garbage when it was not requested for this long.
const IDLE: Duration = Duration::from_secs(3600);

/// The status of nicfetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminStatus {
    /// The version of the program.
    pub version: String,
    /// Whether new clients are welcome: it is not shutting down.
    pub ready: bool,
    /// The upstream registries; the first is for clients that name none.
    pub upstreams: Vec<UpstreamStatus>,
    /// Manifests in the catalog.
    pub manifests: u64,
    /// Bytes of the catalog's file.
    #[serde(default)]
    pub catalog_bytes: u64,
    /// The limit of this file.
    #[serde(default)]
    pub catalog_budget_bytes: u64,
    /// Complete blobs.
    pub blobs: u64,
    /// Blobs that are being downloaded.
    pub growing: u64,
    /// Bytes of blobs on the disk.
    pub stored_bytes: u64,
    /// The limit of these bytes.
    pub budget_bytes: u64,
    /// Blobs that were evicted since the start.
    pub evicted: Removed,
    /// The block service, if there is one.
    pub blocks: Option<BlocksStatus>,
    /// The load of the machine.
    pub load: LoadStatus,
}

/// The load of the machine, and the work that was not done because of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadStatus {
    /// `normal`, `careful` or `shedding`.
    pub level: String,
    /// The cause; null at `normal`.
    pub reason: Option<String>,
    /// Which of `cpu`, `memory`, `io` and `memory_used` are measured.
    pub watched: Vec<String>,
    /// Requests that were refused because they needed a fetch from a registry.
    pub shed: u64,
    /// Background work that was not done.
    pub put_off: u64,
}

impl From<LoadReport> for LoadStatus {
    fn from(report: LoadReport) -> Self {
        Self {
            level: report.level.word().to_owned(),
            reason: report.reason,
            watched: report.watched.into_iter().map(str::to_owned).collect(),
            shed: report.shed,
            put_off: report.put_off,
        }
    }
}

/// The status of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// The name that clients use.
    pub name: String,
    /// Whether its last request failed a moment ago.
    pub out: bool,
    /// Ranges of blobs that were requested of it, ahead of downloads.
    #[serde(default)]
    pub ranges: RangeStats,
}

/// A blob in the cache, complete or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedBlob {
    /// Its digest.
    pub digest: String,
    /// Its bytes on the disk.
    pub bytes: u64,
    /// `whole`, `part` or `growing`.
    pub state: String,
    /// Manifests that need it.
    pub references: u64,
    /// Seconds since 1970 of the last request for it; 0 if unknown.
    pub used: u64,
}

/// Blobs that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Blobs, complete and incomplete.
    pub blobs: u64,
    /// Their bytes on the disk.
    pub bytes: u64,
}

impl From<Evicted> for Removed {
    fn from(evicted: Evicted) -> Self {
        Self {
            blobs: evicted.blobs,
            bytes: evicted.bytes,
        }
    }
}

/// What the operator's API controls.
#[derive(Clone, Debug)]
pub struct Operated {
    /// The mirror, with or without registries.
    pub mirror: Arc<Mirror>,
    /// The block service, if there is one.
    pub blocks: Option<BlockSide>,
}

/// The block service with its sources.
#[derive(Clone, Debug)]
pub struct BlockSide {
    sources: Arc<Sources>,
    service: Service,
    feed: Arc<dyn Feed>,
    /// Bytes of the files of sources, by their indexes.
    sizes: Arc<Mutex<HashMap<ContentId, u64>>>,
    /// Held while an index is received and added: one at a time is in memory.
    index_lock: Arc<tokio::sync::Mutex<()>>,
}

impl BlockSide {
    /// Returns a block service with its sources, and the feed that adds more of them.
    #[must_use]
    pub fn new(sources: Arc<Sources>, service: Service, feed: Arc<dyn Feed>) -> Self {
        Self {
            sources,
            service,
            feed,
            sizes: Arc::default(),
            index_lock: Arc::default(),
        }
    }
}

/// Turns images of the mirror into sources of the block service, in the background.
pub trait Feed: Send + Sync + std::fmt::Debug {
    /// Enqueues an image, also one that was set aside. The queue survives a restart.
    ///
    /// # Errors
    /// If the queue cannot be written.
    fn want(&self, image: WholeImage) -> std::io::Result<()>;

    /// Returns its progress.
    fn fed(&self) -> FeedStatus;
}

/// The progress of turning images into sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedStatus {
    /// The image that is in progress.
    pub at: Option<String>,
    /// Images in the queue.
    pub waiting: u64,
    /// Images that became sources since the start.
    pub done: u64,
    /// Images that could not become sources.
    pub failed: u64,
    /// Images that failed, or crashed the process, so often that they are not retried before they
    /// are prewarmed.
    #[serde(default)]
    pub set_aside: u64,
    /// Some of these.
    #[serde(default)]
    pub aside: Vec<SetAside>,
}

/// An image that is not retried automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// The name that clients use.
    pub name: String,
    /// The digest of its manifest; the name is retried when it means another one.
    pub digest: String,
    /// Why the last attempt failed.
    pub why: String,
}

/// Serves the operator's API until `closed` becomes true.
pub async fn serve_admin(operated: Operated, door: AdminDoor, closed: watch::Receiver<bool>) {
    let guard = door.guard();
    let answer = move |caller, request: Request<Incoming>| {
        let (operated, admitted) = (operated.clone(), guard.admit(caller, &request));
        async move {
            let answer = match admitted {
                Ok(()) => operated.operate(request).await,
                Err(refusal) => Err(refusal),
            };
            answer.unwrap_or_else(Refusal::into_reply)
        }
    };
    take_connections(door, CONNECTIONS, closed, answer).await;
}

impl Operated {
    async fn operate(self, request: Request<Incoming>) -> Result<Reply, Refusal> {
        // A page in somebody's browser must not have us remove what is here.
        if request.headers().contains_key(ORIGIN) {
            return Err(Refusal::invalid(
                "requests with an Origin header are refused",
            ));
        }
        match request.uri().path() {
            "/v1/chunks" | "/v1/sources" | "/v1/index" | "/v1/pins" => {
                let blocks = self.blocks.ok_or_else(|| {
                    Refusal::absent(
                        "this nicfetch serves no blocks: set `blocks` in its configuration",
                    )
                })?;
                blocks.operate(request).await
            }
            _ => self.operate_both(&request).await,
        }
    }

    /// Handles requests about the mirror, or about both services.
    async fn operate_both(self, request: &Request<Incoming>) -> Result<Reply, Refusal> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => {
                // Some numbers are read from the disk.
                let page = on_disk(move || exposition(&self.metrics()));
                let page = page.await?.into();
                Ok(document(StatusCode::OK, CONTENT_TYPE, page))
            }
            (&Method::GET, "/v1/status") => {
                let status = on_disk(move || AdminStatus {
                    blocks: self.blocks.map(|blocks| blocks.status()),
                    ..AdminStatus::of(&self.mirror)
                });
                json(&status.await?)
            }
            (&Method::POST, "/v1/prewarm") => self.prewarm(request).await,
            (&Method::POST, "/v1/gc") => self.collect().await,
            (&Method::POST, "/v1/verify") => self.verify().await,
            _ => operate_mirror(&self.mirror, request),
        }
    }

    /// Prewarms an image, and enqueues it as a source.
    async fn prewarm(self, request: &Request<Incoming>) -> Result<Reply, Refusal> {
        let query = request.uri().query();
        let needed = |name| {
            let value = parameter(query, name);
            value.ok_or_else(|| Refusal::invalid(format!("{name}= is missing")))
        };
        let (registry, repository) = (needed("registry")?, needed("repository")?);
        let (reference, architecture) = (needed("reference")?, needed("architecture")?);
        let version = match reference.parse() {
            Ok(digest) => Version::Digest(digest),
            Err(_) if distribution::is_tag(&reference) => Version::Tag(reference),
            Err(_) => return Err(Refusal::invalid("reference= is neither a tag nor a digest")),
        };
        if !distribution::is_repository(&repository) {
            return Err(Refusal::invalid(
                "repository= is not a valid repository name",
            ));
        }
        let mirror = &self.mirror;
        let done = mirror.prewarm(&registry, &repository, version, &architecture);
        let (mut done, image) = done.await?;
        if let Some(blocks) = self.blocks {
            done.source = Some(image.name.clone());
            blocks.want(image).await?;
        }
        json(&done)
    }
}

impl BlockSide {
    async fn operate(self, request: Request<Incoming>) -> Result<Reply, Refusal> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/v1/chunks") => self.take_chunk(request).await,
            (&Method::POST, "/v1/sources") => self.take_source(request).await,
            (&Method::GET, "/v1/sources") => self.sources().await,
            (&Method::GET, "/v1/index") => self.index(request.uri().query()).await,
            (&Method::POST, "/v1/pins") => self.keep(request.uri().query(), Stay::Pinned).await,
            (&Method::DELETE, "/v1/pins") => {
                self.keep(request.uri().query(), Stay::WhileUsed).await
            }
            _ => Err(Refusal::absent("nothing is served at this path")),
        }
    }
}

/// Handles requests about the mirror alone.
fn operate_mirror(mirror: &Mirror, request: &Request<Incoming>) -> Result<Reply, Refusal> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => Ok(text(StatusCode::OK, "alive\n")),
        (&Method::GET, "/readyz") if mirror.is_ready() => Ok(text(StatusCode::OK, "ready\n")),
        (&Method::GET, "/readyz") => Ok(text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")),
        (&Method::GET, "/v1/blobs") => json(&ListedBlob::all(mirror.blobs())),
        _ => Err(Refusal::absent("nothing is served at this path")),
    }
}

impl From<UpstreamStats> for UpstreamStatus {
    fn from(upstream: UpstreamStats) -> Self {
        Self {
            name: upstream.name,
            out: upstream.is_out,
            ranges: upstream.ranges,
        }
    }
}

impl AdminStatus {
    fn of(mirror: &Mirror) -> Self {
        let (stats, blobs) = (mirror.stats(), mirror.blobs());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: mirror.is_ready(),
            upstreams: stats.upstreams.into_iter().map(Into::into).collect(),
            manifests: stats.manifests,
            catalog_bytes: stats.catalog_bytes,
            catalog_budget_bytes: stats.catalog_budget_bytes,
            blobs: blobs.whole_count() as u64,
            growing: blobs.growing_count() as u64,
            stored_bytes: blobs.used_bytes(),
            budget_bytes: blobs.budget(),
            evicted: blobs.evicted().into(),
            blocks: None,
            load: stats.load.into(),
        }
    }
}

impl ListedBlob {
    /// Lists the blobs of a cache, the most recently used first.
    fn all(blobs: &BlobCache) -> Vec<Self> {
        let mut blobs = blobs.list();
        blobs.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.key.cmp(&b.key)));
        let listed = blobs.into_iter().map(|blob| Self {
            digest: blob.key.digest.to_string(),
            bytes: blob.bytes,
            state: blob.state.to_owned(),
            references: blob.references as u64,
            used: blob.used,
        });
        listed.collect()
    }
}

fn text(status: StatusCode, text: &str) -> Reply {
    document(status, "text/plain; charset=utf-8", text.to_owned().into())
}

fn json<T: Serialize>(value: &T) -> Result<Reply, Refusal> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|error| Refusal::absent(error.to_string()))?;
    Ok(document(StatusCode::OK, "application/json", text.into()))
}
