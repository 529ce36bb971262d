//! `yolofs pull`.

use std::path::PathBuf;

use anyhow::Context as _;
use engine::containerd::DEFAULT_ADDRESS;
use oci::Reference;

use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, duration, print};
use crate::run_dir_arg::RunDirArg;
use containerd_service::pull::report::{LayerOutcome, PullReport};
use containerd_service::pull::{Blobs, PullRequest, pull};
use host::size::Size;

/// Pull an image into containerd and `yolofs snapshotter`
///
/// Layers are unpacked while they are being downloaded, several at once; those that would delay the pull
/// go to the snapshotter's fast tier, if it has one. Layers that exist are not downloaded.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PullArgs {
    /// Name of the image
    image: Reference,
    /// Socket of containerd
    #[arg(
        long,
        value_name = "FILE",
        env = "CONTAINERD_ADDRESS",
        default_value = DEFAULT_ADDRESS
    )]
    address: PathBuf,
    /// Namespace of containerd that the image is for: Kubernetes' own, unless told otherwise; that of ctr
    /// and nerdctl is `default`
    #[arg(
        long,
        value_name = "NAME",
        env = "CONTAINERD_NAMESPACE",
        default_value = "k8s.io"
    )]
    namespace: String,
    /// What containerd calls the snapshotter
    #[arg(long, value_name = "NAME", default_value = "yolofs")]
    snapshotter: String,
    /// Layers that are downloaded at once; each takes up to 32 MiB of memory
    #[arg(long, value_name = "N", default_value_t = AT_ONCE, value_parser = clap::value_parser!(u8).range(1..=32))]
    concurrent: u8,
    /// Whether containerd keeps the compressed layers, too: it needs them to push or export the image,
    /// and not to run it [default: drop; keep for Docker's namespace, moby]
    #[arg(long, value_name = "MODE", value_enum)]
    blobs: Option<BlobsArg>,
    /// Only say what would be downloaded, and where it would go
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// What becomes of compressed layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BlobsArg {
    /// They are kept; those that are missing of layers that are there are downloaded.
    Keep,
    /// They are not.
    Drop,
}

/// Downloads at once unless told otherwise: as many as containerd's.
const AT_ONCE: u8 = 3;

pub(super) fn run(args: &PullArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let context = || format!("pulling {}", args.image.familiar());
    let registry = args.registry.config(&args.image).with_context(context)?;
    let request = PullRequest {
        image: args.image.clone(),
        address: args.address.clone(),
        namespace: args.namespace.clone(),
        snapshotter: args.snapshotter.clone(),
        concurrent: args.concurrent,
        blobs: match args.blobs {
            Some(BlobsArg::Keep) => Blobs::Keep,
            Some(BlobsArg::Drop) => Blobs::Drop,
            None => Blobs::of(&args.namespace),
        },
        dry_run: args.dry_run,
    };
    let report = pull(&request, registry, &run_dir.run_dir)?;
    print(args.format.format(), &report, text)?;
    Ok(Outcome::Done)
}

/// Writes it for people.
fn text(report: &PullReport) -> String {
    let mut text = String::new();
    for layer in &report.layers {
        let went = match (layer.went, report.dry_run) {
            (LayerOutcome::Present, _) => "is there",
            (LayerOutcome::Disk, false) => "pulled, to the disk",
            (LayerOutcome::Fast, false) => "pulled, to the fast place",
            (LayerOutcome::Disk, true) => "would go to the disk",
            (LayerOutcome::Fast, true) => "would go to the fast place",
        };
        let bytes = Size(layer.bytes);
        text.push_str(&format!("layer {}: {bytes} {went}\n", layer.layer.short()));
    }
    let (reference, namespace) = (&report.reference, &report.namespace);
    if report.dry_run {
        let missing = report
            .layers
            .iter()
            .filter(|of| of.went != LayerOutcome::Present);
        let bytes = Size(missing.map(|layer| layer.bytes).sum());
        text.push_str(&format!(
            "{reference}: {bytes} would be downloaded for the namespace {namespace}\n"
        ));
        return text;
    }
    let millis = std::time::Duration::from_millis;
    let after = match report.fetched_bytes {
        0 => String::new(),
        _ => format!(
            ", {} of it after the last byte",
            duration(millis(report.after_download_ms))
        ),
    };
    text.push_str(&format!(
        "{reference}: {} downloaded in {}{after}; it is in the namespace {namespace}\n",
        Size(report.fetched_bytes),
        duration(millis(report.took_ms)),
    ));
    text
}
