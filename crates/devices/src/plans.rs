//! What the store of boot images knows of the starts of block images, and what their registries know.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use artifacts::plans::PulledPlan;
use blockimages::plan::{PlanShelf, StartPlan};
use blockimages::start_data::StartDataRef;
use blockimages::{DeviceConfig, Trace, repository_of};
use bootstore::store::{block_plans, make_block_plans};
use node_api::image::{ImageSpec, KeptPlan};
use oci::registry::{Access, Repository};

use crate::registry;

/// How long a registry may take to bring a plan: who starts without one loses a few seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the plans of a store.
#[must_use]
pub fn shelf(store: &Path) -> PlanShelf {
    PlanShelf::at(block_plans(store))
}

/// Returns what a store knows of the start of an image; nothing if that cannot be found out.
#[must_use]
pub fn known(store: &Path, image: &Path) -> Option<Trace> {
    let known = || {
        let digests = DeviceConfig::read(image)?.0.digests();
        let plan = shelf(store).find(&digests)?;
        anyhow::Ok(plan.map(|plan| plan.trace_of(&digests)))
    };
    known().unwrap_or_else(|error| {
        log::warn!("cannot look for a plan of {}: {error:#}", image.display());
        None
    })
}

/// Returns the data of a start of an image that its registry has, as far as a store knows.
#[must_use]
pub fn known_data(store: &Path, image: &Path) -> Option<StartDataRef> {
    let known = || {
        let (config, _) = DeviceConfig::read(image)?;
        anyhow::Ok(shelf(store).find_data(&config.digests(), &config.repo_blob_url)?)
    };
    known().unwrap_or_else(|error| {
        let image = image.display();
        log::warn!("cannot look for the data of a start of {image}: {error:#}");
        None
    })
}

/// Keeps a plan that a registry had, and where its data is.
///
/// # Errors
/// If the store cannot be written.
pub fn keep_pulled(store: &Path, pulled: &PulledPlan, blob_url: &str) -> anyhow::Result<()> {
    make_block_plans(store)?;
    let shelf = shelf(store);
    shelf.keep_newer(&pulled.plan)?;
    if let Some(data) = &pulled.data {
        shelf.keep_data(&pulled.plan, data, blob_url)?;
    }
    Ok(())
}

/// Returns whether a plan is one of this image: others have only its lower layers. Whatever a start reads, it reads the
/// beginning of the file system, which the topmost layer has.
pub(crate) fn is_whole(plan: &Option<Trace>, image: &Path) -> bool {
    let layers = DeviceConfig::read(image).map_or(0, |(config, _)| config.lowers.len());
    let reads = plan.iter().flat_map(|plan| &plan.reads);
    let mut layers_read = reads.map(|read| read.layer as usize + 1);
    layers_read.any(|layer| layer == layers)
}

/// Keeps what was recorded of the start of an image.
///
/// # Errors
/// If nothing was read, or the store cannot be written.
pub(crate) fn keep(store: &Path, image: &Path, trace: &Trace) -> anyhow::Result<KeptPlan> {
    let digests = DeviceConfig::read(image)?.0.digests();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let plan = StartPlan::of_trace(trace, &digests, now.map_or(0, |now| now.as_secs()));
    ensure!(
        !plan.is_empty(),
        "nothing was read of layers that have a digest in {}",
        image.display()
    );
    make_block_plans(store)?;
    Ok(KeptPlan {
        file: shelf(store).keep(&plan)?,
        bytes: plan.bytes(),
    })
}

/// Takes the plan that refers to an image in its registry into the store, if there is one. Without it, the start
/// takes longer.
pub(crate) fn take(store: &Path, image: &Path, spec: &ImageSpec) {
    if let Err(error) = pull(store, image, spec) {
        let image = image.display();
        log::warn!("{image} is opened without the plan of its registry: {error:#}");
    }
}

fn pull(store: &Path, image: &Path, spec: &ImageSpec) -> anyhow::Result<()> {
    let (config, _) = DeviceConfig::read(image)?;
    let Some(manifest) = config.manifest else {
        return Ok(());
    };
    let reference = repository_of(&config.repo_blob_url)?;
    let talk = registry::config(&spec.registry, &reference)?;
    let repository = Repository::open(&reference, Access::Pull, &talk.registry)?;
    let deadline = Instant::now() + PATIENCE;
    let mut is_late = false;
    let mut watch = |_| {
        is_late = Instant::now() >= deadline;
        match is_late {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let layers: Vec<_> = config.digests().into_iter().flatten().collect();
    let pulled = artifacts::plans::pull((manifest, &layers), &repository, &mut watch);
    ensure!(
        !is_late,
        "{} did not bring it within {} s",
        reference.registry(),
        PATIENCE.as_secs()
    );
    if let Some(pulled) = pulled? {
        keep_pulled(store, &pulled, &config.repo_blob_url)?;
        log::info!(
            "took the plan of {} from its registry",
            reference.familiar()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use blockimages::{CONFIG_NAME, LowerConfig};
    use blocks::Digest;

    use super::*;

    #[test]
    fn a_registry_that_says_nothing_is_not_waited_for() {
        // It takes connections and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = DeviceConfig {
            repo_blob_url: format!("http://{host}/v2/app/blobs"),
            manifest: Some(Digest([1; 32])),
            lowers: vec![LowerConfig {
                digest: Digest([2; 32]).to_string(),
                size: 4096,
                ..LowerConfig::default()
            }],
            ..DeviceConfig::default()
        };
        let text = serde_json::to_vec(&config).unwrap();
        std::fs::write(dir.path().join(CONFIG_NAME), text).unwrap();
        let store = dir.path().join("store");
        let why = pull(&store, dir.path(), &ImageSpec::default()).unwrap_err();
        assert!(why.to_string().contains("within 5 s"), "{why:#}");
        assert!(!store.exists(), "a store without a plan");
    }
}
