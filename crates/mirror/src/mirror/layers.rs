//! Responses with blobs: from the cache, from a download in progress, or passed through.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, IF_RANGE, RANGE,
};
use hyper::{Method, StatusCode};
use tokio::time::timeout;

use super::body::{self, Gone, Pipe, Piped};
use super::fill::{Origin, fill, pass};
use super::proofs::ContentKind;
use super::range::RequestedRange;
use super::reply::{CONTENT_DIGEST, Needed, Refusal, Reply, Source, bare, document, set};
use super::{Granted, Mirror, has_it, not_modified};
use crate::blobs::{BlobDigest, BlobState, End, FillError, Growing};

/// How long a request waits until the download of its blob has begun.
const BEGIN: Duration = Duration::from_secs(20);
/// How many downloads of a blob a request may join, one after another.
const FILLS: u32 = 3;
/// A range that begins within this distance of a download's progress waits for it, and is not
/// fetched separately.
const AHEAD: u64 = 1 << 20;
/// The longest range that is fetched separately.
const APART_MAX: u64 = 16 << 20;

/// A blob to serve, complete or being downloaded.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) place: BlobState,
    pub(super) size: u64,
    pub(super) source: Source,
}

impl Mirror {
    /// Handles a request for a blob.
    pub(super) async fn layer(
        self: &Arc<Self>,
        granted: &Granted,
        digest: &BlobDigest,
        needed: Needed,
        headers: &HeaderMap,
    ) -> Result<(Source, Reply), Refusal> {
        let etag = format!("\"{digest}\"");
        let origin = self.origin(granted, digest);
        if needed == Needed::Head || has_it(headers, &etag) {
            let (source, size) = self.size_of(granted, digest, &origin).await?;
            if let Some(reply) = not_modified(headers, &etag) {
                return Ok((source, reply));
            }
            let mut reply = bare(StatusCode::OK);
            describe(&mut reply, digest, &etag, size);
            return Ok((source, reply));
        }
        let served = match self.serve_blob(granted, digest, &origin).await {
            Ok(served) => served,
            Err(Unserved::NoRoom(size)) => Served {
                place: BlobState::Growing(Arc::new(Growing::without_room(
                    &granted.key(digest),
                    size,
                ))),
                size,
                source: Source::Passed,
            },
            Err(Unserved::Refused(refusal)) => return Err(refusal),
        };
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let is_current = header(IF_RANGE).is_none_or(|condition| condition == etag);
        let range = header(RANGE).filter(|_| is_current);
        let wanted = RequestedRange::parse(range, served.size);
        let (start, end) = match wanted {
            RequestedRange::All => (0, served.size),
            RequestedRange::Part { start, end, .. } => (start, end),
            RequestedRange::Several => {
                return Err(Refusal::invalid(
                    "requests for several ranges are not supported",
                ));
            }
            RequestedRange::Nothing => {
                let mut reply = bare(StatusCode::RANGE_NOT_SATISFIABLE);
                set(
                    &mut reply,
                    CONTENT_RANGE,
                    &format!("bytes */{}", served.size),
                );
                return Ok((Source::None, reply));
            }
        };
        let (size, source) = (served.size, served.source);
        let mut reply = self.send(served, origin, wanted, start, end).await?;
        describe(&mut reply, digest, &etag, end - start);
        if wanted != RequestedRange::All {
            *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {start}-{}/{size}", end - 1);
            set(&mut reply, CONTENT_RANGE, &range);
        }
        Ok((source, reply))
    }

    pub(super) fn origin(&self, granted: &Granted, digest: &BlobDigest) -> Origin {
        Origin {
            upstream: Arc::clone(&granted.upstream),
            repository: granted.scope.repository.clone(),
            what: format!("blobs/{digest}"),
            asker: granted.asker.clone(),
            counters: Arc::clone(&self.counters),
            pace: self.fetching.clone(),
            claim: self.claim(granted, digest),
        }
    }

    /// Returns how long a blob is, without downloading any of it.
    async fn size_of(
        &self,
        granted: &Granted,
        digest: &BlobDigest,
        origin: &Origin,
    ) -> Result<(Source, u64), Refusal> {
        let found = self.blobs.peek(&granted.key(digest));
        let here = match found.inspect_err(note_unreadable) {
            Ok(Some(BlobState::Whole(whole))) => Some(whole.size),
            Ok(Some(BlobState::Growing(growing))) => growing.watch().borrow().size,
            _ => None,
        };
        if let Some(size) = here {
            let proved = self.prove(granted, digest, ContentKind::Blob).await?;
            return Ok((proved.source(), size));
        }
        if !self.config.load.may_fetch() {
            return Err(Refusal::shed());
        }
        Ok((Source::Passed, size_there(origin).await?))
    }

