//! The documents of an image, out of containerd's content store.

use blocks::Digest;
use containerd_client::services::v1::ReadContentRequest;
use containerd_client::tonic::Response;
use containerd_client::types;
use distribution::image::{
    CONFIG_MAX, DOCUMENT_MAX, Descriptor, ImageConfig, Index, Manifest, Platform,
};

use super::Containerd;
use crate::error::EngineError;

/// How many manifests for this platform are tried: variants, of which containerd keeps one.
const MANIFESTS_MAX: usize = 16;

impl Containerd {
    /// Returns the manifest for this platform of what an image's name points to: its digest, and its
    /// configuration.
    pub(super) fn manifest(
        &self,
        doing: &str,
        target: &types::Descriptor,
    ) -> Result<(Digest, Descriptor), EngineError> {
        let digest = target
            .digest
            .parse()
            .map_err(|error| answer(doing, &error))?;
        let size = u64::try_from(target.size).unwrap_or_default();
        let bytes = self.document(doing, &digest, size, DOCUMENT_MAX)?;
        let failed = match Manifest::decode(&bytes) {
            Ok(manifest) => return Ok((digest, manifest.config)),
            Err(error) => error,
        };
        // A manifest is no index either, and its own fault is the one to tell of.
        let index = Index::decode(&bytes).map_err(|error| answer(doing, &with_cause(&error)))?;
        if index.manifests.is_empty() {
            return Err(answer(doing, &with_cause(&failed)));
        }
        for entry in index.fitting(&Platform::host()).take(MANIFESTS_MAX) {
            // An index names all platforms; only what was pulled is there.
            let Ok(bytes) = self.document(doing, &entry.digest, entry.size, DOCUMENT_MAX) else {
                continue;
            };
            if let Ok(manifest) = Manifest::decode(&bytes) {
                return Ok((entry.digest, manifest.config));
            }
        }
        Err(answer(
            doing,
            &"the image has no manifest for this platform",
        ))
    }

    /// Returns the configuration of an image.
    pub(super) fn image_config(
        &self,
        doing: &str,
        config: &Descriptor,
    ) -> Result<ImageConfig, EngineError> {
        let bytes = self.document(doing, &config.digest, config.size, CONFIG_MAX)?;
        ImageConfig::decode(&bytes).map_err(|error| answer(doing, &with_cause(&error)))
    }

    pub(super) fn document(
        &self,
        doing: &str,
        digest: &Digest,
        size: u64,
        max: u64,
    ) -> Result<Vec<u8>, EngineError> {
        let length = i64::try_from(size)
            .ok()
            .filter(|_| (1..=max).contains(&size));
        let Some(length) = length else {
            let why = format!("{digest} has {size} bytes; at most {max} are read");
            return Err(answer(doing, &why));
        };
        let body = ReadContentRequest {
            digest: digest.to_string(),
            offset: 0,
            size: length,
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
                if bytes.len() as u64 > size {
                    break; // it was asked for less: what is too much is not JSON either
                }
            }
            Ok(Response::new(bytes))
        })?;
        bytes.ok_or_else(|| answer(doing, &format!("{digest} is not there")))
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn answer(doing: &str, why: &dyn std::fmt::Display) -> EngineError {
    EngineError::Answer {
        doing: doing.to_owned(),
        why: why.to_string(),
    }
}
