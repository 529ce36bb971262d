//! A device of the kernel: made new, or left by a server that died.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rawio::ublk::{Control, MadeDevice, NewDevice, Shape};

use super::UblkConfig;
use super::queues::Queues;
use super::request::Served;
use crate::error::ExportError;
use crate::place::Place;

/// Where the kernel shows devices.
const DEVICES: &str = "/dev";

/// How long a server that died may take to be gone altogether.
const DEATH_PATIENCE: Duration = Duration::from_secs(20);
/// The pause before the kernel is asked again whether it is: it does not tell by itself.
const DEATH_PAUSE: Duration = Duration::from_millis(5);

/// How long a start may take; nothing is read then.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a device may take: what users have written is requested, and answered.
const STOP_PATIENCE: Duration = Duration::from_secs(120);

/// What tells a device from others: which place it has, and what is served there. The kernel keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    place: u32,
    identity: u32,
}

impl Mark {
    pub(super) fn of(place: &Path, identity: &str) -> Self {
        let place = std::path::absolute(place).unwrap_or_else(|_| place.to_owned());
        Self {
            // 0 is what other servers give.
            place: hash(place.as_os_str().as_encoded_bytes()) | 1,
            identity: hash(identity.as_bytes()),
        }
    }

    const fn number(self) -> u64 {
        (self.place as u64) << 32 | self.identity as u64
    }

    /// Whether a device has the same place.
    const fn has_place(self, device: &MadeDevice) -> bool {
        device.mark >> 32 == self.place as u64
    }
}

/// FNV-1a, 64 bits of it folded to 32: the same in all versions.
fn hash(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
    u32::from_le_bytes([a ^ e, b ^ f, c ^ g, d ^ h])
}

/// A device that this process serves.
pub(super) struct Made {
    control: Control,
    id: u32,
    queues: Queues,
}

impl Made {
    /// Serves the device of a place: the one that a server left who died, or else a new one.
    ///
    /// # Errors
    /// If what was left is not what is to be served, or the kernel refuses.
    pub(super) fn serve(
        mut control: Control,
        place: &Place,
        mark: Mark,
        shape: Shape,
        config: &UblkConfig,
        served: &Arc<Served>,
    ) -> Result<Self, ExportError> {
        let path = place.path();
        let left = left(&mut control, mark).map_err(ExportError::Ublk)?;
        if let Some(left) = left {
            // Without the link nobody wants it, or nobody has got it yet.
            if fs::symlink_metadata(path).is_ok() {
                check_left(&mut control, &left, (path, mark), shape)?;
                let recovered = recover(control, left, served, config);
                return recovered.map_err(|error| refused(error, path));
            }
            log::info!(
                "the ublk device {} has no place any more, and is removed",
                left.id
            );
            remove(&mut control, left.id);
        }
        start(control, path, mark, shape, config, served).map_err(ExportError::Ublk)
    }

    /// Ends the device: what is in flight is answered.
    pub(super) fn remove(mut self, place: &Place) {
        let id = self.id;
        if let Err(error) = fs::remove_file(place.path()) {
            log::warn!("cannot remove {}: {error}", place.path().display());
        }
        if let Err(error) = self.control.stop(id, STOP_PATIENCE) {
            // Its threads serve on until the process ends.
            log::error!("the ublk device {id} cannot be ended: {error}");
            return;
        }
        self.queues.join();
        if let Err(error) = self.control.delete(id) {
            log::error!("the ublk device {id} cannot be removed: {error}");
        }
    }
}

