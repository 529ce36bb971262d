//! Images in a tar: what `docker save` and its relatives write.
//!
//! There are two forms. New ones hold an OCI layout (and, from Docker, the old form's
//! `manifest.json` beside it, over the same blobs); old ones hold a `manifest.json` with
//! configurations and layers under names of their own.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocks::Digest;
use distribution::image::shown;
use serde::Deserialize;

use crate::blob::digest_of;
use crate::error::decode;
use crate::file_range::{FileRange, Files};
use crate::layout;
use crate::{
    BlobError, CONFIG_MAX, DOCUMENT_MAX, Image, ImageConfig, ImageError, LayerBlob, Platform,
    Reference,
};

const MANIFEST: &str = "manifest.json";
/// Files of an archive. `docker save` writes three for each layer, and no archive has a million.
const ENTRIES_MAX: usize = 100_000;
/// Links from one name to the next. Docker links a layer that occurs twice to its first place.
const LINKS_MAX: usize = 4;

/// Opens the image `wanted` of the archive `file`, or its only image.
///
/// # Errors
/// If there is no such image, more than one could be meant, the archive is compressed as a whole,
/// or a part is missing, damaged or too large.
pub fn open(file: &Path, wanted: Option<&str>, platform: &Platform) -> Result<Image, ImageError> {
    let contents = Contents::read(file)?;
    if contents.entries.contains_key(layout::INDEX) {
        return layout::open_in(&contents, wanted, platform);
    }
    let listed = contents.read(MANIFEST, "manifest", DOCUMENT_MAX)?;
    let listed: Vec<Listed> = decode("manifest", &listed)?;
    let (chosen, name) = choose(file, &listed, wanted)?;
    image(&contents, chosen, name)
}

/// What the old form says of an image.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Listed {
    fn names(&self) -> impl Iterator<Item = &String> {
        self.repo_tags.iter().flatten()
    }
}

/// Returns the image, and the name by which it was found.
fn choose<'a>(
    path: &Path,
    listed: &'a [Listed],
    wanted: Option<&str>,
) -> Result<(&'a Listed, Option<String>), ImageError> {
    let have = || shown(listed.iter().flat_map(Listed::names).cloned());
    let path = path.to_owned();
    let Some(wanted) = wanted else {
        return match listed {
            [only] => Ok((only, only.names().next().cloned())),
            _ => Err(ImageError::Ambiguous { path, have: have() }),
        };
    };
    let reference = wanted.parse::<Reference>().ok();
    let is_wanted = |name: &&String| {
        *name == wanted || (reference.is_some() && name.parse::<Reference>().ok() == reference)
    };
    let found = listed
        .iter()
        .find_map(|image| Some((image, image.names().find(is_wanted)?)));
    match found {
        Some((image, name)) => Ok((image, Some(name.clone()))),
        None => Err(ImageError::NoSuchImage {
            path,
            wanted: wanted.to_owned(),
            have: have(),
        }),
    }
}

fn image(contents: &Contents, chosen: &Listed, name: Option<String>) -> Result<Image, ImageError> {
    let bytes = contents.read(&chosen.config, "configuration", CONFIG_MAX)?;
    let id = digest_of(&bytes);
    check_config_name(&chosen.config, id)?;
    let config = ImageConfig::decode(&bytes)?;
    config.expect_layers(chosen.layers.len())?;
    let layer = |(name, diff_id): (&String, &Digest)| {
        let missing = || ImageError::Missing {
            path: contents.file.to_path_buf(),
            name: name.chars().take(120).collect(),
        };
        Ok(LayerBlob {
            diff_id: *diff_id,
            media_type: String::new(),
            digest: None, // unpacking verifies the diff ID
            place: contents.find(name)?.ok_or_else(missing)?,
        })
    };
    let layers = chosen.layers.iter().zip(&config.diff_ids).map(layer);
    Ok(Image {
        name,
        manifest: None,
        id,
        layers: layers.collect::<Result<_, ImageError>>()?,
        config,
        config_bytes: bytes,
    })
}

