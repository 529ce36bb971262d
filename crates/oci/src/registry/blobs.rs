//! Blobs of a repository: pushed if they are not there, pulled to a file and resumed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use blocks::Digest;
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION, RANGE};
use reqwest::{Method, Response, StatusCode, Url};
use sha2::{Digest as _, Sha256};

use super::http::Request;
use super::{RegistryError, Repository};
use crate::{BlobError, Descriptor, Watch};

/// Bytes that go up in one request: enough that a request costs little, and little enough to be
/// in memory.
const PIECE: u64 = 8 << 20;
/// Uploads of one blob before a push gives up.
const PUSH_TRIES: u32 = 3;
/// Attempts in a row that bring nothing new before a pull gives up.
const IDLE_TRIES: u32 = 5;
const OCTETS: &str = "application/octet-stream";

/// What pulling a blob did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PulledBlob {
    /// Bytes that came over the network this time.
    pub fetched: u64,
    /// Bytes that were there from an earlier time.
    pub resumed: u64,
}

impl Repository {
    /// Returns whether the repository has a blob.
    ///
    /// # Errors
    /// If the registry does not answer as it should.
    pub fn has_blob(&self, digest: Digest, watch: Watch<'_>) -> Result<bool, RegistryError> {
        let doing = "looking for a blob";
        let url = format!("{}/blobs/{digest}", self.base);
        let answer = self
            .http
            .send(&Request::new(doing, Method::HEAD, url), &mut *watch)?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(self.http.refusal(doing, answer, watch)),
        }
    }

    /// Pushes a blob of this length and digest. The watch is told how much has gone.
    ///
    /// # Errors
    /// If it cannot be read, or the registry does not take it.
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
        let mut place = self.upload_place(&self.http.ask(&start, &mut *watch)?)?;
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
            place = self.upload_place(&answer)?;
            sent = end;
        }
    }

    /// Where the next piece goes: the registry says it, as a URL or a part of one.
    fn upload_place(&self, answer: &Response) -> Result<Url, RegistryError> {
        let broken = |rule| self.http.broken("pushing a blob", rule);
        let place = answer.headers().get(LOCATION);
        let place = place.and_then(|place| place.to_str().ok());
        let place = place.ok_or_else(|| broken("an upload has a location"))?;
        let place = answer.url().join(place);
        let place = place.map_err(|_| broken("the location of an upload is a URL"))?;
        if place.scheme() == answer.url().scheme() || place.scheme() == "https" {
            Ok(place)
        } else {
            Err(broken("an upload does not lead away from TLS"))
        }
    }

    /// Pulls a blob to the file `to`, which has it all and verified, or does not exist. What came
    /// before a failure stays beside it, with `.part` behind its name, and the next pull goes on
    /// from there. The watch is told how much is there.
    ///
    /// # Errors
    /// If the registry does not give it, or gives something else; if another process pulls it; if
    /// the file cannot be written.
    pub fn pull_blob(
        &self,
        blob: &Descriptor,
        to: &Path,
        watch: Watch<'_>,
    ) -> Result<PulledBlob, RegistryError> {
        let mut part = Part::open(to, blob.size)?;
        let resumed = part.len;
        let (mut idle, mut most) = (0, part.len);
        while part.len < blob.size {
            match self.pull_some(blob, &mut part, &mut *watch) {
                Ok(()) => {}
                Err(error @ (RegistryError::NoAnswer { .. } | RegistryError::TooSlow { .. })) => {
                    idle = if part.len > most { 0 } else { idle + 1 };
                    most = most.max(part.len);
                    if idle == IDLE_TRIES {
                        return Err(error);
                    }
                    log::debug!("going on with {} at {}: {error}", blob.digest, part.len);
                }
                Err(error) => return Err(error),
            }
        }
        let fetched = part.fetched;
        part.finish(to, blob.digest)
            .map_err(|error| error.into_registry_error(self, blob))?;
        Ok(PulledBlob { fetched, resumed })
    }

    /// Asks for what is missing, and takes what comes.
    fn pull_some(
        &self,
        blob: &Descriptor,
        part: &mut Part,
        watch: Watch<'_>,
    ) -> Result<(), RegistryError> {
        let doing = "pulling a blob";
        let url = format!("{}/blobs/{}", self.base, blob.digest);
        let mut request = Request::new(doing, Method::GET, url);
        if part.len > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", part.len))
        {
            request.headers.insert(RANGE, range);
        }
        let mut answer = self.http.send(&request, &mut *watch)?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&answer, part.len) => {}
            StatusCode::PARTIAL_CONTENT => {
                return Err(self
                    .http
                    .broken(doing, "it sends the range that was asked for"));
            }
            // It does not know ranges: from the start.
            StatusCode::OK => part.restart()?,
            StatusCode::RANGE_NOT_SATISFIABLE if part.len > 0 => return part.restart(),
            _ => return Err(self.http.refusal(doing, answer, watch)),
        }
        while part.len < blob.size {
            let chunk = self
                .http
                .wait(doing, answer.chunk(), part.len, &mut *watch)?;
            let Some(chunk) = chunk else {
                return Err(self
                    .http
                    .broken(doing, "a blob is as long as its manifest says"));
            };
            part.append(&chunk, blob)
                .map_err(|error| error.into_registry_error(self, blob))?;
        }
        Ok(())
    }
}

