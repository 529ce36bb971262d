//! A snapshotter on a real socket, and a client of it.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::result_large_err, reason = "the size of an error is tonic's")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_client::services::v1::snapshots as grpc;
use containerd_client::types::Mount;
use grpc::snapshots_client::SnapshotsClient;
use snapshotter::{Config, Lowers, PlainLowers, Snapshotter, UpperConfig, service};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longest wait for anything: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory, and perhaps a snapshotter that serves it.
pub(crate) struct Node {
    dir: tempfile::TempDir,
    runtime: Runtime,
    running: Option<Running>,
}

struct Running {
    client: SnapshotsClient<Channel>,
    end: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// The labels of a test.
pub(crate) fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

impl Node {
    pub(crate) fn start() -> Self {
        let mut node = Self::stopped();
        node.serve(None, PlainLowers);
        node
    }

    pub(crate) fn stopped() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            runtime: Runtime::new().unwrap(),
            running: None,
        }
    }

    /// Serves the directory, with whatever a former snapshotter left in it.
    pub(crate) fn serve(&mut self, upper: Option<UpperConfig>, lowers: impl Lowers) {
        let config = Config {
            root: self.root(),
            upper,
            layers: None,
            unpacker: None,
            blocks: None,
        };
        let snapshotter = Arc::new(Snapshotter::open(config, lowers).unwrap());
        let socket = self.socket();
        let (end, ended) = oneshot::channel();
        let _in_runtime = self.runtime.enter();
        let listener = service::listen(&socket).unwrap();
        let runtime = self.runtime.handle().clone();
        let served = self.runtime.spawn_blocking(move || {
            runtime.block_on(service::serve(snapshotter, listener, async {
                drop(ended.await);
            }))
        });
        let connecting = containerd_client::connect(&socket);
        let channel = self.runtime.block_on(connecting).unwrap();
        self.running = Some(Running {
            client: SnapshotsClient::new(channel),
            end,
            served,
        });
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Ends the snapshotter, as a signal does.
    pub(crate) fn stop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.client);
        drop(running.end);
        let served = running.served;
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, served).await })
            .expect("ends in time")
            .expect("does not panic")
            .expect("serves to the end");
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// A new directory to mount at.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        let place = self.dir.path().join(name);
        fs::create_dir_all(&place).unwrap();
        place
    }

    /// The directories under the root, sorted.
    pub(crate) fn directories(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root().join("snapshots")).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn call<T>(
        &self,
        f: impl AsyncFnOnce(SnapshotsClient<Channel>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let client = self.running.as_ref().expect("is served").client.clone();
        let call = async { tokio::time::timeout(PATIENCE, f(client)).await };
        self.runtime.block_on(call).expect("answers in time")
    }

    pub(crate) fn prepare(
        &self,
        key: &str,
        parent: &str,
        labels: &[(&str, &str)],
    ) -> Result<Vec<Mount>, Status> {
        let request = grpc::PrepareSnapshotRequest {
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: self::labels(labels),
            ..Default::default()
        };
        self.call(async |mut c| Ok(c.prepare(request).await?.into_inner().mounts))
    }

    pub(crate) fn view(
        &self,
        key: &str,
        parent: &str,
        labels: &[(&str, &str)],
    ) -> Result<Vec<Mount>, Status> {
        let request = grpc::ViewSnapshotRequest {
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: self::labels(labels),
            ..Default::default()
        };
        self.call(async |mut c| Ok(c.view(request).await?.into_inner().mounts))
    }

    pub(crate) fn mounts(&self, key: &str) -> Result<Vec<Mount>, Status> {
        let request = grpc::MountsRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        self.call(async |mut c| Ok(c.mounts(request).await?.into_inner().mounts))
    }

    pub(crate) fn commit(
        &self,
        name: &str,
        key: &str,
        labels: &[(&str, &str)],
    ) -> Result<(), Status> {
        let request = grpc::CommitSnapshotRequest {
            name: name.to_owned(),
            key: key.to_owned(),
            labels: self::labels(labels),
            ..Default::default()
        };
        self.call(async |mut c| c.commit(request).await.map(drop))
    }

    pub(crate) fn remove(&self, key: &str) -> Result<(), Status> {
        let request = grpc::RemoveSnapshotRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        self.call(async |mut c| c.remove(request).await.map(drop))
    }

    pub(crate) fn stat(&self, key: &str) -> Result<grpc::Info, Status> {
        let request = grpc::StatSnapshotRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        let info = self.call(async |mut c| Ok(c.stat(request).await?.into_inner().info))?;
        Ok(info.expect("an answer has the snapshot"))
    }

    pub(crate) fn update(&self, info: grpc::Info, paths: &[&str]) -> Result<grpc::Info, Status> {
        let mut request = grpc::UpdateSnapshotRequest {
            info: Some(info),
            ..Default::default()
        };
        let mask = request.update_mask.get_or_insert_with(Default::default);
        mask.paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let info = self.call(async |mut c| Ok(c.update(request).await?.into_inner().info))?;
        Ok(info.expect("an answer has the snapshot"))
    }

    pub(crate) fn list(&self, filters: &[&str]) -> Result<Vec<grpc::Info>, Status> {
        let request = grpc::ListSnapshotsRequest {
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            ..Default::default()
        };
        self.call(async |mut c| {
            let mut stream = c.list(request).await?.into_inner();
            let mut all = Vec::new();
            while let Some(part) = stream.message().await? {
                all.extend(part.info);
            }
            Ok(all)
        })
    }

    /// Returns inodes and bytes.
    pub(crate) fn usage(&self, key: &str) -> Result<(i64, i64), Status> {
        let request = grpc::UsageRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        let usage = self.call(async |mut c| Ok(c.usage(request).await?.into_inner()))?;
        Ok((usage.inodes, usage.size))
    }

    pub(crate) fn cleanup(&self) {
        let request = grpc::CleanupRequest::default();
        self.call(async |mut c| c.cleanup(request).await).unwrap();
    }

    /// Makes a layer `name` on `parent`, with what `fill` does to its root.
    pub(crate) fn layer(&self, name: &str, parent: &str, fill: impl FnOnce(&Path)) {
        let key = format!("{name}-tmp");
        let mounts = self.prepare(&key, parent, &[]).unwrap();
        let mounted = Mounted::at(&mounts, &self.place(&key), &self.root());
        fill(mounted.path());
        drop(mounted);
        self.commit(name, &key, &[]).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
        // A tmpfs of ours, if the test had one.
        let upper = self.root().join("upper");
        let _not_mounted = Command::new("umount")
            .args(["-q", "-l"])
            .arg(upper)
            .status();
    }
}

