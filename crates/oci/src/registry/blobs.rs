//! Blobs of a repository: look-up, and push if missing.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use blocks::Digest;
use distribution::Destination;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION, RANGE};
use reqwest::{Method, Response, StatusCode, Url};

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

    /// Has the registry take a blob from its repository `from` (`library/nginx`), without sending it. Returns whether it did:
    /// it may not have the blob there, not let the caller read it, or not know how.
    ///
    /// # Errors
    /// If the registry does not respond, or refuses for another reason.
    pub fn mount_blob(
        &self,
        digest: Digest,
        from: &str,
        watch: Watch<'_>,
    ) -> Result<bool, RegistryError> {
        let doing = "taking a blob from another repository";
        let url = format!("{}/blobs/uploads/", self.base);
        let digest = digest.to_string();
        let pairs = [("mount", digest.as_str()), ("from", from)];
        let url = Url::parse_with_params(&url, pairs);
        let url = url.map_err(|_| self.http.broken(doing, "it names an invalid URL"))?;
        let request = Request::new(doing, Method::POST, url.into());
        let answer = self.http.send(&request, &mut *watch)?;
        match answer.status() {
            StatusCode::CREATED => Ok(true),
            StatusCode::ACCEPTED => {
                // It expects the blob instead. Who cannot take that back forgets it after a while.
                if let Ok(place) = self.upload_place(&answer, &mut *watch) {
                    let end = Request::to(doing, Method::DELETE, Goal::Named(place));
                    match self.http.send(&end, watch) {
                        Err(RegistryError::Cancelled) => return Err(RegistryError::Cancelled),
                        Err(error) => log::debug!("an upload was left open: {error}"),
                        Ok(_) => {}
                    }
                }
                Ok(false)
            }
            status if status.is_client_error() => Ok(false),
            _ => Err(self.http.refusal(doing, answer, watch)),
        }
    }

    /// Pushes a blob of this length and digest. An upload that was cut goes on where the registry has it. The watch
    /// receives the number of sent bytes.
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
        let mut upload = Upload {
            digest,
            len,
            sent: 0,
            place: None,
        };
        let (mut tries, mut most) = (0, 0);
        loop {
            tries += 1;
            match self.push_pieces(&mut upload, &mut content, &mut *watch) {
                Err(error) if tries < PUSH_TRIES && is_cut(&error) => {
                    log::debug!("pushing {digest} again: {error}");
                    if upload.sent > most {
                        // It goes on, slowly.
                        (tries, most) = (0, upload.sent);
                    }
                    self.find_upload(&mut upload, &mut *watch)?;
                }
                result => return result,
            }
        }
    }

    /// Looks for what the registry has of an upload that was cut; it begins again if that is not known.
    fn find_upload(&self, upload: &mut Upload, watch: Watch<'_>) -> Result<(), RegistryError> {
        let sent = std::mem::take(&mut upload.sent);
        let Some(place) = upload.place.take() else {
            return Ok(());
        };
        let doing = "looking for an upload";
        let request = Request::to(doing, Method::GET, Goal::Named(place));
        let answer = match self.http.send(&request, &mut *watch) {
            Ok(answer) if answer.status() == StatusCode::NO_CONTENT => answer,
            Err(RegistryError::Cancelled) => return Err(RegistryError::Cancelled),
            _ => return Ok(()),
        };
        let range = answer.headers().get(RANGE);
        let range = range.and_then(|range| range.to_str().ok());
        let has = range.and_then(|range| {
            let (first, last) = range.trim_start_matches("bytes=").split_once('-')?;
            let last: u64 = last.parse().ok()?;
            // An upload of nothing and one of a byte say the same: pieces have more.
            (first == "0" && last > 0).then_some(last + 1)
        });
        if let Some(has) = has.filter(|has| *has < upload.len)
            && let Ok(place) = self.upload_place(&answer, watch)
        {
            log::debug!("{} goes on at {has}, after {sent}", upload.digest);
            upload.sent = has;
            upload.place = Some(place);
        }
        Ok(())
    }

    fn push_pieces(
        &self,
        upload: &mut Upload,
        content: &mut (impl Read + Seek),
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let Upload { digest, len, .. } = *upload;
        let reading = |source| RegistryError::File {
            doing: "reading what is pushed as",
            path: PathBuf::from(digest.to_string()),
            source,
        };
        let mut place = match upload.place.clone() {
            Some(place) => place,
            None => {
                let url = format!("{}/blobs/uploads/", self.base);
                let start = Request::new("pushing a blob", Method::POST, url);
                let started = self.http.ask(&start, &mut *watch)?;
                self.upload_place(&started, &mut *watch)?
            }
        };
        content
            .seek(SeekFrom::Start(upload.sent))
            .map_err(reading)?;
        loop {
            upload.place = Some(place.clone());
            let sent = upload.sent;
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
            upload.sent = end;
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

/// A blob on its way up.
struct Upload {
    digest: Digest,
    len: u64,
    /// Bytes that the registry has taken.
    sent: u64,
    /// Where the next ones go; `None` if it has not begun.
    place: Option<Destination>,
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