/// Docker names a configuration after its digest; where it does, the name is a promise.
fn check_config_name(name: &str, found: Digest) -> Result<(), ImageError> {
    let stem = name.strip_suffix(".json").unwrap_or(name);
    let stem = stem.rsplit('/').next().unwrap_or(stem);
    match format!("sha256:{stem}").parse::<Digest>() {
        Ok(expected) if expected != found => Err(ImageError::Blob {
            digest: expected,
            source: BlobError::Digest { expected, found },
        }),
        _ => Ok(()),
    }
}

/// Where everything lies in a tar.
struct Contents {
    file: Arc<Path>,
    entries: HashMap<String, Entry>,
}

enum Entry {
    File {
        offset: u64,
        len: u64,
    },
    /// Another name, from the top of the tar.
    Link(String),
}

impl Contents {
    /// Reads the headers, and skips what is between them.
    fn read(file: &Path) -> Result<Self, ImageError> {
        let failed = |error| ImageError::io(file, error);
        let opened = File::open(file).map_err(failed)?;
        if is_compressed(&opened).map_err(failed)? {
            let path = file.to_owned();
            return Err(ImageError::Compressed { path });
        }
        let len = opened.metadata().map_err(failed)?.len();
        let mut tar = tar::Archive::new(opened);
        let mut entries = HashMap::new();
        for entry in tar.entries_with_seek().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entries.len() == ENTRIES_MAX {
                return Err(ImageError::Rule {
                    what: "archive",
                    rule: "it has more than 100 000 files",
                });
            }
            if let Some((name, found)) = entry_of(&entry).map_err(failed)? {
                if let Entry::File { offset, len: part } = found
                    && offset.checked_add(part).is_none_or(|end| end > len)
                {
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                entries.insert(name, found);
            }
        }
        let file = file.into();
        Ok(Self { file, entries })
    }
}

fn is_compressed(mut file: &File) -> io::Result<bool> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start.starts_with(&[0x1f, 0x8b]) || start == [0x28, 0xb5, 0x2f, 0xfd])
}

/// Returns the name of an entry from the top of the tar, and what it is; `None` for what an image
/// has no use for.
fn entry_of(entry: &tar::Entry<'_, File>) -> io::Result<Option<(String, Entry)>> {
    let Some(name) = from_top(Path::new(""), &entry.path()?) else {
        return Ok(None);
    };
    let kind = entry.header().entry_type();
    let found = if kind.is_file() {
        Some(Entry::File {
            offset: entry.raw_file_position(),
            len: entry.size(),
        })
    } else if kind.is_symlink() || kind.is_hard_link() {
        let base = match Path::new(&name).parent() {
            Some(parent) if kind.is_symlink() => parent.to_owned(),
            _ => PathBuf::new(),
        };
        let target = entry.link_name()?;
        let target = target.and_then(|target| from_top(&base, &target));
        target.map(Entry::Link)
    } else {
        None
    };
    Ok(found.map(|found| (name, found)))
}

/// Resolves `path`, seen from `base`, by its text alone; `None` if it leads out of the tar.
fn from_top(base: &Path, path: &Path) -> Option<String> {
    use std::path::Component;
    let mut parts: Vec<&str> = Vec::new();
    for part in base.components().chain(path.components()) {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

impl Files for Contents {
    fn path(&self) -> &Path {
        &self.file
    }

    fn find(&self, name: &str) -> Result<Option<FileRange>, ImageError> {
        let Some(mut name) = from_top(Path::new(""), Path::new(name)) else {
            return Ok(None);
        };
        for _ in 0..=LINKS_MAX {
            match self.entries.get(&name) {
                Some(&Entry::File { offset, len }) => {
                    let path = self.file.clone();
                    return Ok(Some(FileRange { path, offset, len }));
                }
                Some(Entry::Link(target)) => name.clone_from(target),
                None => return Ok(None),
            }
        }
        Err(ImageError::Rule {
            what: "archive",
            rule: "more than four links lead to a file",
        })
    }
}
