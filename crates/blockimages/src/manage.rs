//! Creating images, and operations on writable layers that are not being served.

mod new_image;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use lsmt::UpperKind;
use lsmt::{
    BlobOptions, Collected, DirFolder, FileStorage, LayerInfo, LiveImage, NewUpper, Pace, Trace,
    Upper, UpperFiles, UpperUsage, Uuid,
};
pub use new_image::{NewImage, Top};
use nix::fcntl::Flock;
use serde::Serialize;

pub use crate::config::LayerStatus;
use crate::convert::write_file;
use crate::error::file;
use crate::image::open_lowers;
use crate::upper::{OwnedUpper, journal_of, open_pair, upper_error};
use crate::{BlobSource, CONFIG_NAME, DeviceConfig, ImageError, LowerConfig, UpperConfig};

/// The directory of a live image within that of the image.
const LIVE_DIR: &str = "upper";

/// Returns the layers of the image at `path`, with names that do not depend on where they are read from.
///
/// # Errors
/// If its configuration cannot be read, or it has a writable layer.
pub fn lowers_of(path: &Path) -> Result<DeviceConfig, ImageError> {
    let (mut config, path) = DeviceConfig::read(path)?;
    if config.writable().is_some() {
        let rule =
            "its writable layer would be shared: commit it, and use a copy of the sealed layers";
        return Err(ImageError::Rule { path, rule });
    }
    let base = path.parent().unwrap_or(Path::new("."));
    let base = base.canonicalize().map_err(file("finding", base))?;
    for lower in &mut config.lowers {
        for name in [
            &mut lower.file,
            &mut lower.dir,
            &mut lower.target_file,
            &mut lower.gzip_index,
        ] {
            if !name.is_empty() {
                *name = base.join(&*name).display().to_string();
            }
        }
    }
    config.upper = None;
    Ok(config)
}

/// Creates an image in `dir` of these layers; returns the path of its configuration.
///
/// # Errors
/// If there is an image already, if the layers cannot be opened and no size is given, or if a file cannot be
/// created.
pub fn create(
    dir: &Path,
    mut config: DeviceConfig,
    image: NewImage,
) -> Result<PathBuf, ImageError> {
    let NewImage { top, size, limit } = image;
    let path = dir.join(CONFIG_NAME);
    let refuse = |rule| {
        let path = path.clone();
        Err(ImageError::Create { path, rule })
    };
    if path.exists() {
        return refuse("there is an image already");
    }
    if limit.is_some() && !matches!(top, Top::Pair(_)) {
        return refuse(
            "only overlaybd's writable layers can have a limit: append, sparse or hybrid",
        );
    }
    fs::create_dir_all(dir).map_err(file("making", dir))?;
    rawio::trusted::expect_own(dir).map_err(file("writing to", dir))?;
    let virtual_size = match (top, size) {
        (Top::Sealed, _) => 0,
        (_, Some(size)) => size,
        (_, None) if config.lowers.is_empty() => return refuse("it needs a size (`size`)"),
        (_, None) => match open_lowers(&config, &path, None) {
            Ok(stack) => stack.virtual_size(),
            Err(ImageError::Remote { .. }) => {
                return refuse(
                    "its layers are elsewhere, and cannot tell their size: give one (`size`)",
                );
            }
            Err(error) => return Err(error),
        },
    };
    let new = |kind| -> Result<NewUpper, ImageError> {
        Ok(NewUpper {
            kind,
            virtual_size,
            uuid: new_uuid()?,
            parent: Uuid::NIL,
        })
    };
    config.upper = match top {
        Top::Sealed if config.lowers.is_empty() => return refuse("it would have no layer"),
        Top::Sealed => None,
        Top::Pair(kind) => Some(UpperConfig {
            limit: limit.unwrap_or(0),
            ..create_pair(dir, 0, &new(kind)?)?
        }),
        Top::Live => {
            let live = dir.join(LIVE_DIR);
            fs::create_dir_all(&live).map_err(file("making", &live))?;
            let folder = Arc::new(DirFolder::new(&live));
            // It is opened over its layers when it is used.
            let made = LiveImage::create(folder, Vec::new(), &new(UpperKind::Append)?);
            made.map_err(upper_error("making", &live))?;
            Some(UpperConfig {
                dir: LIVE_DIR.to_owned(),
                ..UpperConfig::default()
            })
        }
    };
    write_config(&path, &config)?;
    Ok(path)
}

fn write_config(path: &Path, config: &DeviceConfig) -> Result<(), ImageError> {
    let text = serde_json::to_vec_pretty(config).map_err(|source| ImageError::Config {
        path: path.into(),
        source,
    })?;
    write_file(path, &text)
}

fn layer_name(number: usize) -> String {
    format!("layer.{number}.obd")
}

