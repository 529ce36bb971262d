//! Downloads a blob from the upstream registry, with retries and resumption.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderValue, IF_MATCH, RANGE};
use reqwest::{Method, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::body::Pipe;
use super::counters::Counters;
use super::proof::{Claim, Freshness};
use crate::blobs::{BlobDigest, FillError, Hasher, Lead, Part, Verdict};
use crate::upstream::{Asker, Upstream, UpstreamError, UpstreamRequest, chunk};
use serving::rate::RateLimiter;

/// Pieces that are queued between the network and the disk; each has at most some 100 KiB.
const QUEUE: usize = 32;
/// Attempts in a row without a byte before a download fails.
const IDLE_TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How often a blob with the wrong digest is downloaded again, if no client has read of it.
const FRESH_STARTS: u32 = 2;

/// The registry and repository of a blob, with the credentials for requests.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) upstream: Arc<Upstream>,
    pub(super) repository: String,
    pub(super) what: String,
    pub(super) asker: Asker,
    pub(super) counters: Arc<Counters>,
    /// The limit of the download's rate.
    pub(super) pace: Option<Arc<RateLimiter>>,
    /// The claim that the repository has it, to be recorded when the registry confirms it.
    pub(super) claim: Claim,
}

impl Origin {
    /// Requests a blob, or a range of it.
    pub(super) async fn ask(
        &self,
        method: Method,
        range: Option<String>,
        etag: Option<&str>,
    ) -> Result<Response, UpstreamError> {
        let mut ask = UpstreamRequest::new(method, &self.repository, self.what.clone());
        ask.asker = self.asker.clone();
        if let Some(range) = range.and_then(|range| HeaderValue::try_from(range).ok()) {
            ask.headers.insert(RANGE, range);
            // Weak tags do not promise the same bytes.
            let strong = etag.filter(|etag| etag.starts_with('"'));
            if let Some(etag) = strong.and_then(|etag| HeaderValue::from_str(etag).ok()) {
                ask.headers.insert(IF_MATCH, etag);
            }
        }
        self.counters.asked.inc();
        let answer = self.upstream.ask(&ask).await;
        if matches!(&answer, Err(error) if error.is_outage()) {
            self.counters.outages.inc();
        }
        answer
    }

    /// Returns the next piece of a body, counted.
    pub(super) async fn chunk(
        &self,
        answer: &mut Response,
    ) -> Result<Option<Bytes>, UpstreamError> {
        let piece = chunk(answer).await?;
        let bytes = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        self.counters.fetched_bytes.inc_by(bytes);
        if let Some(pace) = &self.pace {
            // What is not taken meanwhile waits in sockets, and then at the registry.
            pace.wait(bytes).await;
        }
        Ok(piece)
    }
}

/// Downloads a blob, independent of its readers. After a failure the received bytes are kept.
pub(super) async fn fill(mut lead: Lead, origin: Origin) {
    match bring(&mut lead, &origin).await {
        Ok(()) => {}
        Err(error) => {
            if let FillError::Mismatch(_) = error {
                origin.counters.mismatches.inc();
            }
            if error != FillError::NotFound {
                log::warn!("{} of {}: {error}", origin.what, origin.repository);
            }
            lead.fail(error);
        }
    }
}

async fn bring(lead: &mut Lead, origin: &Origin) -> Result<(), FillError> {
    for _ in 0..FRESH_STARTS {
        let part = lead.open().await?;
        let part = bring_bytes(lead, part, origin).await?;
        if lead.finish(part).await? == Verdict::Good {
            return Ok(());
        }
        origin.counters.mismatches.inc();
    }
    Err(FillError::Upstream(
        "it repeatedly sent bytes with another digest".to_owned(),
    ))
}

/// The offset in the blob at which a response begins, and the size of the blob.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) start: u64,
    pub(super) size: u64,
}

