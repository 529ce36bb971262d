//! Container images in the store, by the names that people give them.

use anyhow::Context as _;
use bootimg::{ImageId, Stack, Store, StoreError};
use engine::ImageName;
use serde::Serialize;

use crate::exit::Outcome;
use crate::output::{Format, count, duration, print, table};
use bootstore::store::StoreSettings;
use host::size::Size;

/// What is known of a container image, as `ls --images --json` and `inspect --json` show it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ListedStack {
    reference: String,
    image: String,
    manifest: Option<String>,
    /// The lowest first.
    layers: Vec<ListedLayer>,
    /// Blocks in the boot images of its layers.
    blocks: u64,
    bytes: u64,
    /// Seconds since 1970.
    recorded_at: i64,
    ready_ms: Vec<u64>,
    command: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct ListedLayer {
    layer: String,
    /// The boot image that was recorded last, if the layer is needed to boot.
    boot_image: Option<String>,
    blocks: u64,
    bytes: u64,
}

/// Finds a container image by what people call it: a reference, short or in full, with the place
/// it was recorded from or without, or its ID. `None` if there is none.
///
/// # Errors
/// If the store cannot be read, or more than one image could be meant.
pub(crate) fn find(store: &Store, text: &str) -> anyhow::Result<Option<Stack>> {
    let name = match ImageName::parse(text) {
        Ok(Some(ImageName::Docker { reference } | ImageName::Containerd { reference, .. })) => {
            reference
        }
        _ => text.to_owned(),
    };
    let full = name.parse::<oci::Reference>().map(|name| name.to_string());
    for name in [Some(name), full.ok()].into_iter().flatten() {
        match store.find_stack(&name) {
            Ok(stack) => return Ok(Some(stack)),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error).context("looking for a container image"),
        }
    }
    Ok(None)
}

/// Returns the boot images of an image's layers, the lowest layer first, for all places that they
/// are bound to, with their names.
///
/// # Errors
/// If the store cannot be read.
pub(crate) fn boot_images(store: &Store, stack: &Stack) -> anyhow::Result<Vec<(ImageId, String)>> {
    let images = store.list().context("listing the store")?;
    let mut found = Vec::new();
    for layer in &stack.layers {
        let layer = layer.to_string();
        let is_of_layer = |name: &String| name.split('@').next() == Some(layer.as_str());
        for image in &images {
            if let Some(name) = image.names.iter().find(|name| is_of_layer(name))
                && !found.iter().any(|(id, _)| *id == image.info.id)
            {
                found.push((image.info.id, name.clone()));
            }
        }
    }
    Ok(found)
}

impl ListedStack {
    /// Describes an image with what the store has of its layers.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) fn of(store: &Store, stack: &Stack) -> anyhow::Result<Self> {
        let mut layers = Vec::new();
        for layer in &stack.layers {
            let id = store.layer(layer).context("looking for a boot image")?;
            let image = id.map(|id| store.peek_image(&id)).transpose();
            let blocks = match image.context("opening a boot image")? {
                Some(image) => image.info().blocks,
                None => 0,
            };
            layers.push(ListedLayer {
                layer: layer.to_string(),
                boot_image: id.map(|id| id.to_string()),
                blocks,
                bytes: blocks * 4096,
            });
        }
        let blocks = layers.iter().map(|layer| layer.blocks).sum();
        Ok(Self {
            reference: stack.reference.clone(),
            image: stack.image.to_string(),
            manifest: stack.manifest.map(|digest| digest.to_string()),
            layers,
            blocks,
            bytes: blocks * 4096,
            recorded_at: stack.recorded_at,
            ready_ms: stack.ready_ms.clone(),
            command: stack.command.clone(),
        })
    }

    fn short_id(&self) -> String {
        self.image.chars().skip("sha256:".len()).take(12).collect()
    }

    fn ready(&self) -> String {
        let times = self.ready_ms.iter().copied();
        let times = times.map(|ms| duration(std::time::Duration::from_millis(ms)));
        times.collect::<Vec<_>>().join(", ")
    }
}

/// Lists the container images of the store.
///
/// # Errors
/// If the store cannot be read.
pub(super) fn ls(format: Format, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let mut listed = Vec::new();
    if let Some(store) = store.open_existing()? {
        for stack in store.stacks().context("listing the container images")? {
            listed.push(ListedStack::of(&store, &stack)?);
        }
    }
    print(format, &listed, |listed| list_text(listed))?;
    Ok(Outcome::Done)
}

fn list_text(listed: &[ListedStack]) -> String {
    let head = ["IMAGE", "ID", "LAYERS", "BOOT", "READY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(listed.iter().map(|image| {
        let with = image.layers.iter().filter(|it| it.boot_image.is_some());
        vec![
            image.reference.clone(),
            image.short_id(),
            format!("{} of {}", with.count(), image.layers.len()),
            Size(image.bytes).to_string(),
            image.ready(),
        ]
    }));
    table(&rows)
}

/// Shows one container image.
///
/// # Errors
/// If the store cannot be read.
pub(super) fn inspect(format: Format, store: &Store, stack: &Stack) -> anyhow::Result<Outcome> {
    let shown = ListedStack::of(store, stack)?;
    print(format, &shown, inspect_text)?;
    Ok(Outcome::Done)
}

fn inspect_text(shown: &ListedStack) -> String {
    let mut rows = vec![
        ("image", shown.reference.clone()),
        ("id", shown.image.clone()),
        ("manifest", shown.manifest.clone().unwrap_or_default()),
        ("command", shown.command.join(" ")),
        ("ready after", shown.ready()),
        ("content", Size(shown.bytes).to_string()),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    let rows = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value]);
    let head = ["LAYER", "BOOT IMAGE", "BLOCKS", "BOOT"];
    let mut layers = vec![head.map(str::to_owned).to_vec()];
    layers.extend(shown.layers.iter().map(|layer| {
        let id = layer.boot_image.as_ref();
        vec![
            layer.layer.clone(),
            id.map_or("-".to_owned(), |id| id.chars().take(12).collect()),
            layer.blocks.to_string(),
            Size(layer.bytes).to_string(),
        ]
    }));
    format!("{}\n{}", table(&rows.collect::<Vec<_>>()), table(&layers))
}

/// Forgets a container image, and the boot images of layers that no other image stacks; returns
/// what to tell.
///
/// # Errors
/// If the store cannot be changed.
pub(super) fn remove(store: &Store, stack: &Stack) -> anyhow::Result<String> {
    let reference = &stack.reference;
    let layers = store
        .remove_stack(reference)
        .with_context(|| format!("removing {reference}"))?;
    let layers = count(layers.len() as u64, "layer");
    Ok(format!(
        "removed {reference}, and the boot images of {layers} that nothing else stacks\n"
    ))
}
