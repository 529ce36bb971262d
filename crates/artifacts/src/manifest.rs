//! The manifest of an artifact: written for a push, and checked before a pull (docs/registries.md).

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use bootimg::{ImageId, Stack};
use oci::{Descriptor, Manifest};

use host::size::Size;

/// What kind of artifact it is.
pub(crate) const ARTIFACT: &str = "application/vnd.yolofs.bootimage.v1";
/// Its configuration: the description of the stack.
pub(crate) const STACK: &str = "application/vnd.yolofs.stack.v1+json";
/// Its layers: packed boot images.
const LAYER: &str = "application/vnd.yolofs.bootimage.layer.v1";

const DIFF_ID: &str = "org.yolofs.diff-id";
const IMAGE_ID: &str = "org.yolofs.image-id";
pub(crate) const RECORDED_AT: &str = "org.yolofs.recorded-at";
/// Bytes of the data of a start, in the manifest of an artifact that has some.
pub(crate) const DATA_BYTES: &str = "org.yolofs.start-data-bytes";

/// Bytes of the description of a stack, as the store bounds it.
const STACK_MAX: u64 = 256 << 10;

/// The boot image of a layer, as the artifact has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedLayer {
    /// The diff ID of the layer.
    pub(crate) layer: Digest,
    /// The boot image.
    pub(crate) image: ImageId,
    /// The file.
    pub(crate) blob: Digest,
    /// Its length in bytes.
    pub(crate) size: u64,
}

/// Returns the manifest of the artifact.
pub(crate) fn manifest(
    stack: &Stack,
    config: Descriptor,
    layers: &[PackedLayer],
    subject: Descriptor,
) -> Manifest {
    let layer = |packed: &PackedLayer| {
        let mut descriptor = Descriptor::new(LAYER, packed.blob, packed.size);
        let notes = [
            (DIFF_ID, packed.layer.to_string()),
            (IMAGE_ID, packed.image.to_string()),
        ];
        let notes = notes.map(|(name, value)| (name.to_owned(), value));
        descriptor.annotations.extend(notes);
        descriptor
    };
    let layers = layers.iter().map(layer).collect();
    let mut manifest = Manifest::of_artifact(ARTIFACT, config, layers, subject);
    let recorded_at = (RECORDED_AT.to_owned(), stack.recorded_at.to_string());
    manifest.annotations.extend([recorded_at]);
    manifest
}

/// Returns the artifact with the latest recording; of equal ones one with data of the start, or the last.
pub(crate) fn newest(artifacts: &[Descriptor]) -> Option<&Descriptor> {
    let rank = |artifact: &&Descriptor| {
        let text = artifact.annotations.get(RECORDED_AT);
        let recorded_at = text.and_then(|text| text.parse::<i64>().ok());
        (recorded_at, artifact.annotations.contains_key(DATA_BYTES))
    };
    artifacts.iter().max_by_key(rank)
}

/// Checks the manifest of an artifact that anybody may have written, and returns its boot images.
/// `diff_ids` are the layers of the image that it must be about.
pub(crate) fn layers_of(
    manifest: &Manifest,
    subject: Digest,
    diff_ids: &[Digest],
    max_bytes: u64,
) -> anyhow::Result<Vec<PackedLayer>> {
    let about = manifest.subject.as_ref().map(|subject| subject.digest);
    ensure!(about == Some(subject), "it refers to another image");
    ensure!(
        manifest.config.media_type == STACK && manifest.config.size <= STACK_MAX,
        "its configuration is not a stack description"
    );
    ensure!(
        manifest.layers.len() <= diff_ids.len(),
        "it has more boot images than the image has layers"
    );
    let mut known = BTreeSet::new();
    let mut left = max_bytes;
    let mut layers = Vec::new();
    for blob in &manifest.layers {
        let packed = packed_layer(blob)?;
        let layer = packed.layer;
        ensure!(
            diff_ids.contains(&layer),
            "it has a boot image of {layer}, which is no layer of the image"
        );
        ensure!(known.insert(layer), "it has two boot images of {layer}");
        left = left.checked_sub(packed.size).with_context(|| {
            let max = Size(max_bytes);
            format!("its boot images have more than {max} (allow more with max_bytes)")
        })?;
        layers.push(packed);
    }
    Ok(layers)
}

fn packed_layer(blob: &Descriptor) -> anyhow::Result<PackedLayer> {
    if blob.media_type != LAYER {
        let found: String = blob.media_type.chars().take(80).collect();
        bail!("it has a layer of type {found:?}, which is no boot image");
    }
    let note = |name: &str| {
        let found = blob.annotations.get(name);
        found.with_context(|| format!("a boot image lacks the annotation {name}"))
    };
    let unreadable = |name| format!("the annotation {name} of a boot image cannot be read");
    let layer = note(DIFF_ID)?.parse();
    let image = note(IMAGE_ID)?.parse();
    Ok(PackedLayer {
        layer: layer.with_context(|| unreadable(DIFF_ID))?,
        image: image.with_context(|| unreadable(IMAGE_ID))?,
        blob: blob.digest,
        size: blob.size,
    })
}

