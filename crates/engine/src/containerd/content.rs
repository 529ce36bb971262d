//! The documents of an image, out of containerd's content store.

use blocks::Digest;
use containerd_client::services::v1::ReadContentRequest;
use containerd_client::tonic::Response;
use containerd_client::types::Descriptor;

use super::Containerd;
use super::document::{Document, Entry, Manifest};
use crate::error::EngineError;
use crate::image::ConfigFile;

/// The largest document that is read: real ones have some kilobytes.
const DOCUMENT_MAX: i64 = 4 << 20;
/// How many manifests for this platform are tried: variants, of which containerd keeps one.
const MANIFESTS_MAX: usize = 16;

impl Containerd {
    /// Returns the manifest for this platform of what an image's name points to.
    pub(super) fn manifest(
        &self,
        doing: &str,
        target: &Descriptor,
    ) -> Result<(Digest, Manifest), EngineError> {
        let digest = target
            .digest
            .parse()
            .map_err(|error| answer(doing, &error))?;
        let document: Document = self.document(doing, &digest, target.size)?;
        if let Some(config) = document.config {
            return Ok((digest, Manifest { config }));
        }
        for entry in document.for_this_platform().take(MANIFESTS_MAX) {
            // An index names all platforms; only what was pulled is there.
            let Ok(document) = self.document::<Document>(doing, &entry.digest, entry.size) else {
                continue;
            };
            if let Some(config) = document.config {
                return Ok((entry.digest, Manifest { config }));
            }
        }
        Err(answer(
            doing,
            &"the image has no manifest for this platform",
        ))
    }

    /// Returns the configuration file of an image.
    pub(super) fn config_file(
        &self,
        doing: &str,
        entry: &Entry,
    ) -> Result<ConfigFile, EngineError> {
        self.document(doing, &entry.digest, entry.size)
    }

    fn document<T: for<'de> serde::Deserialize<'de>>(
        &self,
        doing: &str,
        digest: &Digest,
        size: i64,
    ) -> Result<T, EngineError> {
        if !(1..=DOCUMENT_MAX).contains(&size) {
            let why = format!("{digest} has {size} bytes; at most {DOCUMENT_MAX} are read");
            return Err(answer(doing, &why));
        }
        let body = ReadContentRequest {
            digest: digest.to_string(),
            offset: 0,
            size,
        };
        let bytes = self.call(doing, async |client| {
            let mut stream = client
                .content()
                .read(self.request(body))
                .await?
                .into_inner();
            let mut bytes: Vec<u8> = Vec::new();
            while let Some(piece) = stream.message().await? {
                bytes.extend_from_slice(&piece.data);
                if i64::try_from(bytes.len()).is_ok_and(|len| len > size) {
                    break; // it was asked for less: what is too much is not JSON either
                }
            }
            Ok(Response::new(bytes))
        })?;
        let bytes = bytes.ok_or_else(|| answer(doing, &format!("{digest} is not there")))?;
        serde_json::from_slice(&bytes).map_err(|error| answer(doing, &error))
    }
}

fn answer(doing: &str, why: &dyn std::fmt::Display) -> EngineError {
    EngineError::Answer {
        doing: doing.to_owned(),
        why: why.to_string(),
    }
}
