//! The snapshotter as containerd's gRPC service, on a unix socket.
//!
//! Requests run on threads that may block. containerd adds the namespace to the names it sends
//! (`default/3/sha256:…`), so the service need not know of namespaces.

mod convert;

use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use containerd_snapshots::tonic::transport::Server;
use containerd_snapshots::tonic::{Status, async_trait};
use containerd_snapshots::{Info, Usage, api};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use crate::error::{Result, SnapshotError};
use crate::lowers::Lowers;
use crate::snapshot::Labels;
use crate::snapshotter::Snapshotter;
use convert::{info, mounts, status, usage};

/// Requests of one connection that run at once: containerd has one connection, and each request
/// has a thread.
const AT_ONCE: usize = 64;

/// Binds the socket at `path`, for its owner only. A socket that a dead process left is replaced.
///
/// # Errors
/// If something listens there, or there is no place for it.
pub fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |source| SnapshotError::Io {
        doing: "listen at",
        path: path.to_owned(),
        source,
    };
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(failed(std::io::ErrorKind::AddrInUse.into()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, owner_only).map_err(failed)?;
    Ok(listener)
}

/// Serves `snapshotter` on `listener` until `end` is done and the running requests are answered.
///
/// # Errors
/// If the socket fails.
pub async fn serve<L: Lowers>(
    snapshotter: Arc<Snapshotter<L>>,
    listener: UnixListener,
    end: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let service = containerd_snapshots::server(Arc::new(Service { snapshotter }));
    Server::builder()
        .concurrency_limit_per_connection(AT_ONCE)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), end)
        .await
        .map_err(std::io::Error::other)
}

#[derive(Debug)]
struct Service<L: Lowers> {
    snapshotter: Arc<Snapshotter<L>>,
}

impl<L: Lowers> Service<L> {
    /// Runs a request where it may block. One that panics fails, and no other.
    async fn run<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Snapshotter<L>) -> Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let snapshotter = Arc::clone(&self.snapshotter);
        match tokio::task::spawn_blocking(move || request(&snapshotter)).await {
            Ok(result) => result.map_err(|error| status(&error)),
            Err(error) => Err(Status::internal(format!("the request died: {error}"))),
        }
    }
}

/// containerd sends the empty name for no parent.
fn parent_of(parent: &str) -> Option<&str> {
    Some(parent).filter(|parent| !parent.is_empty())
}

#[async_trait]
impl<L: Lowers> containerd_snapshots::Snapshotter for Service<L> {
    type Error = Status;
    type InfoStream = tokio_stream::Iter<std::vec::IntoIter<Result<Info, Status>>>;

    async fn stat(&self, key: String) -> Result<Info, Status> {
        self.run(move |s| s.stat(&key)).await.map(info)
    }

    async fn update(&self, of: Info, paths: Option<Vec<String>>) -> Result<Info, Status> {
        let paths = paths.unwrap_or_default();
        let updated = self.run(move |s| s.update(&of.name, of.labels, &paths));
        updated.await.map(info)
    }

    async fn usage(&self, key: String) -> Result<Usage, Status> {
        self.run(move |s| s.usage(&key)).await.map(usage)
    }

    async fn mounts(&self, key: String) -> Result<Vec<api::types::Mount>, Status> {
        self.run(move |s| s.mounts(&key)).await.map(mounts)
    }

    async fn prepare(
        &self,
        key: String,
        parent: String,
        labels: Labels,
    ) -> Result<Vec<api::types::Mount>, Status> {
        let made = self.run(move |s| s.prepare(&key, parent_of(&parent), labels));
        made.await.map(mounts)
    }

    async fn view(
        &self,
        key: String,
        parent: String,
        labels: Labels,
    ) -> Result<Vec<api::types::Mount>, Status> {
        let made = self.run(move |s| s.view(&key, parent_of(&parent), labels));
        made.await.map(mounts)
    }

    async fn commit(&self, name: String, key: String, labels: Labels) -> Result<(), Status> {
        self.run(move |s| s.commit(&name, &key, labels)).await
    }

    async fn remove(&self, key: String) -> Result<(), Status> {
        self.run(move |s| s.remove(&key)).await
    }

    async fn clear(&self) -> Result<(), Status> {
        self.run(Snapshotter::cleanup).await
    }

    async fn list(
        &self,
        _snapshotter: String,
        filters: Vec<String>,
    ) -> Result<Self::InfoStream, Status> {
        let found = self.run(move |s| s.walk(&filters)).await?;
        let found: Vec<_> = found.into_iter().map(info).map(Ok).collect();
        Ok(tokio_stream::iter(found))
    }
}
