//! Blobs of a repository: look-up, and push if missing.

use std::io::{Read, Seek};
use std::path::PathBuf;

use blocks::Digest;
use distribution::Destination;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode};

use super::http::{Goal, Request};
use super::{RegistryError, Repository};
use crate::Watch;

/// Bytes that go up in one request: enough that a request costs little, and little enough to be
/// in memory.
const PIECE: u64 = 8 << 20;
/// Uploads of one blob before a push gives up.
const PUSH_TRIES: u32 = 3;
const OCTETS: &str = "application/octet-stream";

impl Repository {
    /// Returns whether the repository has a blob.
    ///
    /// # Errors
    /// If the registry's response is not valid.
    pub fn has_blob(&self, digest: Digest, watch: Watch<'_>) -> Result<bool, RegistryError> {
        Ok(self.find_blob(digest, watch)?.is_some())
    }

    /// Returns the length of a blob; `None` if the repository does not have it, or does not say.
    ///
    /// # Errors
    /// If the registry's response is not valid.
    pub fn blob_size(
        &self,
        digest: Digest,
        watch: Watch<'_>,
    ) -> Result<Option<u64>, RegistryError> {
        let answer = self.find_blob(digest, watch)?;
        let length = answer.as_ref().and_then(|answer| {
            let length = answer.headers().get(CONTENT_LENGTH)?;
            length.to_str().ok()?.parse().ok()
        });
        Ok(length)
    }

    /// Asks for a blob without its bytes; `None` if the repository does not have it.
    fn find_blob(
        &self,
        digest: Digest,
        watch: Watch<'_>,
    ) -> Result<Option<Response>, RegistryError> {
        let doing = "looking for a blob";
        let url = format!("{}/blobs/{digest}", self.base);
        let answer = self
            .http
            .send(&Request::new(doing, Method::HEAD, url), &mut *watch)?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(answer)),
            _ => Err(self.http.refusal(doing, answer, watch)),
        }
    }

    /// Pushes a blob of this length and digest. The watch receives the number of sent bytes.
    ///
    /// # Errors
    /// If it cannot be read, or the registry refuses it.
    pub fn push_blob(
        &self,
        digest: Digest,
        len: u64,
        mut content: impl Read + Seek,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.push_pieces(digest, len, &mut content, &mut *watch) {
                Err(error) if tries < PUSH_TRIES && is_cut(&error) => {
                    log::debug!("pushing {digest} again: {error}");
                }
                result => return result,
            }
        }
    }

    fn push_pieces(
        &self,
        digest: Digest,
        len: u64,
        content: &mut (impl Read + Seek),
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let reading = |source| RegistryError::File {
            doing: "reading what is pushed as",
            path: PathBuf::from(digest.to_string()),
            source,
        };
        let url = format!("{}/blobs/uploads/", self.base);
        let start = Request::new("pushing a blob", Method::POST, url);
        let started = self.http.ask(&start, &mut *watch)?;
        let mut place = self.upload_place(&started, &mut *watch)?;
        content.rewind().map_err(reading)?;
        let mut sent = 0;
        loop {
            let mut piece = Vec::new();
            let mut next = content.take(PIECE);
            next.read_to_end(&mut piece).map_err(reading)?;
            let end = sent + piece.len() as u64;
            let which = match end >= len || piece.is_empty() {
                true => Piece::Last,
                false => Piece::Middle,
            };
            let request = piece_request(&place, digest, sent, piece, which);
            let answer = self.http.ask(&request, &mut |_| watch(sent))?;
            if which == Piece::Last {
                return Ok(());
            }
            place = self.upload_place(&answer, &mut *watch)?;
            sent = end;
        }
    }

    /// Where the next piece goes: the registry says it, as a URL or a part of one.
    fn upload_place(
        &self,
        answer: &Response,
        watch: Watch<'_>,
    ) -> Result<Destination, RegistryError> {
        let doing = "pushing a blob";
        let place = answer.headers().get(LOCATION);
        let place = place.and_then(|place| place.to_str().ok());
        let place = place.ok_or_else(|| {
            self.http
                .broken(doing, "it named no location for the upload")
        })?;
        self.http.named_by(doing, answer, place, watch)
    }
}

/// Whether a piece is the last of its blob.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// More will follow.
    Middle,
    /// It ends the blob.
    Last,
}

fn piece_request(
    place: &Destination,
    digest: Digest,
    sent: u64,
    piece: Vec<u8>,
    which: Piece,
) -> Request {
    let doing = "pushing a blob";
    let end = (sent + piece.len() as u64).saturating_sub(1);
    let range = HeaderValue::from_str(&format!("{sent}-{end}"));
    let is_whole = which == Piece::Last && sent == 0;
    let mut request = match which {
        Piece::Last => Request::to(doing, Method::PUT, with_digest(place, digest)),
        Piece::Middle => Request::to(doing, Method::PATCH, Goal::Named(place.clone())),
    };
    let octets = HeaderValue::from_static(OCTETS);
    request.headers.insert(CONTENT_TYPE, octets);
    if let (Ok(range), false) = (range, is_whole) {
        request.headers.insert(CONTENT_RANGE, range);
    }
    request.body = piece;
    request
}

/// Whether an upload was cut: it ended without an answer, or the registry has another part of it
/// than it was told. Then it starts anew.
fn is_cut(error: &RegistryError) -> bool {
    match error {
        RegistryError::NoAnswer { .. } | RegistryError::TooSlow { .. } => true,
        RegistryError::Refused { status, .. } => matches!(status, 404 | 416),
        _ => false,
    }
}

fn with_digest(place: &Destination, digest: Digest) -> Goal {
    let mut place = place.clone();
    let (Destination::Ours(url) | Destination::Led { to: url, .. }) = &mut place;
    url.query_pairs_mut()
        .append_pair("digest", &digest.to_string());
    Goal::Named(place)
}