/// Checks that a description is of the requested image.
pub(crate) fn check_stack(stack: &Stack, image: Digest, diff_ids: &[Digest]) -> anyhow::Result<()> {
    ensure!(
        stack.image == image,
        "it describes the image {}",
        stack.image
    );
    ensure!(
        stack.layers == diff_ids,
        "the layers in its description are not those of the image"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oci::digest_of;

    const MAX: u64 = 1000;

    fn id(text: &str) -> Digest {
        digest_of(text.as_bytes())
    }

    fn packed(layer: &str, size: u64) -> PackedLayer {
        PackedLayer {
            layer: id(layer),
            image: "ab".repeat(32).parse().unwrap(),
            blob: id("blob"),
            size,
        }
    }

    fn stack() -> Stack {
        Stack {
            reference: "r.io/a:1".to_owned(),
            image: id("image"),
            manifest: None,
            layers: vec![id("one"), id("two")],
            recorded_at: 77,
            ready_ms: Vec::new(),
            command: Vec::new(),
        }
    }

    fn good() -> Manifest {
        let config = Descriptor::new(STACK, id("stack"), 100);
        let subject = Descriptor::new("m", id("subject"), 5);
        manifest(
            &stack(),
            config,
            &[packed("one", 10), packed("two", 20)],
            subject,
        )
    }

    fn check(manifest: &Manifest) -> Result<Vec<PackedLayer>, String> {
        let diff_ids = stack().layers;
        layers_of(manifest, id("subject"), &diff_ids, MAX).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_was_written_is_read_back() {
        let manifest = good();
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let read = Manifest::decode(&bytes).unwrap();
        assert_eq!(read, manifest);
        assert_eq!(check(&read), Ok(vec![packed("one", 10), packed("two", 20)]));
        assert!(check_stack(&stack(), id("image"), &stack().layers).is_ok());
    }

    #[test]
    fn hostile_manifests_are_refused() {
        let note = |name: &'static str, value: &'static str| {
            move |manifest: &mut Manifest| {
                let notes = &mut manifest.layers[0].annotations;
                notes.insert(name.to_owned(), value.to_owned());
            }
        };
        type Harm = Box<dyn Fn(&mut Manifest)>;
        let harms: Vec<(Harm, &str)> = vec![
            (Box::new(|m| m.subject = None), "another image"),
            (
                Box::new(|m| m.subject = Some(Descriptor::new("m", id("x"), 5))),
                "another image",
            ),
            (
                Box::new(|m| m.config.media_type = "text/plain".into()),
                "not a stack description",
            ),
            (
                Box::new(|m| m.config.size = u64::MAX),
                "not a stack description",
            ),
            (
                Box::new(|m| m.layers[0].media_type = "a/b\u{1b}[2J".into()),
                "no boot image",
            ),
            (Box::new(|m| m.layers[0].size = u64::MAX), "more than"),
            (Box::new(|m| m.layers[1].size = 991), "more than"),
            (
                Box::new(|m| m.layers[0].annotations.clear()),
                "lacks the annotation",
            ),
            (
                Box::new(|m| m.layers[1] = m.layers[0].clone()),
                "two boot images",
            ),
            (
                Box::new(|m| m.layers = vec![m.layers[0].clone(); 400]),
                "more boot images",
            ),
            (
                Box::new(note(DIFF_ID, "../../etc/passwd")),
                "cannot be read",
            ),
            (Box::new(note(IMAGE_ID, "../x")), "cannot be read"),
            (
                Box::new(note(
                    DIFF_ID,
                    "sha256:0000000000000000000000000000000000000000000000000000000000000000",
                )),
                "no layer of the image",
            ),
        ];
        for (harm, why) in harms {
            let mut manifest = good();
            harm(&mut manifest);
            let error = check(&manifest).unwrap_err();
            assert!(error.contains(why), "{error}: {why}");
            assert!(!error.contains('\u{1b}'));
        }
    }

    /// Whatever becomes of a byte: a manifest is refused, or says nothing that is not allowed.
    #[test]
    fn no_damage_gets_past_the_checks() {
        let good = serde_json::to_vec(&good()).unwrap();
        let diff_ids = stack().layers;
        for place in 0..good.len() {
            for byte in [0, b'0', b'9', b'"', b'}', b'[', b'/', good[place] ^ 1, 0xff] {
                let mut bytes = good.clone();
                bytes[place] = byte;
                let Ok(manifest) = Manifest::decode(&bytes) else {
                    continue;
                };
                let Ok(layers) = check(&manifest) else {
                    continue;
                };
                assert!(layers.iter().all(|packed| diff_ids.contains(&packed.layer)));
                assert!(layers.iter().map(|packed| packed.size).sum::<u64>() <= MAX);
            }
        }
    }

    #[test]
    fn a_stack_of_another_image_is_refused() {
        let layers = stack().layers;
        assert!(check_stack(&stack(), id("other"), &layers).is_err());
        assert!(check_stack(&stack(), id("image"), &layers[..1]).is_err());
    }

    #[test]
    fn the_newest_counts() {
        let at = |when: &str| {
            let mut artifact = Descriptor::new("m", id(when), 1);
            artifact
                .annotations
                .insert(RECORDED_AT.to_owned(), when.to_owned());
            artifact
        };
        let artifacts = [at("7"), at("9"), at("soon"), at("-1")];
        assert_eq!(newest(&artifacts), Some(&artifacts[1]));
        assert_eq!(newest(&[]), None);
    }
}
