//! The snapshotter as containerd's gRPC service, on a unix socket.
//!
//! Requests run on threads that may block. containerd adds the namespace to the names it sends
//! (`default/3/sha256:…`), so the service need not know of namespaces.

mod connections;
mod convert;
mod grpc;
mod messages;

use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use containerd_client::services::v1::snapshots::{
    CleanupRequest, ListSnapshotsRequest, ListSnapshotsResponse, MountsRequest, MountsResponse,
    PrepareSnapshotRequest, PrepareSnapshotResponse, RemoveSnapshotRequest, StatSnapshotRequest,
    StatSnapshotResponse, UpdateSnapshotRequest, UpdateSnapshotResponse, UsageRequest,
    UsageResponse, ViewSnapshotRequest, ViewSnapshotResponse,
};
use rawio::unix_socket;
use serving::api::Connections;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use crate::error::{Result, SnapshotError};
use crate::lowers::Lowers;
use crate::snapshotter::Snapshotter;
use connections::Answering;
use convert::{info, mounts, status, usage};
use grpc::snapshots_server::{Snapshots, SnapshotsServer};
use messages::CommitRequest;

/// Requests of one connection that run at once: containerd has one connection, and each request
/// has a thread.
const AT_ONCE: usize = 64;

/// Connections at a time. containerd has one, tools have one each; beyond them, those without a request make room
/// for others.
const CONNECTIONS_MAX: u32 = 256;

/// Snapshots in one message of a list: far below the size that a client accepts, whatever their
/// labels.
const LISTED_AT_ONCE: usize = 100;

/// Binds the socket at `path`, for its owner only. A socket that a dead process left is replaced.
///
/// # Errors
/// If a process listens there, a file is there that is no socket, or the socket cannot be created.
pub fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |source| SnapshotError::Io {
        doing: "listen at",
        path: path.to_owned(),
        source,
    };
    unix_socket::remove_dead(path).map_err(failed)?;
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
    let service = Answering(SnapshotsServer::new(Service { snapshotter }));
    let connections = Connections::up_to(CONNECTIONS_MAX);
    let (taken, incoming) = mpsc::channel(1);
    let (_open, closed) = oneshot::channel();
    let (tell, told) = oneshot::channel();
    let ending = async {
        let _both_wait_for_it = told.await;
    };
    let served = Server::builder()
        .concurrency_limit_per_connection(AT_ONCE)
        .serve_with_incoming_shutdown(service, ReceiverStream::new(incoming), ending);
    let ends = async {
        end.await;
        let _told = tell.send(());
        // A client that does not take part would have the server wait for it.
        connections.end_waiting().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = served => served.map_err(std::io::Error::other),
        () = ends => Ok(()),
        () = connections::take(&connections, listener, taken, closed) => Ok(()),
    }
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
            Err(error) => Err(Status::internal(format!(
                "handling the request panicked: {error}"
            ))),
        }
    }
}

/// containerd sends the empty name for no parent.
fn parent_of(parent: &str) -> Option<&str> {
    Some(parent).filter(|parent| !parent.is_empty())
}

#[async_trait]
impl<L: Lowers> Snapshots for Service<L> {
    type ListStream = tokio_stream::Iter<std::vec::IntoIter<Result<ListSnapshotsResponse, Status>>>;

    async fn prepare(
        &self,
        request: Request<PrepareSnapshotRequest>,
    ) -> Result<Response<PrepareSnapshotResponse>, Status> {
        let asked = request.into_inner();
        let made = self.run(move |s| s.prepare(&asked.key, parent_of(&asked.parent), asked.labels));
        let mounts = mounts(made.await?);
        Ok(Response::new(PrepareSnapshotResponse { mounts }))
    }

    async fn view(
        &self,
        request: Request<ViewSnapshotRequest>,
    ) -> Result<Response<ViewSnapshotResponse>, Status> {
        let asked = request.into_inner();
        let made = self.run(move |s| s.view(&asked.key, parent_of(&asked.parent), asked.labels));
        let mounts = mounts(made.await?);
        Ok(Response::new(ViewSnapshotResponse { mounts }))
    }

    async fn mounts(
        &self,
        request: Request<MountsRequest>,
    ) -> Result<Response<MountsResponse>, Status> {
        let key = request.into_inner().key;
        let mounts = mounts(self.run(move |s| s.mounts(&key)).await?);
        Ok(Response::new(MountsResponse { mounts }))
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<()>, Status> {
        let asked = request.into_inner();
        let parent = asked.parent;
        self.run(move |s| s.commit_on(&asked.name, &asked.key, parent_of(&parent), asked.labels))
            .await
            .map(Response::new)
    }

    async fn remove(
        &self,
        request: Request<RemoveSnapshotRequest>,
    ) -> Result<Response<()>, Status> {
        let key = request.into_inner().key;
        self.run(move |s| s.remove(&key)).await.map(Response::new)
    }

    async fn stat(
        &self,
        request: Request<StatSnapshotRequest>,
    ) -> Result<Response<StatSnapshotResponse>, Status> {
        let key = request.into_inner().key;
        let info = Some(info(self.run(move |s| s.stat(&key)).await?));
        Ok(Response::new(StatSnapshotResponse { info }))
    }

    async fn update(
        &self,
        request: Request<UpdateSnapshotRequest>,
    ) -> Result<Response<UpdateSnapshotResponse>, Status> {
        let asked = request.into_inner();
        let Some(wanted) = asked.info else {
            return Err(Status::invalid_argument("an update names no snapshot"));
        };
        let paths = asked.update_mask.map_or_else(Vec::new, |mask| mask.paths);
        let updated = self.run(move |s| s.update(&wanted.name, wanted.labels, &paths));
        let info = Some(info(updated.await?));
        Ok(Response::new(UpdateSnapshotResponse { info }))
    }

    async fn list(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let filters = request.into_inner().filters;
        let found = self.run(move |s| s.walk(&filters)).await?;
        let mut found = found.into_iter().map(info).peekable();
        let mut messages = Vec::new();
        while found.peek().is_some() {
            let info = found.by_ref().take(LISTED_AT_ONCE).collect();
            messages.push(Ok(ListSnapshotsResponse { info }));
        }
        Ok(Response::new(tokio_stream::iter(messages)))
    }

    async fn usage(
        &self,
        request: Request<UsageRequest>,
    ) -> Result<Response<UsageResponse>, Status> {
        let key = request.into_inner().key;
        let used = self.run(move |s| s.usage(&key)).await.map(usage)?;
        Ok(Response::new(used))
    }

    async fn cleanup(&self, _: Request<CleanupRequest>) -> Result<Response<()>, Status> {
        self.run(Snapshotter::cleanup).await.map(Response::new)
    }
}
