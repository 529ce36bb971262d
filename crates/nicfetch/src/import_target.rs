//! Where the sources of a block service are kept: here, or by a nicfetch that runs.

use std::sync::Arc;
use std::time::Duration;

use crate::admin::{ListedSource, TakenChunk};
use anyhow::Context as _;
use chunks::index::{Index, Keep, KeepError};
use chunks::{ChunkId, PutOutcome, Sources, Stay};
use hyper::Method;
use hyper::body::Bytes;

use crate::client::{AdminClient, escaped};

/// How long one chunk may take: the disk may be slow.
const CHUNK: Duration = Duration::from_secs(60);
/// How long an index may take: all of its chunks are looked for.
const INDEX: Duration = Duration::from_secs(300);

/// Keeps chunks, and the sources that they make.
pub(crate) trait ImportTarget {
    /// Returns the storage of chunks.
    fn chunks(&self) -> &dyn Keep;

    /// Returns the source of this name, if all of its chunks exist.
    ///
    /// # Errors
    /// If the request fails.
    fn whole(&self, name: &str) -> anyhow::Result<Option<Arc<Index>>>;

    /// Adds a source whose chunks exist, under the name `name`.
    ///
    /// # Errors
    /// If some are missing, it cannot be stored, or cannot be pinned.
    fn add(&self, name: &str, index: &Index, stay: Stay) -> anyhow::Result<ListedSource>;
}

/// The store in this process's directory.
#[derive(Clone, Debug)]
pub(crate) struct LocalTarget(pub(crate) Arc<Sources>);

impl ImportTarget for LocalTarget {
    fn chunks(&self) -> &dyn Keep {
        &**self.0.store()
    }

    fn whole(&self, name: &str) -> anyhow::Result<Option<Arc<Index>>> {
        let index = self.0.whole(name.as_bytes());
        index.with_context(|| format!("reading the index of {name}"))
    }

    fn add(&self, name: &str, index: &Index, stay: Stay) -> anyhow::Result<ListedSource> {
        let added = self.0.add(name.as_bytes(), index, stay);
        added.with_context(|| format!("keeping {name}"))?;
        Ok(ListedSource::of(name.as_bytes(), index, &self.0))
    }
}

/// What a nicfetch has that runs.
pub(crate) struct RunningTarget(pub(crate) AdminClient);

impl Keep for RunningTarget {
    fn keep(&self, id: &ChunkId, raw: &[u8]) -> Result<PutOutcome, KeepError> {
        let path = format!("/v1/chunks?id={id}");
        let raw = Bytes::copy_from_slice(raw);
        let taken = self.0.document(Method::POST, &path, raw, CHUNK);
        // All of it in one line: who is told of it shows causes by their kind.
        let taken: TakenChunk = taken.map_err(|error| format!("{error:#}"))?;
        Ok(match taken.new {
            true => PutOutcome::Stored,
            false => PutOutcome::Present,
        })
    }
}

impl ImportTarget for RunningTarget {
    fn chunks(&self) -> &dyn Keep {
        self
    }

    fn whole(&self, name: &str) -> anyhow::Result<Option<Arc<Index>>> {
        let path = format!("/v1/index?name={}", escaped(name));
        let answer = self.0.ask(Method::GET, &path, Bytes::new(), INDEX)?;
        let Some(bytes) = answer.found()? else {
            return Ok(None);
        };
        let index = Index::decode(&bytes);
        let index = index.with_context(|| format!("reading the index of {name}"))?;
        Ok(Some(Arc::new(index)))
    }

    fn add(&self, name: &str, index: &Index, stay: Stay) -> anyhow::Result<ListedSource> {
        let pin = match stay {
            Stay::Pinned => "&pin=1",
            Stay::WhileUsed => "",
        };
        let path = format!("/v1/sources?name={}{pin}", escaped(name));
        let bytes = Bytes::copy_from_slice(index.bytes());
        let added = self.0.document(Method::POST, &path, bytes, INDEX);
        added.with_context(|| format!("giving nicfetch the index of {name}"))
    }
}
