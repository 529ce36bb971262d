//! Requests of the operator about sources of the block service.

use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{BlockSide, json};
use chunks::index::{INDEX_MAX, Index, IndexError, ZEROS};
use chunks::{CHUNK_MAX, ChunkId, ChunkStore as _, Class, PutOutcome, SourceError, Sources, Stay};
use mirror::{Refusal, Reply, document, parameter};

/// The deadline for the body of a request. Clients are on this machine.
const BODY_DEADLINE: Duration = Duration::from_secs(120);

/// A source of the block service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedSource {
    /// Its name.
    pub name: String,
    /// The id of its index: what `nic:NAME@ID` pins.
    pub index: String,
    /// Files, directories and links.
    pub files: u64,
    /// Bytes of all regular files.
    pub bytes: u64,
    /// Chunks of its files, without those of zeros.
    pub chunks: u64,
    /// Those of its chunks that are not in the store: they were evicted, or never imported.
    pub absent_chunks: u64,
    /// Its boot images.
    pub boots: u64,
    /// Whether its chunks are never evicted.
    pub pinned: bool,
}

impl ListedSource {
    /// Describes a source.
    #[must_use]
    pub fn of(name: &[u8], index: &Index, sources: &Sources) -> Self {
        let catalog = sources.catalog();
        let boots = catalog.boots(&index.id());
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            index: index.id().to_string(),
            files: index.tree().len() as u64,
            bytes: bytes_of(index),
            chunks: index.chunks().iter().filter(|id| **id != ZEROS).count() as u64,
            absent_chunks: sources.absent(index) as u64,
            boots: boots.len() as u64,
            pinned: catalog.is_pinned(name),
        }
    }
}

/// Returns the bytes of all regular files of a source.
pub(super) fn bytes_of(index: &Index) -> u64 {
    let files = index.tree().files();
    let regular = files.filter(|(_, inode)| inode.attr.kind == blocks::NodeKind::File);
    regular.map(|(_, inode)| inode.attr.size).sum()
}

/// The result of storing a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenChunk {
    /// Whether it was not in the store before.
    pub new: bool,
}

impl BlockSide {
    /// Stores a chunk of a source that is being imported.
    pub(super) async fn take_chunk<B>(self, request: Request<B>) -> Result<Reply, Refusal>
    where
        B: hyper::body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let id: Option<ChunkId> =
            parameter(request.uri().query(), "id").and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| Refusal::invalid("id= is not a chunk id"))?;
        let raw = body(request, CHUNK_MAX).await?;
        let done = on_disk(move || {
            let store = self.sources.store();
            if store.contains(&id) && ChunkId::of(&raw) == id {
                return Ok(PutOutcome::Present);
            }
            store.put(&id, &raw, Class::Demand)
        });
        let outcome = done.await?.map_err(failed)?;
        let new = outcome == PutOutcome::Stored;
        json(&TakenChunk { new })
    }

    /// Adds a source by its index, under the name in the request. All its chunks have to be in the
    /// store.
    pub(super) async fn take_source<B>(self, request: Request<B>) -> Result<Reply, Refusal>
    where
        B: hyper::body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let query = request.uri().query();
        let name = name_in(query)?;
        let stay = match parameter(query, "pin").as_deref() {
            Some("1") => Stay::Pinned,
            None => Stay::WhileUsed,
            Some(_) => return Err(Refusal::invalid("pin= is 1 or left out")),
        };
        // One at a time: an index may be large.
        let _turn = self.index_lock.lock().await;
        let bytes = body(request, usize::try_from(INDEX_MAX).unwrap_or(usize::MAX)).await?;
        let side = self.clone();
        let done = on_disk(move || {
            let index = Index::decode(&bytes);
            let index = index.map_err(|error: IndexError| Refusal::invalid(error.to_string()))?;
            side.sources.add(&name, &index, stay).map_err(refused)?;
            Ok::<_, Refusal>(ListedSource::of(&name, &index, &side.sources))
        });
        json(&done.await??)
    }

    /// Returns the index of a source of which all chunks are in the store.
    pub(super) async fn index(self, query: Option<&str>) -> Result<Reply, Refusal> {
        let name = name_in(query)?;
        let found = on_disk(move || self.sources.whole(&name));
        let index = found.await?.map_err(failed)?;
        let index = index.ok_or_else(|| Refusal::absent("no complete source has this name"))?;
        let bytes = Bytes::copy_from_slice(index.bytes());
        Ok(document(StatusCode::OK, "application/octet-stream", bytes))
    }

    /// Lists the sources.
    pub(super) async fn sources(self) -> Result<Reply, Refusal> {
        json(&on_disk(move || self.listed()).await?)
    }

    /// Pins or unpins a source.
    pub(super) async fn keep(self, query: Option<&str>, stay: Stay) -> Result<Reply, Refusal> {
        let name = name_in(query)?;
        let done = on_disk(move || {
            match stay {
                Stay::Pinned => self.sources.pin(&name),
                Stay::WhileUsed => self.sources.unpin(&name),
            }
            .map_err(refused)?;
            let index = self.sources.catalog().source(&name).map_err(failed)?;
            let index = index
                .ok_or_else(|| Refusal::absent("the source is not in the catalog any more"))?;
            Ok::<_, Refusal>(ListedSource::of(&name, &index, &self.sources))
        });
        json(&done.await??)
    }

    fn listed(&self) -> Vec<ListedSource> {
        let catalog = self.sources.catalog();
        let names = catalog.names().into_iter();
        let listed = names.filter_map(|(name, _)| match catalog.source(&name) {
            Ok(Some(index)) => Some(ListedSource::of(&name, &index, &self.sources)),
            Ok(None) => None,
            Err(error) => {
                log::warn!("{}: {error}", String::from_utf8_lossy(&name));
                None
            }
        });
        listed.collect()
    }
}

/// Reads the body of a request, at most `limit` bytes.
async fn body<B>(request: Request<B>, limit: usize) -> Result<Bytes, Refusal>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let body = Limited::new(request.into_body(), limit).collect();
    match timeout(BODY_DEADLINE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Refusal::invalid(error.to_string())),
        Err(_) => Err(Refusal::invalid(
            "the request body was not received in time",
        )),
    }
}

fn name_in(query: Option<&str>) -> Result<Vec<u8>, Refusal> {
    let name = parameter(query, "name").map(|name| unescaped(&name));
    name.ok_or_else(|| Refusal::invalid("name= is missing"))
}

/// Decodes the escapes (`%2F`) of a parameter; a `%` without two digits stays as it is.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        // A sign is no digit, though numbers may have one.
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Runs blocking I/O on a thread for it.
pub(super) async fn on_disk<T: Send + 'static>(
    what: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(what).await;
    done.map_err(|error| Refusal::failed(error.to_string()))
}

/// Returns the response that says why a source was not added or pinned.
fn refused(error: SourceError) -> Refusal {
    match error {
        SourceError::Unknown { .. } => Refusal::absent(error.to_string()),
        SourceError::Absent { .. } | SourceError::TooMuch => Refusal::invalid(error.to_string()),
        SourceError::Catalog(error) => failed(error),
        error => failed(error),
    }
}

/// Returns the response for an error, with its chain of causes.
pub(super) fn failed(error: impl std::error::Error) -> Refusal {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    Refusal::failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_any_bytes() {
        assert_eq!(unescaped("a%2Fb%3a1"), b"a/b:1");
        assert_eq!(unescaped("%E4%"), [0xe4, b'%']);
        assert_eq!(unescaped("100%%41"), b"100%A");
        assert_eq!(unescaped("%+1"), b"%+1");
    }
}
