//! How long a snapshotter takes to give a container its root: Prepare and Mounts.
//!
//! Both snapshotters are asked through containerd, so that they differ in what they do and in
//! nothing else; ours is one process further away.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use containerd_client::Client;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, MountsRequest, PrepareSnapshotRequest, RemoveSnapshotRequest,
};
use containerd_client::tonic::Request;
use containerd_client::tonic::metadata::MetadataValue;
use containerd_client::tonic::transport::Channel;
use tokio::runtime::Runtime;

use super::containerd::Containerd;
use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::interrupt;
use crate::micro::Series;
use crate::rounds::{Shuffle, median};

/// The layers of an image.
const LAYERS: u32 = 5;
/// containerd's own snapshotter, and ours.
const SNAPSHOTTERS: [&str; 2] = ["overlayfs", "yolofs"];
/// Longest a call may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Has both take `rounds` turns in a shuffled order, and compares their medians.
///
/// # Errors
/// If one of them fails.
pub fn measure(containerd: &Containerd, rounds: u32) -> anyhow::Result<(Vec<Series>, Aim)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let connecting = Client::from_path(containerd.address());
    let client = runtime
        .block_on(connecting)
        .context("connecting to containerd")?;
    let mut asked = Asked {
        runtime,
        snapshots: client.snapshots(),
    };
    for snapshotter in SNAPSHOTTERS {
        asked.stack(snapshotter)?;
    }
    let mut times = SNAPSHOTTERS.map(|_| Vec::new());
    let mut shuffle = Shuffle::from_clock();
    for round in 0..rounds {
        interrupt::check()?;
        for index in shuffle.order(&[0, 1]) {
            let took = asked.prepare_and_mounts(SNAPSHOTTERS[index], round)?;
            times[index].push(milliseconds(took));
        }
    }
    let ratio = median(&times[1])
        .zip(median(&times[0]))
        .map(|(ours, theirs)| ours / theirs);
    let what = "Prepare and Mounts, p50: yolofs snapshotter to containerd's overlayfs";
    let series = SNAPSHOTTERS
        .into_iter()
        .zip(times)
        .map(|(name, times)| Series {
            what: format!("Prepare and Mounts, {name}"),
            unit: "ms",
            values: times,
        });
    Ok((series.collect(), Aim::at_most(1.3, what, ratio)))
}

struct Asked {
    runtime: Runtime,
    snapshots: SnapshotsClient<Channel>,
}

impl Asked {
    /// Commits the layers of an image, one on the other, without content.
    fn stack(&mut self, snapshotter: &str) -> anyhow::Result<()> {
        let mut parent = String::new();
        for layer in 0..LAYERS {
            let (key, name) = (format!("making-{layer}"), format!("layer-{layer}"));
            self.prepare(snapshotter, &key, &parent)?;
            let commit = CommitSnapshotRequest {
                snapshotter: snapshotter.to_owned(),
                name: name.clone(),
                key,
                labels: kept(),
            };
            let commit = self.snapshots.commit(request(commit));
            self.runtime
                .block_on(commit)
                .context("committing a layer")?;
            parent = name;
        }
        Ok(())
    }

    fn prepare(&mut self, snapshotter: &str, key: &str, parent: &str) -> anyhow::Result<()> {
        let prepare = PrepareSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: kept(),
        };
        let prepare = self.snapshots.prepare(request(prepare));
        let prepared = self.runtime.block_on(prepare);
        prepared
            .map(drop)
            .with_context(|| format!("preparing with {snapshotter}"))
    }

    fn prepare_and_mounts(&mut self, snapshotter: &str, round: u32) -> anyhow::Result<Duration> {
        let key = format!("container-{round}");
        let began = Instant::now();
        self.prepare(snapshotter, &key, &format!("layer-{}", LAYERS - 1))?;
        let mounts = self.snapshots.mounts(request(MountsRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.clone(),
        }));
        self.runtime.block_on(mounts).context("asking for mounts")?;
        let took = began.elapsed();
        let remove = self.snapshots.remove(request(RemoveSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key,
        }));
        self.runtime
            .block_on(remove)
            .context("removing a snapshot")?;
        Ok(took)
    }
}

/// Labels that keep a snapshot from containerd's garbage collection.
fn kept() -> std::collections::HashMap<String, String> {
    [("containerd.io/gc.root".to_owned(), "bench".to_owned())].into()
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    let namespace = MetadataValue::from_static("bench");
    request
        .metadata_mut()
        .insert("containerd-namespace", namespace);
    request
}