/// Returns the device that was left at a place.
fn left(control: &mut Control, mark: Mark) -> io::Result<Option<MadeDevice>> {
    for entry in fs::read_dir(DEVICES)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        match control.info(number) {
            Ok(device) if mark.has_place(&device) => return Ok(Some(device)),
            // It may have gone meanwhile.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Checks that what was left is what is to be served: its users have content of it in their caches.
fn check_left(
    control: &mut Control,
    left: &MadeDevice,
    (path, mark): (&Path, Mark),
    shape: Shape,
) -> Result<(), ExportError> {
    let had = control.shape(left.id).map_err(ExportError::Ublk)?;
    let what = if left.mark != mark.number() {
        "is of another image".to_owned()
    } else if had.size != shape.size {
        format!(
            "has {} bytes, and the image has {} now",
            had.size, shape.size
        )
    } else if had != shape {
        "can do other things than the image now".to_owned()
    } else {
        return Ok(());
    };
    Err(ExportError::Left {
        path: path.to_owned(),
        what,
    })
}

/// Makes a device.
fn start(
    mut control: Control,
    path: &Path,
    mark: Mark,
    shape: Shape,
    config: &UblkConfig,
    served: &Arc<Served>,
) -> io::Result<Made> {
    let made = control.add(NewDevice {
        queues: config.queues,
        depth: config.depth,
        request_max_bytes: shape.request_max_bytes,
        mark: mark.number(),
    })?;
    let id = made.id;
    let started = control.set_shape(id, shape).and_then(|()| {
        let queues = Queues::start(&open(id)?, made, served, config.threads)?;
        control.start(id, START_PATIENCE)?;
        link(id, path)?;
        Ok(queues)
    });
    match started {
        Ok(queues) => Ok(Made {
            control,
            id,
            queues,
        }),
        Err(error) => {
            remove(&mut control, id);
            Err(error)
        }
    }
}

/// Serves the device of a server that died.
fn recover(
    mut control: Control,
    left: MadeDevice,
    served: &Arc<Served>,
    config: &UblkConfig,
) -> io::Result<Made> {
    let id = left.id;
    let deadline = Instant::now() + DEATH_PATIENCE;
    while let Err(error) = control.start_recovery(id) {
        let busy = error.raw_os_error() == Some(Errno::EBUSY as i32);
        if !busy || Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(DEATH_PAUSE);
    }
    let queues = Queues::start(&open(id)?, left, served, config.threads)?;
    control.end_recovery(id, START_PATIENCE)?;
    // The image may have been served elsewhere meanwhile.
    let device = File::open(block_device(id))?;
    rawio::device_cache::flush_and_drop(&device)?;
    Ok(Made {
        control,
        id,
        queues,
    })
}

fn refused(error: io::Error, path: &Path) -> ExportError {
    match error.raw_os_error() == Some(Errno::EBUSY as i32) {
        true => ExportError::InUse(path.to_owned()),
        false => ExportError::Ublk(error),
    }
}

fn open(id: u32) -> io::Result<Arc<File>> {
    let path = format!("{DEVICES}/ublkc{id}");
    let opened = File::options().read(true).write(true).open(path);
    opened.map(Arc::new)
}

fn block_device(id: u32) -> PathBuf {
    PathBuf::from(format!("{DEVICES}/ublkb{id}"))
}

/// Makes the link of a device, in place of an older one.
fn link(id: u32, path: &Path) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    std::os::unix::fs::symlink(block_device(id), &fresh)?;
    fs::rename(&fresh, path)
}

/// Removes a device that is not served.
fn remove(control: &mut Control, id: u32) {
    let removed = control.stop(id, STOP_PATIENCE);
    if let Err(error) = removed.and_then(|()| control.delete(id)) {
        log::error!("the ublk device {id} cannot be removed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_places_and_images_apart() {
        let here = Mark::of(Path::new("/run/a"), "image");
        assert_eq!(here, Mark::of(Path::new("/run/a"), "image"));
        // What another version has marked is found by this one.
        assert_eq!(here.number(), 0x8da1_89f3_af9e_5a12);
        let there = Mark::of(Path::new("/run/b"), "image");
        let other = Mark::of(Path::new("/run/a"), "other");
        assert_ne!(here.place, there.place);
        assert_eq!(here.place, other.place);
        assert_ne!(here.identity, other.identity);
    }
}
