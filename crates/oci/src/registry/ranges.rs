//! Ranges of blobs, for reading on demand.

use std::ops::Range;

use blocks::Digest;
use reqwest::header::{HeaderValue, RANGE};
use reqwest::{Method, StatusCode};

use super::http::Request;
use super::pulls::starts_at;
use super::{RegistryError, Repository};
use crate::Watch;

impl Repository {
    /// Returns a range of a blob. **The bytes are not verified**: only the whole blob has
    /// a digest, and users of a part need a separate checksum.
    ///
    /// # Errors
    /// If the registry does not send it, or sends another range; [`RegistryError::Cancelled`] if the watch
    /// cancels.
    pub fn blob_range(
        &self,
        digest: Digest,
        range: Range<u64>,
        watch: Watch<'_>,
    ) -> Result<Vec<u8>, RegistryError> {
        let doing = "reading a part of a blob";
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(Vec::new());
        }
        let mut request = Request::new(doing, Method::GET, format!("{}/blobs/{digest}", self.base));
        let header = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end - 1));
        let header = header.map_err(|_| self.http.broken(doing, "the range is no header"))?;
        request.headers.insert(RANGE, header);
        let answer = self.http.send(&request, &mut *watch)?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&answer, range.start) => {}
            StatusCode::PARTIAL_CONTENT => {
                return Err(self
                    .http
                    .broken(doing, "it sent another range than was requested"));
            }
            // Its body is the whole blob, of which a part was wanted.
            StatusCode::OK => {
                return Err(self.http.broken(doing, "it does not send parts of blobs"));
            }
            _ => return Err(self.http.refusal(doing, answer, watch)),
        }
        let body = self.http.body(doing, answer, len, &mut *watch)?;
        if body.len() as u64 != len {
            return Err(self.http.broken(doing, "it sent less than was requested"));
        }
        Ok(body)
    }
}
