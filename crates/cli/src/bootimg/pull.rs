//! `bootimg pull`: the boot images of a container image from a registry.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use artifacts::pull::{PullOutcome, PullRequest, Pulled, Recorded, pull};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci::Reference;
use oci::registry::{Access, Repository};

use super::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::size::Size;

/// Fetch the boot images of a container image from a registry
///
/// `bootimg push` put them beside the image. The image need not be on this node yet: its layers
/// use them as soon as they are attached. Recordings of this node are kept. A pull that was
/// interrupted resumes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PullArgs {
    /// Name of the container image
    image: Reference,
    /// Replace boot images that were recorded on this node
    #[arg(long)]
    force: bool,
    /// Refuse boot images that are larger than this together
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    max_bytes: Size,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

pub(super) fn run(args: &PullArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let recorded = if args.force {
        Recorded::Goes
    } else {
        Recorded::Stays
    };
    let config = args.registry.config(&args.image)?;
    let store = store.open()?;
    store.make().context("making the store")?;
    artifacts::confine(&store)?;
    let interrupt = Interrupt::install()?;
    let repository = Repository::open(&args.image, Access::Pull, &config);
    let request = PullRequest {
        reference: &args.image,
        repository: repository.context("setting up the registry")?,
        store: &store,
        max_bytes: args.max_bytes.0,
        recorded,
    };
    let pulled = pull(request, &interrupt)?;
    print(args.format.format(), &pulled, text)?;
    Ok(Outcome::Done)
}

/// Has another process fetch the boot images of an image that the store knows nothing of, and describe it:
/// one that is confined, as this one is not.
///
/// # Errors
/// If the registry has none, or what it has cannot be used; that process has said so.
pub(super) fn fetch(
    reference: &Reference,
    registry: &RegistryArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let name = reference.to_string();
    let mut program = Command::new("/proc/self/exe");
    program
        .args(["pull", &name])
        .args(registry.arguments())
        .envs(store.as_env())
        .stdout(Stdio::null());
    let mut child = program.spawn().context("starting a process that pulls")?;
    let mut told: Option<Instant> = None;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for the pull")? {
            break status;
        }
        match told {
            None if interrupt.asked() => {
                // It may have heard it, too: both together are one request.
                let _sent = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT);
                told = Some(Instant::now());
            }
            // It waits for the registry. The next pull goes on with what has come.
            Some(told) if told.elapsed() > ENDING => drop(child.kill()),
            _ => {}
        }
        std::thread::sleep(LOOK_EVERY);
    };
    interrupt.check()?;
    ensure!(
        status.success(),
        "the boot images of {} were not pulled ({status})",
        reference.familiar()
    );
    Ok(())
}

/// How long it may take to end when it is asked to.
const ENDING: Duration = Duration::from_secs(2);
/// How often the end of another process is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
fn text(pulled: &Pulled) -> String {
    let mut text = String::new();
    for layer in &pulled.layers {
        let bytes = Size(layer.bytes);
        let what = match layer.outcome {
            PullOutcome::Pulled => "pulled",
            PullOutcome::Present => "was there",
            PullOutcome::Kept => "left: one was recorded on this node (replace it with --force)",
        };
        text.push_str(&format!("layer {}: {bytes} {what}\n", layer.layer.short()));
    }
    let (fetched, resumed) = (Size(pulled.fetched_bytes), Size(pulled.resumed_bytes));
    let before = match pulled.resumed_bytes {
        0 => String::new(),
        _ => format!(", {resumed} were there from before"),
    };
    text.push_str(&format!(
        "{}: {fetched} fetched{before}\n",
        pulled.reference
    ));
    text
}