async fn bring_bytes(lead: &mut Lead, part: Part, origin: &Origin) -> Result<Part, FillError> {
    let mut at = part.len();
    let mut patience = Patience::default();
    if part.known_size() == Some(at) {
        // A crash left all of it. For whom it was brought nobody knows.
        while origin.claim.freshness() < Freshness::Fresh {
            match origin.ask(Method::HEAD, None, None).await {
                // Once, whether it can be noted or not.
                Ok(_) => {
                    origin.claim.note();
                    break;
                }
                Err(error) if error.is_outage() && origin.claim.freshness() == Freshness::Stale => {
                    break;
                }
                Err(error) => patience.suffer(error).await?,
            }
        }
        let size = at;
        return lead.begin(part, size, None).await;
    }
    let mut etag = part.etag().map(str::to_owned);
    let (mut answer, stretch) = loop {
        match from(origin, at, etag.as_deref()).await {
            Ok(found) => break found,
            Err(UpstreamError::Refused(412)) => etag = None,
            Err(error) => patience.suffer(error).await?,
        }
    };
    // Before anybody can see any of it.
    origin.claim.note();
    let header = answer.headers().get(ETAG);
    etag = header
        .and_then(|etag| etag.to_str().ok())
        .map(str::to_owned);
    let part = lead.begin(part, stretch.size, etag.clone()).await?;
    let (pieces, queue) = mpsc::channel(QUEUE);
    let writing = lead.write(part, queue);
    let size = stretch.size;
    let mut skip = at - stretch.start;
    let brought = loop {
        let took = take(origin, &mut answer, &pieces, &mut skip, &mut at, size).await;
        let error = match took {
            Ok(Took::All) => break Ok(()),
            Ok(Took::Nobody) => break Ok(()), // the writer says why
            Err(error) => error,
        };
        patience.progress(at);
        if let Err(error) = patience.suffer(error).await {
            break Err(error);
        }
        match from(origin, at, etag.as_deref()).await {
            Ok((next, stretch)) if stretch.size == size => {
                skip = at - stretch.start;
                answer = next;
            }
            Ok(_) => break Err(UpstreamError::Protocol("the blob changed its length").into()),
            Err(UpstreamError::Refused(412)) => etag = None,
            Err(error) => {
                if let Err(error) = patience.suffer(error).await {
                    break Err(error);
                }
            }
        }
    };
    drop(pieces);
    let (part, written) = writing.await.map_err(|_| FillError::GivenUp)?;
    lead.keep(&part);
    written?;
    brought?;
    Ok(part)
}

/// How the body of a response ended.
enum Took {
    /// All bytes of the blob were handed to the writer.
    All,
    /// The writer has ended.
    Nobody,
}

/// Hands the body of a response to the writer, without the bytes that are on the disk already.
async fn take(
    origin: &Origin,
    answer: &mut Response,
    pieces: &mpsc::Sender<Bytes>,
    skip: &mut u64,
    at: &mut u64,
    size: u64,
) -> Result<Took, UpstreamError> {
    while *at < size {
        let Some(mut piece) = origin.chunk(answer).await? else {
            return Err(UpstreamError::Cut);
        };
        let known = usize::try_from(*skip)
            .unwrap_or(usize::MAX)
            .min(piece.len());
        *skip -= known as u64;
        piece = piece.split_off(known);
        let room = usize::try_from(size - *at).unwrap_or(usize::MAX);
        piece.truncate(room);
        *at += piece.len() as u64;
        if !piece.is_empty() && pieces.send(piece).await.is_err() {
            return Ok(Took::Nobody);
        }
    }
    Ok(Took::All)
}

/// Asks for a blob from a byte on. The answer may begin before it.
async fn from(
    origin: &Origin,
    at: u64,
    etag: Option<&str>,
) -> Result<(Response, Stretch), UpstreamError> {
    let range = (at > 0).then(|| format!("bytes={at}-"));
    let answer = origin.ask(Method::GET, range, etag).await?;
    let stretch = stretch(&answer)?;
    if stretch.start > at || stretch.size < at {
        return Err(UpstreamError::Protocol(
            "it sent another range than was requested",
        ));
    }
    Ok((answer, stretch))
}