/// Where a piece stands in its blob.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// More will follow.
    Middle,
    /// It ends the blob.
    Last,
}

fn piece_request(place: &Url, digest: Digest, sent: u64, piece: Vec<u8>, which: Piece) -> Request {
    let doing = "pushing a blob";
    let end = (sent + piece.len() as u64).saturating_sub(1);
    let range = HeaderValue::from_str(&format!("{sent}-{end}"));
    let is_whole = which == Piece::Last && sent == 0;
    let mut request = match which {
        Piece::Last => Request::new(doing, Method::PUT, with_digest(place, digest)),
        Piece::Middle => Request::new(doing, Method::PATCH, place.to_string()),
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

fn with_digest(place: &Url, digest: Digest) -> String {
    let mut place = place.clone();
    place
        .query_pairs_mut()
        .append_pair("digest", &digest.to_string());
    place.to_string()
}

/// Returns whether an answer with a part of a blob has the part that starts there.
fn starts_at(answer: &Response, offset: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE);
    let range = range.and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    start.and_then(|start| start.trim().parse().ok()) == Some(offset)
}

/// A file that is being filled.
struct Part {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    len: u64,
    fetched: u64,
}

enum Unfinished {
    File(RegistryError),
    Wrong(BlobError),
}

impl Unfinished {
    fn into_registry_error(self, repository: &Repository, blob: &Descriptor) -> RegistryError {
        match self {
            Self::File(error) => error,
            Self::Wrong(source) => RegistryError::Blob {
                registry: repository.http.registry(),
                digest: blob.digest,
                source: Box::new(source),
            },
        }
    }
}

impl Part {
    /// Opens what an earlier pull left, or a new file, and keeps others away from it.
    fn open(to: &Path, size: u64) -> Result<Self, RegistryError> {
        let mut name = to.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = opened.map_err(failed("opening", &path))?;
        file.try_lock().map_err(|error| {
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, error);
            failed("taking for this pull (another one has it)", &path)(busy)
        })?;
        let mut part = Self {
            file,
            path,
            hasher: Sha256::new(),
            len: 0,
            fetched: 0,
        };
        part.take_in(size)?;
        Ok(part)
    }

    /// Hashes what is there already, so that the whole can be verified.
    fn take_in(&mut self, size: u64) -> Result<(), RegistryError> {
        let Self { file, path, .. } = self;
        let found = file.metadata().map_err(failed("reading", path))?.len();
        if found > size {
            return self.restart();
        }
        let read = io::copy(file, &mut self.hasher);
        self.len = read.map_err(failed("reading", &self.path))?;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), RegistryError> {
        let Self { file, path, .. } = self;
        let emptied = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
        emptied.map_err(failed("emptying", path))?;
        self.hasher = Sha256::new();
        self.len = 0;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8], blob: &Descriptor) -> Result<(), Unfinished> {
        let (expected, found) = (blob.size, self.len + bytes.len() as u64);
        if found > expected {
            self.remove();
            return Err(Unfinished::Wrong(BlobError::Length { expected, found }));
        }
        let written = self.file.write_all(bytes);
        written.map_err(|error| Unfinished::File(failed("writing", &self.path)(error)))?;
        self.hasher.update(bytes);
        self.len = found;
        self.fetched += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its name if it is what it should be; removes it if it is not.
    fn finish(self, to: &Path, expected: Digest) -> Result<(), Unfinished> {
        let found = Digest(self.hasher.clone().finalize().into());
        if found != expected {
            self.remove();
            return Err(Unfinished::Wrong(BlobError::Digest { expected, found }));
        }
        let renamed = std::fs::rename(&self.path, to);
        renamed.map_err(|error| Unfinished::File(failed("renaming", &self.path)(error)))
    }

    /// Nobody goes on with wrong bytes. If it cannot be removed, the next pull finds out again.
    fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |source| RegistryError::File {
        doing,
        path,
        source,
    }
}
