//! Blobs that go into containerd's content store while they come.

use std::time::Duration;

use blocks::Digest;
use containerd_client::services::v1::{
    AbortRequest, AddResourceRequest, InfoRequest, Resource, WriteAction, WriteContentRequest,
};
use containerd_client::tonic::{Code, Response};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::lease::{Labels, Lease};
use crate::error::EngineError;

/// Pieces that wait for containerd.
const WAITING: usize = 16;
/// How long a blob may take, its download included.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// A blob that is written.
#[derive(Clone, Debug)]
pub struct KeptBlob<'a> {
    /// Its digest: containerd verifies it.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// What this attempt calls itself: no other may at the same time.
    pub attempt: &'a str,
    /// Its labels.
    pub labels: Labels,
}

/// The end that a blob is put into.
#[derive(Debug)]
pub struct BlobSink(Sender<Option<Vec<u8>>>);

/// The receiving end, which containerd reads from.
#[derive(Debug)]
pub struct BlobSource(Receiver<Option<Vec<u8>>>);

/// Returns both ends of a blob on its way to containerd.
#[must_use]
pub fn blob_pipe() -> (BlobSink, BlobSource) {
    let (sender, receiver) = channel(WAITING);
    (BlobSink(sender), BlobSource(receiver))
}

impl BlobSink {
    /// Passes the next bytes. If containerd accepts no more, it has failed, or has the blob: the caller of
    /// [`write_blob`](Lease::write_blob) gets the result.
    pub fn put(&self, bytes: &[u8]) {
        drop(self.0.blocking_send(Some(bytes.to_vec())));
    }

    /// Marks the data as complete and valid. If a sink is dropped without that, nothing is stored.
    pub fn commit(self) {
        drop(self.0.blocking_send(None));
    }
}

impl Lease<'_> {
    /// Writes a blob as it arrives, until the other end commits it, or is dropped: then nothing
    /// is stored. An existing one is kept.
    ///
    /// # Errors
    /// If containerd refuses it, or finds that it is not valid.
    pub fn write_blob(&self, blob: &KeptBlob<'_>, source: BlobSource) -> Result<(), EngineError> {
        let doing = format!("keeping the blob {}", blob.digest.short());
        let name = format!("yolofs-{}-{}", blob.attempt, blob.digest);
        let total = i64::try_from(blob.size).unwrap_or(i64::MAX);
        let (labels, expected) = (blob.labels.clone(), blob.digest.to_string());
        let (mut offset, write_name) = (0, name.clone());
        let requests = ReceiverStream::new(source.0).map(move |piece| {
            let is_last = piece.is_none();
            let data = piece.unwrap_or_default();
            let at = offset;
            offset += i64::try_from(data.len()).unwrap_or(0);
            WriteContentRequest {
                action: match is_last {
                    true => WriteAction::Commit.into(),
                    false => WriteAction::Write.into(),
                },
                r#ref: write_name.clone(),
                total,
                expected: expected.clone(),
                offset: at,
                data,
                labels: labels.clone(),
            }
        });
        let request = self.request(requests);
        let written = self
            .containerd()
            .try_call(PATIENCE, &doing, async |client| {
                let mut answers = client.content().write(request).await?.into_inner();
                let mut committed = false;
                while let Some(answer) = answers.message().await? {
                    committed |= answer.action == i32::from(WriteAction::Commit);
                }
                Ok(Response::new(committed))
            })?;
        match written {
            Ok(true) => Ok(()),
            Ok(false) => self.abort(&doing, name),
            Err(Code::AlreadyExists) => self.keep_blob(&doing, blob),
            Err(_) => Err(EngineError::Failed {
                doing,
                said: "it is gone".to_owned(),
            }),
        }
    }

    /// Adds a blob to the lease, if containerd has it, and returns whether it does.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn keep_content(&self, digest: &Digest) -> Result<bool, EngineError> {
        let doing = format!("keeping the blob {}", digest.short());
        let has = || {
            let digest = digest.to_string();
            let request = self.request(InfoRequest { digest });
            let info = self
                .containerd()
                .call(&doing, async |client| client.content().info(request).await);
            info.map(|info| info.is_some())
        };
        if !has()? {
            return Ok(false);
        }
        self.add_content(&doing, digest)?;
        // It may have been collected just before.
        has()
    }

    fn add_content(&self, doing: &str, digest: &Digest) -> Result<(), EngineError> {
        let request = self.request(AddResourceRequest {
            id: self.id().to_owned(),
            resource: Some(Resource {
                id: digest.to_string(),
                r#type: "content".to_owned(),
            }),
        });
        self.containerd()
            .call(doing, async |client| {
                client.leases().add_resource(request).await
            })
            .map(drop)
    }

    fn abort(&self, doing: &str, name: String) -> Result<(), EngineError> {
        let request = self.request(AbortRequest { r#ref: name });
        self.containerd()
            .call(doing, async |client| client.content().abort(request).await)
            .map(drop)
    }

    fn keep_blob(&self, doing: &str, blob: &KeptBlob<'_>) -> Result<(), EngineError> {
        self.add_content(doing, &blob.digest)?;
        self.label(doing, &blob.digest, &blob.labels)
    }
}