/// Returns the names of a writable pair: index and data.
fn pair_names(number: usize) -> [String; 2] {
    ["index", "data"].map(|part| format!("upper.{number}.{part}"))
}

/// Returns a number whose files are none of an image's own: other tools may name theirs the same way, and what
/// has the name of a new file is replaced.
fn free_number(config: &DeviceConfig, upper: &UpperConfig) -> usize {
    let name_of = |file: &str| Path::new(file).file_name().map(ToOwned::to_owned);
    let lowers = config.lowers.iter().map(|lower| lower.file.as_str());
    let used: Vec<_> = lowers
        .chain([upper.index.as_str(), upper.data.as_str()])
        .filter_map(name_of)
        .collect();
    let is_free = |number: &usize| {
        let [index, data] = pair_names(*number);
        let names = [layer_name(*number), index, data];
        !used
            .iter()
            .any(|used| names.iter().any(|name| used == name.as_str()))
    };
    // One more than there are names in use is free at the latest.
    let first = config.lowers.len() + 1;
    (first..=first + used.len()).find(is_free).unwrap_or(first)
}

/// Makes a pair of files; what a commit that was cut left of the same number is replaced.
fn create_pair(dir: &Path, number: usize, new: &NewUpper) -> Result<UpperConfig, ImageError> {
    let create = |name: &str| -> Result<Arc<FileStorage>, ImageError> {
        let path = dir.join(name);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let opened = options.open(&path).map_err(file("making", path))?;
        Ok(Arc::new(FileStorage::new(opened)))
    };
    let [index, data] = pair_names(number);
    let config = UpperConfig {
        index,
        data,
        ..UpperConfig::default()
    };
    let data = dir.join(&config.data);
    let files = UpperFiles {
        data: create(&config.data)?,
        index: create(&config.index)?,
        journal: None,
    };
    let upper = Upper::create(files, new).and_then(|upper| upper.flush());
    upper.map_err(upper_error("making", data))?;
    Ok(config)
}

fn new_uuid() -> Result<Uuid, ImageError> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let text = fs::read_to_string(path).map_err(file("reading", path))?;
    Uuid::parse(text.trim()).map_err(upper_error("naming", path))
}

/// A layer that was sealed.
#[derive(Clone, Debug, Serialize)]
pub struct Committed {
    /// Its file.
    pub file: PathBuf,
    /// The digest of its bytes.
    pub digest: blocks::Digest,
    /// How many there are.
    pub size: u64,
}

/// Writes the content of the writable layer as sealed layers, and continues with an empty one on top of them. This is
/// atomic: an interrupted commit can be repeated.
///
/// # Errors
/// If the image has no writable layer or is in use, if its layers cannot be opened, or if a file cannot be
/// written.
pub fn commit(
    path: &Path,
    remote: Option<&dyn BlobSource>,
    options: BlobOptions,
    message: &[u8],
) -> Result<Vec<Committed>, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let base = path.parent().unwrap_or(Path::new(".")).to_owned();
    let Some(upper) = config.writable().cloned() else {
        return no_upper(path);
    };
    if !upper.dir.is_empty() {
        let (live, _lock) = open_live(&config, &path, remote)?;
        let dir = base.join(&upper.dir);
        let pace = Pace::unlimited();
        let names = live.stack_and_commit(new_uuid()?, message, options, &pace);
        let names = names.map_err(upper_error("committing", &dir))?;
        return names.iter().map(|name| committed(dir.join(name))).collect();
    }
    let (open, _lock) = open_pair(&upper, &base)?;
    Ok(vec![commit_pair(
        &path, config, &upper, &open, options, message,
    )?])
}

/// Writes the content of the writable layer to a sealed one at `to`, which is there as a whole and durable afterwards. The
/// image stays as it is.
///
/// # Errors
/// If the image has no writable layer of overlaybd's or is in use, or a file cannot be written.
pub fn seal(
    path: &Path,
    to: &Path,
    options: BlobOptions,
    message: &[u8],
) -> Result<Committed, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let base = path.parent().unwrap_or(Path::new(".")).to_owned();
    let Some(upper) = config.writable() else {
        return no_upper(path);
    };
    if !upper.dir.is_empty() {
        let rule = "its writable layer is that of a live image: commit it instead";
        return Err(ImageError::Rule { path, rule });
    }
    let (open, _lock) = open_pair(upper, &base)?;
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    write_sealed(&open, &part, options, message)?;
    fs::rename(&part, to).map_err(file("making", to))?;
    let dir = to.parent().unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(file("syncing", dir))?;
    committed(to.to_owned())
}

