//! Storing a recorded first boot: the image's name comes from containerd.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::Digest;
use bootimg::{Stack, Store};
use engine::containerd::{Containerd, Described, chain_ids};
use tracer::MergeOptions;

use super::super::SNAPSHOTTER;
use super::Boot;
use host::interrupt::Interrupt;
use layers::keep::{About, Earlier, keep_layer};
use layers::patient_node::PatientClient;
use layers::recorded::RecordedLayer;

/// Makes boot images of recordings.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub store: Store,
    /// The socket of the containerd that we serve.
    pub containerd: PathBuf,
    /// The node, which records starts on block images.
    pub node: PatientClient,
    pub interrupt: Interrupt,
}

impl Keeper {
    /// Stores the recording; returns the image's reference.
    pub(in super::super) fn keep(&self, boot: &Boot) -> anyhow::Result<String> {
        let heard: Vec<_> = boot.layers.iter().map(RecordedLayer::stop).collect();
        let ready = boot.last_event().map(|last| last - boot.started);
        let ready_ms = ready.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let about = About {
            command: Vec::new(),
            ready_ms: ready_ms.into_iter().collect(),
        };
        let image = self.image_of(boot)?;
        let diff_ids = diff_ids_of(&image, boot)?;
        let from_the_lowest = boot.layers.iter().zip(heard).zip(&diff_ids).rev();
        for ((recorded, heard), layer) in from_the_lowest {
            let reading = || format!("reading the recording of layer {}", layer.short());
            let (source, trace) = recorded.trace(heard).with_context(reading)?;
            let merged = tracer::merge(&[trace], &source.tree, &MergeOptions::default())
                .with_context(reading)?;
            let (store, earlier) = (&self.store, Earlier::United);
            keep_layer(
                store,
                &source,
                layer,
                &merged,
                &about,
                earlier,
                &self.interrupt,
            )?;
        }
        let stack = Stack {
            reference: image.reference,
            image: image.image,
            manifest: Some(image.manifest),
            layers: image.layers,
            recorded_at: seconds(SystemTime::now()),
            ready_ms: about.ready_ms,
            command: about.command,
        };
        let put = self.store.put_stack(&stack);
        put.context("keeping what is known of the image")?;
        Ok(stack.reference)
    }

    pub(super) fn image_of(&self, boot: &Boot) -> anyhow::Result<Described> {
        let namespace = boot.key.split('/').next().unwrap_or_default();
        let containerd = Containerd::connect(&self.containerd, namespace, SNAPSHOTTER)
            .context("asking containerd for the image (`containerd` names the socket)")?;
        let image = containerd.with_chain(&boot.top())?;
        image.with_context(|| no_image(namespace, &boot.top()))
    }
}

/// Returns the diff ID of each layer of a boot, nearest first.
fn diff_ids_of(image: &Described, boot: &Boot) -> anyhow::Result<Vec<Digest>> {
    let chains = chain_ids(&image.layers);
    let recorded = boot.layers.iter().map(|layer| layer.place().layer);
    ensure!(
        chains.iter().rev().copied().eq(recorded),
        "the container's layers are not those of {}",
        image.reference
    );
    Ok(image.layers.iter().rev().copied().collect())
}

fn no_image(namespace: &str, top: &Digest) -> String {
    format!("no image in containerd's namespace {namespace} has the chain {top}")
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
