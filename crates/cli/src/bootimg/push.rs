//! `bootimg push`: the boot images of a container image into a registry.

use anyhow::Context as _;
use artifacts::push::{PushMode, PushRequest, Pushed, push};
use bootimg::Stack;
use oci::Reference;
use oci::registry::{Access, Repository};

use super::registry::RegistryArgs;
use super::stacks;
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{FormatArg, count, print};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::size::Size;

/// Put the boot images of a container image into a registry
///
/// They become an artifact about the image, beside it: whoever pulls the image can find them with
/// `bootimg pull`. The image itself must be in the registry already. Pushing again pushes what is
/// missing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PushArgs {
    /// Name or image ID of a container image that was recorded
    #[arg(add = image_names())]
    image: String,
    /// Where the image is in a registry [default: by its name]
    #[arg(long, value_name = "IMAGE")]
    to: Option<Reference>,
    /// Only say what would be pushed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

pub(super) fn run(args: &PushArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let store = store.open_present()?;
    let image = &args.image;
    let stack = stacks::find(&store, image)?.with_context(|| {
        format!("the store has no container image {image}: record it with bootimg record {image}")
    })?;
    let to = place(args, &stack)?;
    let config = args.registry.config(&to)?;
    artifacts::confine(&store)?;
    let interrupt = Interrupt::install()?;
    let repository =
        Repository::open(&to, Access::Push, &config).context("setting up the registry")?;
    let request = PushRequest {
        store: &store,
        stack: &stack,
        to: &to,
        repository: &repository,
        mode: if args.dry_run {
            PushMode::DryRun
        } else {
            PushMode::Push
        },
    };
    let result = push(&request, &interrupt);
    interrupt.check()?;
    let pushed = result.with_context(|| format!("pushing the boot images of {image}"))?;
    print(args.format.format(), &pushed, text)?;
    Ok(Outcome::Done)
}

/// Returns where the image is in a registry.
fn place(args: &PushArgs, stack: &Stack) -> anyhow::Result<Reference> {
    match &args.to {
        Some(to) => Ok(to.clone()),
        None => stack
            .reference
            .parse()
            .with_context(|| format!("{} is in no registry: say where with --to", stack.reference)),
    }
}

fn text(pushed: &Pushed) -> String {
    let mut text = String::new();
    for layer in &pushed.layers {
        let what = match (pushed.dry_run, layer.present) {
            (true, _) => "would be pushed",
            (false, true) => "was there",
            (false, false) => "pushed",
        };
        let bytes = Size(layer.bytes);
        text.push_str(&format!("layer {}: {bytes} {what}\n", layer.layer.short()));
    }
    if pushed.layers_without > 0 {
        let without = count(pushed.layers_without as u64, "layer");
        text.push_str(&format!("{without} without a boot image\n"));
    }
    if let Some(artifact) = pushed.artifact {
        text.push_str(&format!("{}: boot images {artifact}\n", pushed.reference));
    }
    text
}
