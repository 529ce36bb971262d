//! Pulling blobs: to a file, where an interrupted pull resumes the next time, or to a receiver
//! of the bytes as they arrive.

mod part;
mod passing;

use std::ops::ControlFlow;
use std::path::Path;

use reqwest::header::{CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode};

use super::http::Request;
use super::{RegistryError, Repository};
use crate::{BlobError, Descriptor, Watch};
use part::Part;
use passing::Passing;

/// Attempts in a row that bring nothing new before a pull gives up.
const IDLE_TRIES: u32 = 5;

/// What pulling a blob did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PulledBlob {
    /// Bytes that came over the network this time.
    pub fetched: u64,
    /// Bytes that were there from an earlier time.
    pub resumed: u64,
}

/// Where the bytes of a blob go.
trait Sink {
    /// Returns how many are there.
    fn len(&self) -> u64;

    /// Notifies that the bytes start again; returns how many of them it does not need again.
    fn restart(&mut self) -> Result<u64, RegistryError>;

    /// Receives the next bytes of a blob.
    fn append(&mut self, bytes: &[u8], blob: &Descriptor) -> Result<(), Unfinished>;
}

/// Why a blob is not whole.
enum Unfinished {
    /// A local failure.
    Here(RegistryError),
    /// The blob is wrong.
    Wrong(BlobError),
}

impl Unfinished {
    fn into_registry_error(self, repository: &Repository, blob: &Descriptor) -> RegistryError {
        match self {
            Self::Here(error) => error,
            Self::Wrong(source) => RegistryError::Blob {
                registry: repository.http.registry(),
                digest: blob.digest,
                source: Box::new(source),
            },
        }
    }
}

impl Repository {
    /// Pulls a blob to the file `to`, which is complete and verified, or does not exist. Data from
    /// before a failure is kept in a file with the suffix `.part`, and the next pull resumes
    /// from it. The watch receives the number of received bytes.
    ///
    /// # Errors
    /// If the registry does not send it, or sends other data; if another process pulls it; if
    /// the file cannot be written.
    pub fn pull_blob(
        &self,
        blob: &Descriptor,
        to: &Path,
        watch: Watch<'_>,
    ) -> Result<PulledBlob, RegistryError> {
        let mut part = Part::open(to, blob.size)?;
        let resumed = part.len();
        self.pull_all(blob, &mut part, watch)?;
        let fetched = part.fetched;
        part.finish(to, blob.digest)
            .map_err(|error| error.into_registry_error(self, blob))?;
        Ok(PulledBlob { fetched, resumed })
    }

    /// Pulls a blob, and passes its bytes on as they arrive, each once, despite interruptions; never
    /// more than the blob has. **The receiver must not use any of it before this has returned
    /// without an error**: only then are the bytes verified. The watch receives the number of
    /// received bytes.
    ///
    /// # Errors
    /// If the registry does not send it, or sends other data; [`RegistryError::Cancelled`] if
    /// the receiver stops.
    pub fn stream_blob(
        &self,
        blob: &Descriptor,
        take: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let mut passing = Passing::new(take);
        self.pull_all(blob, &mut passing, watch)?;
        passing
            .finish(blob.digest)
            .map_err(|error| error.into_registry_error(self, blob))
    }

    fn pull_all(
        &self,
        blob: &Descriptor,
        sink: &mut dyn Sink,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let (mut idle, mut most) = (0, sink.len());
        while sink.len() < blob.size {
            match self.pull_some(blob, sink, &mut *watch) {
                Ok(()) => {}
                Err(error @ (RegistryError::NoAnswer { .. } | RegistryError::TooSlow { .. })) => {
                    idle = if sink.len() > most { 0 } else { idle + 1 };
                    most = most.max(sink.len());
                    if idle == IDLE_TRIES {
                        return Err(error);
                    }
                    log::debug!("going on with {} at {}: {error}", blob.digest, sink.len());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks for what is missing, and takes what comes.
    fn pull_some(
        &self,
        blob: &Descriptor,
        sink: &mut dyn Sink,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let doing = "pulling a blob";
        let url = format!("{}/blobs/{}", self.base, blob.digest);
        let mut request = Request::new(doing, Method::GET, url);
        if sink.len() > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", sink.len()))
        {
            request.headers.insert(RANGE, range);
        }
        let mut answer = self.http.send(&request, &mut *watch)?;
        let mut unwanted = match answer.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&answer, sink.len()) => 0,
            StatusCode::PARTIAL_CONTENT => {
                return Err(self
                    .http
                    .broken(doing, "it sent another range than was requested"));
            }
            // It does not know ranges: from the start.
            StatusCode::OK => sink.restart()?,
            StatusCode::RANGE_NOT_SATISFIABLE if sink.len() > 0 => {
                return match sink.restart()? {
                    0 => Ok(()),
                    _ => Err(self.http.broken(doing, "the blob changed its length")),
                };
            }
            _ => return Err(self.http.refusal(doing, answer, watch)),
        };
        while sink.len() < blob.size {
            let chunk = self
                .http
                .wait(doing, answer.chunk(), sink.len(), &mut *watch)?;
            let Some(chunk) = chunk else {
                return Err(self
                    .http
                    .broken(doing, "the blob has another length than its manifest says"));
            };
            let known = unwanted.min(chunk.len() as u64);
            unwanted -= known;
            let new = usize::try_from(known).map_or(&[][..], |known| &chunk[known..]);
            sink.append(new, blob)
                .map_err(|error| error.into_registry_error(self, blob))?;
        }
        Ok(())
    }
}

/// Returns whether a response with a part of a blob begins at this offset.
fn starts_at(answer: &Response, offset: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE);
    let range = range.and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    start.and_then(|start| start.trim().parse().ok()) == Some(offset)
}