    /// Finds a blob in the cache, or starts its download. The first client's download is its access
    /// check; all others are checked with the registry.
    pub(super) async fn serve_blob(
        self: &Arc<Self>,
        granted: &Granted,
        digest: &BlobDigest,
        origin: &Origin,
    ) -> Result<Served, Unserved> {
        let key = granted.key(digest);
        let mut last = None;
        for _ in 0..FILLS {
            if !self.blobs.is_here(&key) && !self.config.load.may_fetch() {
                return Err(Refusal::shed().into());
            }
            let (growing, source) = match self.blobs.find(&key).inspect_err(note_unreadable) {
                Err(_) => return Err(self.passed(granted, digest, origin).await?),
                Ok(BlobState::Whole(whole)) => {
                    let proved = self.prove(granted, digest, ContentKind::Blob).await?;
                    return Ok(Served {
                        size: whole.size,
                        place: BlobState::Whole(whole),
                        source: proved.source(),
                    });
                }
                Ok(BlobState::Growing(growing)) => (growing, Source::Joined),
                Ok(BlobState::Lead(lead)) => {
                    let growing = lead.growing();
                    self.start(lead, origin.clone());
                    (growing, Source::Miss)
                }
            };
            match begun(&growing).await {
                Ok(size) => {
                    // If it is brought in our name, the registry has said so to whoever does.
                    self.prove(granted, digest, ContentKind::Blob).await?;
                    return Ok(Served {
                        place: BlobState::Growing(growing),
                        size,
                        source,
                    });
                }
                Err(FillError::NoRoom(size)) => {
                    self.prove(granted, digest, ContentKind::Blob).await?;
                    return Err(Unserved::NoRoom(size));
                }
                Err(FillError::Disk(_)) => {
                    return Err(self.passed(granted, digest, origin).await?);
                }
                Err(error) if source == Source::Miss => return Err(refused(&error)),
                // Another's fill, perhaps for another repository: now our own.
                Err(error) => last = Some(error),
            }
        }
        match last {
            // Others, who may not have it, were before us each time: it is passed on.
            Some(FillError::NotFound | FillError::Denied(_)) => {
                Err(Unserved::NoRoom(size_there(origin).await?))
            }
            error => Err(refused(&error.unwrap_or(FillError::GivenUp))),
        }
    }

    /// Returns how a blob is served that the disk fails: it is passed through.
    async fn passed(
        self: &Arc<Self>,
        granted: &Granted,
        digest: &BlobDigest,
        origin: &Origin,
    ) -> Result<Unserved, Unserved> {
        if !self.config.load.may_fetch() {
            return Err(Refusal::shed().into());
        }
        self.prove(granted, digest, ContentKind::Blob).await?;
        Ok(Unserved::NoRoom(size_there(origin).await?))
    }

    /// Downloads a blob in the background, even if its client disconnects. Fails it at once if too
    /// many downloads wait.
    fn start(&self, lead: crate::blobs::Lead, origin: Origin) {
        let Ok(queued) = Arc::clone(&self.fill_queue).try_acquire_owned() else {
            lead.fail(FillError::TooMany);
            return;
        };
        let places = Arc::clone(&self.fills);
        tokio::spawn(async move {
            let _queued = queued;
            let _place = places.acquire_owned().await;
            fill(lead, origin).await;
        });
    }

    /// Sends a part of a blob.
    async fn send(
        self: &Arc<Self>,
        served: Served,
        origin: Origin,
        wanted: RequestedRange,
        start: u64,
        end: u64,
    ) -> Result<Reply, Refusal> {
        if let BlobState::Whole(whole) = &served.place
            && end - start <= body::PIECE
        {
            // A small read needs no task and no channel.
            let bytes = match start < end {
                true => body::read(&whole.file, start, end)
                    .await
                    .map_err(unreadable)?,
                false => Bytes::new(),
            };
            return Ok(document(StatusCode::OK, "application/octet-stream", bytes));
        }
        let (piped, pipe) = Piped::new(end - start);
        let is_whole = start == 0 && end == served.size;
        let apart = is_apart(&served, wanted, end - start, end);
        let mirror = Arc::clone(self);
        tokio::spawn(async move {
            let stream = BodyStream {
                mirror,
                origin,
                pipe,
                end,
                is_whole,
            };
            // Without a reader there is nobody to tell.
            let _gone = stream.run(served.place, start, apart).await;
        });
        Ok(Reply::new(piped.boxed()))
    }
}

/// Why a blob is not served from the cache.
#[derive(Debug)]
pub(super) enum Unserved {
    /// The cache has no room for it: it is passed through. Its size.
    NoRoom(u64),
    Refused(Refusal),
}

