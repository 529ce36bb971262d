//! OCI image layouts: directories (and, by [`archive`](crate::archive), tars) with an
//! `index.json` and blobs.

use std::path::Path;

use blocks::Digest;
use distribution::image::shown;
use serde::Deserialize;

use crate::blob::digest_of;
use crate::error::decode;
use crate::file_range::{Directory, FileRange, Files};
use crate::{
    BlobError, CONFIG_MAX, DOCUMENT_MAX, Descriptor, Image, ImageConfig, ImageError, Index,
    LayerBlob, Manifest, Platform, Reference,
};

pub(crate) const INDEX: &str = "index.json";
const MARK: &str = "oci-layout";
/// The mark is one short line.
const MARK_MAX: u64 = 4096;
/// Indexes within indexes. Engines nest two: the layout's own, and one for several platforms.
const NESTED_MAX: usize = 4;

/// What the index calls an image: OCI's annotation, which is often only a tag, and containerd's,
/// which is the whole name.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

/// Opens the image `wanted` (a tag, a name, or the digest of its manifest) of the layout in `dir`,
/// or its only image.
///
/// # Errors
/// If there is no such image, several match, there is none for this platform, or a
/// part is missing, damaged or too large.
pub fn open(dir: &Path, wanted: Option<&str>, platform: &Platform) -> Result<Image, ImageError> {
    open_in(&Directory(dir.to_owned()), wanted, platform)
}

pub(crate) fn open_in(
    files: &dyn Files,
    wanted: Option<&str>,
    platform: &Platform,
) -> Result<Image, ImageError> {
    check_mark(files)?;
    let index = Index::decode(&files.read(INDEX, "index", DOCUMENT_MAX)?)?;
    let chosen = choose(files.path(), &index, wanted)?;
    let (digest, manifest) = manifest_of(files, chosen, platform)?;
    manifest.must_be_image()?;
    let config_bytes = read_blob(files, &manifest.config, "configuration", CONFIG_MAX)?;
    let config = ImageConfig::decode(&config_bytes)?;
    Ok(Image {
        name: names(chosen).next().map(str::to_owned),
        manifest: Some(digest),
        id: manifest.config.digest,
        layers: layers(files, &manifest, &config)?,
        config,
        config_bytes,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    image_layout_version: String,
}

fn check_mark(files: &dyn Files) -> Result<(), ImageError> {
    let mark: Mark = decode("layout's mark", &files.read(MARK, "mark", MARK_MAX)?)?;
    if mark.image_layout_version.starts_with("1.") {
        return Ok(());
    }
    Err(ImageError::Rule {
        what: "layout's mark",
        rule: "its version is not 1",
    })
}

fn names(entry: &Descriptor) -> impl Iterator<Item = &str> {
    let annotation = |name: &&str| entry.annotations.get(*name).map(String::as_str);
    NAMES.iter().filter_map(annotation)
}

fn choose<'a>(
    path: &Path,
    index: &'a Index,
    wanted: Option<&str>,
) -> Result<&'a Descriptor, ImageError> {
    let is_wanted = |entry: &&Descriptor| wanted.is_none_or(|wanted| is_called(entry, wanted));
    let mut fitting = index.manifests.iter().filter(is_wanted);
    let have = || {
        let names = |entry: &Descriptor| names(entry).next().map(str::to_owned);
        shown(index.manifests.iter().filter_map(names))
    };
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => Ok(only),
        (Some(first), Some(next)) if first.digest == next.digest => Ok(first),
        (Some(_), Some(_)) => Err(ImageError::Ambiguous {
            path: path.to_owned(),
            have: have(),
        }),
        (None, _) => Err(ImageError::NoSuchImage {
            path: path.to_owned(),
            wanted: wanted.unwrap_or("of any name").to_owned(),
            have: have(),
        }),
    }
}

/// `nginx` is as good as `docker.io/library/nginx:latest` where a whole name is written.
fn is_called(entry: &Descriptor, wanted: &str) -> bool {
    let reference = wanted.parse::<Reference>().ok();
    let is_name = |name: &str| {
        name == wanted || (reference.is_some() && name.parse::<Reference>().ok() == reference)
    };
    wanted.parse() == Ok(entry.digest) || names(entry).any(is_name)
}

/// Follows indexes down to the manifest for this platform.
fn manifest_of(
    files: &dyn Files,
    entry: &Descriptor,
    platform: &Platform,
) -> Result<(Digest, Manifest), ImageError> {
    let mut entry = entry.clone();
    for _ in 0..NESTED_MAX {
        let bytes = read_blob(files, &entry, "manifest", DOCUMENT_MAX)?;
        if !entry.is_index() {
            return Ok((entry.digest, Manifest::decode(&bytes)?));
        }
        entry = Index::decode(&bytes)?.for_platform(platform)?.clone();
    }
    Err(ImageError::Rule {
        what: "index",
        rule: "more than four indexes lead to a manifest",
    })
}

fn layers(
    files: &dyn Files,
    manifest: &Manifest,
    config: &ImageConfig,
) -> Result<Vec<LayerBlob>, ImageError> {
    let layer = |(layer, diff_id): (&Descriptor, Digest)| {
        let place = blob_place(files, layer)?;
        Ok(LayerBlob {
            diff_id,
            media_type: layer.media_type.clone(),
            digest: Some(layer.digest),
            place,
        })
    };
    config.layers_of(manifest)?.map(layer).collect()
}

fn blob_place(files: &dyn Files, blob: &Descriptor) -> Result<FileRange, ImageError> {
    let name = format!("blobs/sha256/{}", blob.digest.hex());
    let missing = || ImageError::Missing {
        path: files.path().to_owned(),
        name: name.clone(),
    };
    let place = files.find(&name)?.ok_or_else(missing)?;
    if place.len == blob.size {
        return Ok(place);
    }
    Err(ImageError::Blob {
        digest: blob.digest,
        source: BlobError::Length {
            expected: blob.size,
            found: place.len,
        },
    })
}

fn read_blob(
    files: &dyn Files,
    blob: &Descriptor,
    what: &'static str,
    limit: u64,
) -> Result<Vec<u8>, ImageError> {
    let bytes = blob_place(files, blob)?.read(what, limit)?;
    let (expected, found) = (blob.digest, digest_of(&bytes));
    if expected == found {
        return Ok(bytes);
    }
    Err(ImageError::Blob {
        digest: expected,
        source: BlobError::Digest { expected, found },
    })
}
