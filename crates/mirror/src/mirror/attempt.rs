//! Requests to a registry within a deadline: retried after a fault, with responses verified by digest.

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;

use super::document::ACCEPT as TAKEN;
use super::reply::CONTENT_DIGEST;
use super::{Granted, Mirror};
use crate::blobs::{Algorithm, BlobDigest};
use crate::upstream::{UpstreamError, UpstreamRequest};

/// The deadline of a request to a registry if there is cached content to fall back to.
pub(super) const WITH_FALLBACK: Duration = Duration::from_millis(1500);
/// The deadline of a request, all attempts together, if there is none.
pub(super) const WITHOUT: Duration = Duration::from_secs(8);
/// The number of attempts.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

impl Mirror {
    /// Sends a request and reads the response; retries within the deadline.
    pub(super) async fn attempt(
        &self,
        granted: &Granted,
        method: Method,
        what: &str,
        within: Duration,
    ) -> Result<RegistryResponse, UpstreamError> {
        let mut ask = UpstreamRequest::new(method, &granted.scope.repository, what.to_owned());
        ask.asker = granted.asker.clone();
        ask.headers.insert(ACCEPT, HeaderValue::from_static(TAKEN));
        let all = async {
            let mut tries = 1;
            loop {
                match self.attempt_once(granted, &ask).await {
                    Err(error) if error.is_outage() => {
                        self.counters.outages.inc();
                        if tries == TRIES {
                            return Err(error);
                        }
                        log::debug!("asking for {what} again: {error}");
                    }
                    result => return result,
                }
                tokio::time::sleep(PAUSE * tries).await;
                tries += 1;
            }
        };
        let seconds = within.as_secs();
        timeout(within, all).await.unwrap_or_else(|_| {
            granted.upstream.note_outage();
            Err(UpstreamError::TooSlow { seconds })
        })
    }

    async fn attempt_once(
        &self,
        granted: &Granted,
        ask: &UpstreamRequest,
    ) -> Result<RegistryResponse, UpstreamError> {
        self.counters.asked.inc();
        let answer = granted.upstream.ask(ask).await?;
        let headers = answer.headers().clone();
        let is_head = ask.method == Method::HEAD;
        let bytes = match is_head {
            true => Bytes::new(),
            false => self.documents.body(answer).await?,
        };
        let fetched = bytes.len() as u64;
        self.counters.fetched_bytes.inc_by(fetched);
        let answer = RegistryResponse { headers, bytes };
        let asked = ask.what.strip_prefix("manifests/");
        let asked = asked.and_then(|what| what.parse().ok());
        let mut names = [answer.claimed(), asked].into_iter().flatten();
        if !is_head && names.any(|named| named != BlobDigest::of(named.algorithm(), &answer.bytes))
        {
            // As good as cut: another time it may be the right one.
            self.counters.mismatches.inc();
            return Err(UpstreamError::Cut);
        }
        Ok(answer)
    }
}

/// The response of a registry, with all of its body.
pub(super) struct RegistryResponse {
    pub(super) headers: HeaderMap,
    pub(super) bytes: Bytes,
}

impl RegistryResponse {
    pub(super) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the digest in the header of the response.
    fn claimed(&self) -> Option<BlobDigest> {
        claimed(&self.headers)
    }

    /// Returns the digest of the body.
    pub(super) fn digest(&self) -> BlobDigest {
        let claimed = self.claimed();
        let algorithm = claimed.map_or(Algorithm::Sha256, |claimed| claimed.algorithm());
        BlobDigest::of(algorithm, &self.bytes)
    }
}

pub(super) fn claimed(headers: &HeaderMap) -> Option<BlobDigest> {
    headers.get(CONTENT_DIGEST)?.to_str().ok()?.parse().ok()
}
