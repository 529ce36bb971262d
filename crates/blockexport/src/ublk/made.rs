//! A device of the kernel, which its owner makes, or takes over when its server has died.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blocks::DeviceInfo;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use rawio::ublk::{Control, DeviceState, MadeDevice, NewDevice, Shape};

use super::{UblkConfig, shape};
use crate::error::ExportError;

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

/// A device of the kernel, as the owner of its place has it. Who serves it may be another process.
#[derive(Debug)]
pub struct KernelDevice {
    made: MadeDevice,
    origin: Origin,
}

/// How a device came to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It was made new, and nobody can use it before it is started.
    New,
    /// A server has left it who died: its users wait.
    Left,
}

/// What the server of a device works with: all that it gets of its owner.
#[derive(Debug)]
pub struct Channel {
    /// The character device, where requests come from.
    pub file: File,
    /// The number of the device.
    pub id: u32,
    /// Its queues.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
}

impl KernelDevice {
    /// Returns the device of a place that this process [owns](crate::Place::link), to be served: the one that a server
    /// left who died, or else a new one.
    ///
    /// # Errors
    /// If what was left is not what is to be served, or the kernel refuses.
    pub fn prepare(
        path: &Path,
        info: &DeviceInfo,
        config: &UblkConfig,
    ) -> Result<Self, ExportError> {
        let shape = shape(info)?;
        let mark = Mark::of(path, &config.identity);
        let mut control = Control::open().map_err(ExportError::Ublk)?;
        let Some(left) = left(&mut control, mark).map_err(ExportError::Ublk)? else {
            return Self::make(&mut control, mark, shape, config).map_err(ExportError::Ublk);
        };
        // Without the link nobody wants it, or nobody has got it yet.
        if fs::symlink_metadata(path).is_ok() {
            check_left(&mut control, &left, (path, mark), shape)?;
            take_over(&mut control, left.id).map_err(|error| refused(error, path))?;
            return Ok(Self {
                made: left,
                origin: Origin::Left,
            });
        }
        log::info!(
            "the ublk device {} has no place any more, and is removed",
            left.id
        );
        remove(&mut control, left.id);
        Self::make(&mut control, mark, shape, config).map_err(ExportError::Ublk)
    }

    fn make(
        control: &mut Control,
        mark: Mark,
        shape: Shape,
        config: &UblkConfig,
    ) -> io::Result<Self> {
        let made = control.add(NewDevice {
            queues: config.queues,
            depth: config.depth,
            request_max_bytes: shape.request_max_bytes,
            mark: mark.number(),
        })?;
        if let Err(error) = control.set_shape(made.id, shape) {
            remove(control, made.id);
            return Err(error);
        }
        Ok(Self {
            made,
            origin: Origin::New,
        })
    }

    /// Returns the device that there is at a place, whoever serves it; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn find(path: &Path) -> Result<Option<Self>, ExportError> {
        let mut control = match Control::open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(ExportError::Ublk)?,
        };
        let found = left(&mut control, Mark::of(path, ""));
        let found = found.map_err(ExportError::Ublk)?;
        Ok(found.map(|made| Self {
            made,
            origin: Origin::Left,
        }))
    }

    /// Returns whether it was started, and its server has not died, as far as the kernel knew when it was looked for.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.made.state == DeviceState::Live
    }

    /// Returns whether something is mounted of it, or has it for itself in another way.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let mut alone = File::options();
        let alone = alone.read(true).custom_flags(OFlag::O_EXCL.bits());
        let opened = alone.open(block_device(self.made.id));
        opened.is_err_and(|error| error.raw_os_error() == Some(Errno::EBUSY as i32))
    }

    /// Opens what its server needs, which is given to nobody else.
    ///
    /// # Errors
    /// If it is open already, or the kernel refuses.
    pub fn channel(&self) -> Result<Channel, ExportError> {
        let MadeDevice {
            id, queues, depth, ..
        } = self.made;
        let mut options = File::options();
        let opened = options
            .read(true)
            .write(true)
            .open(format!("{DEVICES}/ublkc{id}"));
        Ok(Channel {
            file: opened.map_err(ExportError::Ublk)?,
            id,
            queues,
            depth,
        })
    }

    /// Has the server that [has opened its queues](super::serve), the process with this number, answer users from now on.
    ///
    /// # Errors
    /// If the kernel refuses, or the server died meanwhile.
    pub fn start(&self, path: &Path, server: u32) -> Result<(), ExportError> {
        let started = || {
            let (mut control, id) = (Control::open()?, self.made.id);
            if self.origin == Origin::New {
                control.start(id, server, START_PATIENCE)?;
                return link(id, path);
            }
            control.end_recovery(id, server, START_PATIENCE)?;
            // The image may have been served elsewhere meanwhile.
            rawio::device_cache::flush_and_drop(File::open(block_device(id))?)
        };
        started().map_err(ExportError::Ublk)
    }

    /// Removes it if it is new: it could not be started. One that was left stays, for the next server.
    pub fn give_up(&self) {
        if self.origin == Origin::New {
            match Control::open() {
                Ok(mut control) => remove(&mut control, self.made.id),
                Err(error) => log::error!("a ublk device cannot be removed: {error}"),
            }
        }
    }

    /// Ends it for its users, and removes the link: what is in flight is answered by its server, and what they request
    /// then fails.
    ///
    /// # Errors
    /// If the kernel refuses, or it takes too long. Its server serves on then.
    pub fn stop(&self, path: &Path) -> Result<(), ExportError> {
        if let Err(error) = fs::remove_file(path) {
            log::warn!("cannot remove {}: {error}", path.display());
        }
        let stopped = Control::open().and_then(|mut all| all.stop(self.made.id, STOP_PATIENCE));
        stopped.map_err(ExportError::Ublk)
    }

    /// Removes it, as soon as its last user has closed it. It was [stopped](Self::stop), and its server has ended.
    pub fn delete(self) {
        let id = self.made.id;
        if let Err(error) = Control::open().and_then(|mut control| control.delete(id)) {
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

/// Checks that what was left is what is to be served: its users have content of it in their caches. An image that has
/// grown is served with the size that it had.
fn check_left(
    control: &mut Control,
    left: &MadeDevice,
    (path, mark): (&Path, Mark),
    shape: Shape,
) -> Result<(), ExportError> {
    let had = control.shape(left.id).map_err(ExportError::Ublk)?;
    let what = if left.mark != mark.number() {
        "is of another image".to_owned()
    } else if had.size > shape.size {
        format!(
            "has {} bytes, and the image has {} now",
            had.size, shape.size
        )
    } else if had
        != (Shape {
            size: had.size,
            ..shape
        })
    {
        "can do other things than the image now".to_owned()
    } else {
        return Ok(());
    };
    Err(ExportError::Left {
        path: path.to_owned(),
        what,
    })
}

/// Begins to serve the device of a server that died.
fn take_over(control: &mut Control, id: u32) -> io::Result<()> {
    let deadline = Instant::now() + DEATH_PATIENCE;
    while let Err(error) = control.start_recovery(id) {
        let is = |errno| error.raw_os_error() == Some(errno as i32);
        // A server began, and died before it had opened a queue.
        if is(Errno::EINVAL) && control.info(id)?.state == DeviceState::Quiesced {
            return Ok(());
        }
        if !is(Errno::EBUSY) || Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(DEATH_PAUSE);
    }
    Ok(())
}

fn refused(error: io::Error, path: &Path) -> ExportError {
    match error.raw_os_error() == Some(Errno::EBUSY as i32) {
        true => ExportError::InUse(path.to_owned()),
        false => ExportError::Ublk(error),
    }
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
