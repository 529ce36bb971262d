//! Compressed layers that containerd keeps besides the unpacked ones.

use std::ops::ControlFlow;

use anyhow::Context as _;
use engine::containerd::{BlobSink, KeptBlob, Lease, blob_pipe};
use host::interrupt::Interrupt;
use oci::Reference;
use oci::registry::{Access, RegistryConfig, Repository};

use super::wanted::Layer;

/// Has containerd keep a blob while `fetch` has it come; if it fails, nothing is kept.
///
/// # Errors
/// If containerd does not keep what came.
pub(super) fn keep<T, E>(
    lease: &Lease<'_>,
    (reference, layer): (&Reference, &Layer),
    attempt: &str,
    fetch: impl FnOnce(&BlobSink) -> Result<T, E>,
) -> anyhow::Result<Result<T, E>> {
    let uncompressed = "containerd.io/uncompressed".to_owned();
    let blob = KeptBlob {
        digest: layer.blob.digest,
        size: layer.blob.size,
        attempt,
        labels: [
            (uncompressed, layer.diff_id.to_string()),
            source_of(reference),
        ]
        .into(),
    };
    let (sink, source) = blob_pipe();
    std::thread::scope(|scope| {
        let written = std::thread::Builder::new()
            .name("blob".to_owned())
            .spawn_scoped(scope, || lease.write_blob(&blob, source))
            .context("starting a thread that keeps a blob")?;
        let fetched = fetch(&sink);
        match &fetched {
            Ok(_) => sink.commit(),
            Err(_) => drop(sink),
        }
        let written = written.join().unwrap_or(Ok(()));
        if fetched.is_ok() {
            written?;
        }
        Ok(fetched)
    })
}

/// Downloads the blobs of unpacked layers that containerd does not have, and returns the number of
/// bytes.
///
/// # Errors
/// If one cannot be downloaded or stored, or Ctrl-C was pressed.
pub(super) fn fetch_missing(
    lease: &Lease<'_>,
    reference: &Reference,
    registry: &RegistryConfig,
    layers: &[Layer],
    attempt: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<u64> {
    let mut came = 0;
    let mut repository = None;
    for layer in layers {
        if lease.keep_content(&layer.blob.digest)? {
            continue;
        }
        if repository.is_none() {
            let opened = Repository::open(reference, Access::Pull, registry);
            repository = Some(opened.context("setting up the registry")?);
        }
        let Some(repository) = &repository else {
            continue;
        };
        let goes_on = || match interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let fetched = keep(lease, (reference, layer), attempt, |sink| {
            let mut take = |bytes: &[u8]| {
                sink.put(bytes);
                goes_on()
            };
            repository.stream_blob(&layer.blob, &mut take, &mut |_| goes_on())
        })?;
        let pulling = || format!("pulling the blob {}", layer.blob.digest.short());
        fetched.with_context(pulling)?;
        came += layer.blob.size;
    }
    Ok(came)
}

/// Returns the label with which containerd records the source of a blob.
pub(super) fn source_of(reference: &Reference) -> (String, String) {
    (
        format!("containerd.io/distribution.source.{}", reference.registry()),
        reference.repository().to_owned(),
    )
}