impl From<Refusal> for Unserved {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Streams one body.
struct BodyStream {
    mirror: Arc<Mirror>,
    origin: Origin,
    pipe: Pipe,
    end: u64,
    /// Whether all of the blob is sent, and can be verified on its way.
    is_whole: bool,
}

impl BodyStream {
    async fn run(&self, mut place: BlobState, mut at: u64, apart: bool) -> Result<(), Gone> {
        if apart && let BlobState::Growing(growing) = &place {
            return self.look(growing, at).await;
        }
        for _ in 0..FILLS {
            let growing = match place {
                BlobState::Whole(whole) => {
                    return body::send_file(&whole.file, &mut at, self.end, &self.pipe).await;
                }
                BlobState::Growing(growing) => growing,
                BlobState::Lead(lead) => {
                    let growing = lead.growing();
                    self.mirror.start(lead, self.origin.clone());
                    growing
                }
            };
            let ended = body::follow(&growing, &mut at, self.end, &self.pipe).await?;
            match ended.as_deref() {
                None => return Ok(()),
                Some(FillError::NoRoom(_) | FillError::Disk(_)) => return self.pass_on(at).await,
                Some(
                    error @ (FillError::Mismatch(_) | FillError::NotFound | FillError::Denied(_)),
                ) => {
                    return self.cut(error).await;
                }
                // What is there is kept, and the next fill goes on from it.
                Some(error) => log::debug!("a fill ended under its readers: {error}"),
            }
            place = match self.mirror.blobs.find(growing.key()) {
                Ok(place) => place,
                Err(error) => return self.cut(&error).await,
            };
        }
        self.cut(&FillError::GivenUp).await
    }

    /// Sends a range that the download has not reached: it is fetched separately, once for all
    /// clients.
    async fn look(&self, growing: &Growing, mut at: u64) -> Result<(), Gone> {
        let dir = self.mirror.blobs.parts_dir(growing.key().realm);
        let source = || self.mirror.apart.source(&self.origin);
        let mut look = match growing.look(&dir, &(at..self.end), source) {
            Ok(Some(look)) => look,
            Ok(None) => return self.pass_on(at).await,
            Err(error) => {
                log::warn!("a range cannot be shared by clients: {error}");
                return self.pass_on(at).await;
            }
        };
        match body::follow_look(&mut look, &mut at, self.end, &self.pipe).await? {
            true => Ok(()),
            // It was fetched in the name of who asked first, whom the registry may refuse it by now.
            false => self.pass_on(at).await,
        }
    }

    async fn pass_on(&self, at: u64) -> Result<(), Gone> {
        let verified = self.is_whole && at == 0;
        match pass(&self.origin, at, self.end, verified, &self.pipe).await {
            Ok(()) => Ok(()),
            Err(error) => self.cut(&error).await,
        }
    }

    async fn cut(&self, why: &(dyn std::error::Error + Sync)) -> Result<(), Gone> {
        log::debug!("{}: a client is cut off: {why}", self.origin.what);
        let why = io::Error::other(why.to_string());
        self.pipe.send(Err(why)).await.map_err(|_| Gone)
    }
}

/// Whether a range is fetched separately: it is in the middle of the blob, and the download will
/// not reach it soon.
fn is_apart(served: &Served, wanted: RequestedRange, length: u64, end: u64) -> bool {
    let BlobState::Growing(growing) = &served.place else {
        return false;
    };
    let is_look = matches!(
        wanted,
        RequestedRange::Part {
            is_bounded: true,
            ..
        }
    ) && length <= APART_MAX;
    is_look && growing.watch().borrow().readable.saturating_add(AHEAD) < end
}

/// Waits until a download knows the size of its blob.
async fn begun(growing: &Growing) -> Result<u64, FillError> {
    let mut watch = growing.watch();
    let begun = watch.wait_for(|progress| progress.size.is_some() || progress.end.is_some());
    let progress = match timeout(BEGIN, begun).await {
        Ok(Ok(progress)) => progress.clone(),
        Ok(Err(_)) => return Err(FillError::GivenUp),
        Err(_) => {
            let seconds = BEGIN.as_secs();
            let message = format!("the upstream did not begin to answer within {seconds} s");
            return Err(FillError::Upstream(message));
        }
    };
    match (progress.size, progress.end) {
        (_, Some(End::Failed(error))) => Err((*error).clone()),
        (Some(size), _) => Ok(size),
        (None, _) => Err(FillError::GivenUp),
    }
}

/// Requests the size of a blob from the registry.
async fn size_there(origin: &Origin) -> Result<u64, Refusal> {
    let answer = origin.ask(Method::HEAD, None, None).await?;
    let size = answer.headers().get(CONTENT_LENGTH);
    let size = size.and_then(|size| size.to_str().ok()?.parse().ok());
    let size = size.ok_or_else(|| {
        Refusal::absent("the upstream registry does not tell the length of the blob")
    })?;
    origin.claim.note();
    Ok(size)
}

fn describe(reply: &mut Reply, digest: &BlobDigest, etag: &str, length: u64) {
    set(reply, CONTENT_TYPE, "application/octet-stream");
    set(reply, CONTENT_LENGTH, &length.to_string());
    set(reply, CONTENT_DIGEST, &digest.to_string());
    set(reply, ETAG, etag);
    set(reply, ACCEPT_RANGES, "bytes");
}

fn refused(error: &FillError) -> Unserved {
    Unserved::Refused(error.into())
}

fn note_unreadable(error: &io::Error) {
    log::error!("a blob cannot be read: {error}");
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreadable(error: io::Error) -> Refusal {
    note_unreadable(&error);
    Refusal::unavailable("the mirror cannot read the blob from its cache")
}