/// Fails unless `result` is an error of `code`.
#[track_caller]
pub(crate) fn assert_code<T: std::fmt::Debug>(result: Result<T, Status>, code: Code) -> String {
    let status = result.expect_err("should fail");
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}

/// What a snapshot's mounts show, until it is dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// Mounts as containerd's mounter does: from the directory that the layers share, so that the
    /// options fit into a page.
    pub(crate) fn at(mounts: &[Mount], place: &Path, root: &Path) -> Self {
        let [mount] = mounts else {
            panic!("one mount each: {mounts:?}");
        };
        let prefix = format!("{}/", root.display());
        let options = mount.options.join(",").replace(&prefix, "");
        let mut command = Command::new("mount");
        command.current_dir(root).arg("-i");
        match mount.r#type.as_str() {
            "bind" => command.args(["--bind", "-o", &options]),
            other => command.args(["-t", other, "-o", &options]),
        };
        let output = command.arg(&mount.source).arg(place).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        Self(place.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = || Command::new("umount").arg(&self.0).output().unwrap();
        let (began, mut output) = (Instant::now(), umount());
        // What another test has just forked has its files until it is executed.
        while !output.status.success() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            output = umount();
        }
        if !std::thread::panicking() {
            assert!(output.status.success(), "{output:?}");
        }
    }
}