/// Writes a writable layer to a sealed one, which is durable afterwards.
fn write_sealed(
    open: &Upper,
    blob: &Path,
    options: BlobOptions,
    message: &[u8],
) -> Result<LayerInfo, ImageError> {
    let mut files = File::options();
    let files = files.read(true).write(true).create(true).truncate(true);
    let storage = FileStorage::new(files.open(blob).map_err(file("making", blob))?);
    let info = LayerInfo {
        // As overlaybd's own commit: the same content makes the same blob.
        uuid: Uuid::NIL,
        message: message.to_vec(),
        virtual_size: open.virtual_size(),
        ..open.info()
    };
    open.commit(&storage, options, &info)
        .map_err(upper_error("committing", blob))?;
    lsmt::Storage::sync(&storage).map_err(file("syncing", blob))?;
    Ok(info)
}

fn commit_pair(
    path: &Path,
    mut config: DeviceConfig,
    upper: &UpperConfig,
    open: &Upper,
    options: BlobOptions,
    message: &[u8],
) -> Result<Committed, ImageError> {
    let base = path.parent().unwrap_or(Path::new(".")).to_owned();
    let number = free_number(&config, upper);
    let name = layer_name(number);
    let blob = base.join(&name);
    let info = write_sealed(open, &blob, options, message)?;
    let done = committed(blob)?;
    let new = NewUpper {
        kind: open.kind(),
        virtual_size: open.virtual_size(),
        uuid: new_uuid()?,
        parent: info.uuid,
    };
    config.upper = Some(UpperConfig {
        limit: upper.limit,
        ..create_pair(&base, number, &new)?
    });
    config.lowers.push(LowerConfig {
        file: name,
        digest: done.digest.to_string(),
        size: done.size,
        ..LowerConfig::default()
    });
    write_config(path, &config)?;
    let data = base.join(&upper.data);
    for old in [journal_of(&data), data, base.join(&upper.index)] {
        if let Err(error) = fs::remove_file(&old) {
            log::debug!("cannot remove {}: {error}", old.display());
        }
    }
    Ok(done)
}

/// What an image has on top of the image that it was made of, to be pushed.
#[derive(Clone, Debug)]
pub struct CommittedLayers {
    /// What its configuration says.
    pub config: DeviceConfig,
    /// All of its sealed layers, the lowest first: the digest of the blob with its data as far as it is known, and its
    /// file if it is on this machine.
    pub layers: Vec<(Option<blocks::Digest>, Option<PathBuf>)>,
    /// Whether something was written that is in none of them.
    pub uncommitted: bool,
}

/// Looks for the sealed layers of an image, which may be in use.
///
/// # Errors
/// If its configuration cannot be read, or a layer of a live image was sealed and not committed.
pub fn committed_layers(path: &Path) -> Result<CommittedLayers, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let base = path.parent().unwrap_or(Path::new("."));
    let lowers = config.digests().into_iter().zip(&config.lowers);
    let lowers = lowers.map(|(digest, lower)| (digest, lower.local(base)));
    let mut layers: Vec<_> = lowers.collect();
    let mut uncommitted = false;
    match config.writable() {
        Some(upper) if !upper.dir.is_empty() => {
            let dir = base.join(&upper.dir);
            let blobs = LiveImage::blobs_in(&DirFolder::new(&dir));
            let blobs = blobs.map_err(upper_error("looking for the layers of", &dir))?;
            layers.extend(blobs.iter().map(|name| (None, Some(dir.join(name)))));
        }
        Some(upper) => {
            // One that is in use has more to come.
            let open = open_pair(upper, base);
            uncommitted = open.is_ok_and(|(open, _lock)| open.usage().live_bytes > 0);
        }
        None => {}
    }
    Ok(CommittedLayers {
        config,
        layers,
        uncommitted,
    })
}

fn committed(path: PathBuf) -> Result<Committed, ImageError> {
    let opened = File::open(&path).map_err(file("opening", &path))?;
    let (digest, size) = oci::digest_and_len(opened).map_err(file("reading", &path))?;
    Ok(Committed {
        file: path,
        digest,
        size,
    })
}

fn no_upper<T>(path: PathBuf) -> Result<T, ImageError> {
    let rule = "it has no writable layer";
    Err(ImageError::Rule { path, rule })
}

fn open_live(
    config: &DeviceConfig,
    path: &Path,
    remote: Option<&dyn BlobSource>,
) -> Result<(Arc<LiveImage>, Flock<File>), ImageError> {
    let base = path.parent().unwrap_or(Path::new("."));
    let layers = crate::image::lower_layers(config, path, remote)?;
    let upper = config.upper.clone().unwrap_or_default();
    let opened = OwnedUpper::open(&upper, base, layers)?.into_live();
    opened.ok_or_else(|| ImageError::Rule {
        path: path.into(),
        rule: "only the upper of an image that was created as a live one can do this: commit instead",
    })
}