pub(super) fn stretch(answer: &Response) -> Result<Stretch, UpstreamError> {
    let missing = UpstreamError::Protocol("it does not say how long the blob is");
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        let size = answer.content_length().ok_or(missing)?;
        return Ok(Stretch { start: 0, size });
    }
    let range = answer.headers().get(CONTENT_RANGE);
    let range = range.and_then(|range| range.to_str().ok());
    range.and_then(content_range).ok_or(missing)
}

/// Reads `bytes START-END/SIZE`.
pub(super) fn content_range(text: &str) -> Option<Stretch> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    let size = size.trim().parse().ok()?;
    Some(Stretch { start, size })
}

/// Passes a range of a blob through without caching it. If it is the whole blob, the last piece is
/// sent only after verification.
pub(super) async fn pass(
    origin: &Origin,
    mut at: u64,
    end: u64,
    verified: bool,
    pipe: &Pipe,
) -> Result<(), FillError> {
    let named: Option<BlobDigest> = origin
        .what
        .strip_prefix("blobs/")
        .and_then(|digest| digest.parse().ok());
    let mut check = named
        .filter(|_| verified)
        .map(|digest| (digest.algorithm().hasher(), digest));
    let mut patience = Patience::default();
    let mut held: Option<Bytes> = None;
    while at < end {
        let error = match pass_some(origin, &mut at, end, &mut check, &mut held, pipe).await {
            Ok(()) => continue,
            Err(error) => error,
        };
        patience.progress(at);
        patience.suffer(error).await?;
    }
    if let Some((hasher, digest)) = check {
        let found = hasher.finish();
        if found != digest {
            return Err(FillError::Mismatch(found));
        }
    }
    if let Some(last) = held {
        let _gone = pipe.send(Ok(last)).await;
    }
    Ok(())
}

async fn pass_some(
    origin: &Origin,
    at: &mut u64,
    end: u64,
    check: &mut Option<(Hasher, BlobDigest)>,
    held: &mut Option<Bytes>,
    pipe: &Pipe,
) -> Result<(), UpstreamError> {
    let range = format!("bytes={at}-{}", end - 1);
    let mut answer = origin.ask(Method::GET, Some(range), None).await?;
    let stretch = stretch(&answer)?;
    let mut skip = at.checked_sub(stretch.start);
    while *at < end {
        let Some(mut piece) = origin.chunk(&mut answer).await? else {
            return Err(UpstreamError::Cut);
        };
        let left = skip.ok_or(UpstreamError::Protocol(
            "it sent another range than was requested",
        ))?;
        let known = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        skip = Some(left - known as u64);
        piece = piece.split_off(known);
        piece.truncate(usize::try_from(end - *at).unwrap_or(usize::MAX));
        if piece.is_empty() {
            continue;
        }
        *at += piece.len() as u64;
        if let Some((hasher, _)) = check {
            hasher.update(&piece);
        }
        if let Some(before) = held.replace(piece)
            && pipe.send(Ok(before)).await.is_err()
        {
            // Nobody reads: the end comes at once.
            *at = end;
        }
    }
    Ok(())
}

/// Counts failures in a row.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
    most: u64,
}

impl Patience {
    /// Resets the count after progress.
    fn progress(&mut self, at: u64) {
        if at > self.most {
            self.most = at;
            self.failures = 0;
        }
    }

    /// Waits before the next attempt, or returns the error after too many.
    async fn suffer(&mut self, error: UpstreamError) -> Result<(), FillError> {
        // Silence has cost its deadline already; clients wait.
        let is_silent = matches!(error, UpstreamError::TooSlow { .. });
        self.failures += if is_silent { 2 } else { 1 };
        if !error.is_outage() || self.failures >= IDLE_TRIES {
            return Err(error.into());
        }
        log::debug!("trying again: {error}");
        sleep(FIRST_PAUSE * 2_u32.pow(self.failures - 1)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_answers() {
        let (start, size) = (5, 10);
        assert_eq!(content_range("bytes 5-9/10"), Some(Stretch { start, size }));
        for bad in ["", "bytes */10", "bytes 5-9/*", "5-9/10", "bytes a-9/10"] {
            assert_eq!(content_range(bad), None);
        }
    }
}