/// Frees the space of data that was overwritten or trimmed in a live image.
///
/// # Errors
/// As [`commit`]; if the image is not a live one.
pub fn collect(path: &Path, remote: Option<&dyn BlobSource>) -> Result<Collected, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let (live, _lock) = open_live(&config, &path, remote)?;
    let collected = live.collect(&Pace::unlimited());
    collected.map_err(upper_error("collecting garbage of", path))
}

/// Seals the writable layer of a live image in place, and continues with an empty one: a snapshot.
///
/// # Errors
/// As [`collect`].
pub fn restack(path: &Path, remote: Option<&dyn BlobSource>) -> Result<(), ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let (live, _lock) = open_live(&config, &path, remote)?;
    let done = live.restack(new_uuid()?);
    done.map_err(upper_error("restacking", path))
}

/// What an image consists of.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its configuration.
    pub config: PathBuf,
    /// Bytes of the device; not known if a layer is elsewhere, or the image is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Its sealed layers, the lowest first.
    pub layers: Vec<LayerStatus>,
    /// Whether a process serves its writable layer.
    pub in_use: bool,
    /// Its writable layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upper: Option<UpperStatus>,
}

/// A writable layer.
#[derive(Clone, Debug, Serialize)]
pub struct UpperStatus {
    /// Sealed layers of a live image above those of the configuration.
    pub own_layers: usize,
    /// Bytes of its data, with garbage.
    pub data_bytes: u64,
    /// Bytes of it that are in use.
    pub live_bytes: u64,
}

/// Looks at an image.
///
/// # Errors
/// If its configuration cannot be read, or a layer that is here cannot be opened.
pub fn status(path: &Path) -> Result<Status, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let base = path.parent().unwrap_or(Path::new("."));
    let layers = config
        .lowers
        .iter()
        .map(|lower| lower.status(base))
        .collect();
    let mut status = Status {
        size: None,
        layers,
        in_use: false,
        upper: None,
        config: path.clone(),
    };
    let opened = match config.writable() {
        None => open_lowers(&config, &path, None).map(|stack| (stack.virtual_size(), None)),
        Some(upper) => crate::image::lower_layers(&config, &path, None)
            .and_then(|layers| OwnedUpper::open(upper, base, layers))
            .map(|upper| (upper.image().virtual_size(), Some(upper.usage()))),
    };
    match opened {
        Ok((size, usage)) => {
            status.size = Some(size);
            status.upper = usage.map(|(own_layers, usage)| UpperStatus::of(own_layers, usage));
        }
        Err(ImageError::Remote { .. }) => {}
        Err(ImageError::UpperInUse(_)) => status.in_use = true,
        Err(error) => return Err(error),
    }
    Ok(status)
}

impl UpperStatus {
    const fn of(own_layers: usize, usage: UpperUsage) -> Self {
        Self {
            own_layers,
            data_bytes: usage.data_bytes,
            live_bytes: usage.live_bytes,
        }
    }
}

/// The longest trace that is read: as many records as are taken, and their header.
const TRACE_BYTES_MAX: u64 = 24 * (lsmt::TRACE_RECORDS_MAX + 1);

/// Reads a trace of a start.
///
/// # Errors
/// If it cannot be read, or is not a trace.
pub fn read_trace(path: &Path) -> Result<Trace, ImageError> {
    use std::io::Read as _;
    let opened = File::open(path).map_err(file("opening", path))?;
    let mut bytes = Vec::new();
    let read = opened.take(TRACE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(file("reading", path))?;
    Trace::decode(&bytes).map_err(|source| ImageError::Trace {
        path: path.into(),
        source,
    })
}

/// Writes a trace atomically.
///
/// # Errors
/// If the file cannot be written.
pub fn write_trace(path: &Path, trace: &Trace) -> Result<(), ImageError> {
    write_file(path, &trace.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_has_is_not_replaced_by_a_new_layer() {
        let lower = |file: &str| LowerConfig {
            file: file.to_owned(),
            ..LowerConfig::default()
        };
        let upper = |number| {
            let [index, data] = pair_names(number);
            UpperConfig {
                index,
                data,
                ..UpperConfig::default()
            }
        };
        let config = |files: &[&str]| DeviceConfig {
            lowers: files.iter().map(|file| lower(file)).collect(),
            ..DeviceConfig::default()
        };
        assert_eq!(free_number(&config(&[]), &upper(0)), 1);
        assert_eq!(free_number(&config(&["layer.1.obd"]), &upper(1)), 2);
        // The layers below were put together by somebody else.
        let named = config(&["/elsewhere/a.obd", "./layer.3.obd"]);
        assert_eq!(free_number(&named, &upper(0)), 4);
        assert_eq!(free_number(&named, &upper(4)), 5);
    }
}
