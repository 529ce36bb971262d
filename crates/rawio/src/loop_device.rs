//! Loop devices: block devices whose content is a file.

#![expect(unsafe_code, reason = "neither libc nor nix has LOOP_CONFIGURE")]

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What hands out numbers of devices that nobody uses.
const CONTROL: &str = "/dev/loop-control";
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
/// Has an entry for each block device.
const DEVICES: &str = "/sys/block";
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Bytes of a name, with the zero that ends it.
const NAME_BYTES: usize = 64;
/// Somebody else may take the device that was free: how often another one is asked for.
const ATTEMPTS: u32 = 64;

/// The kernel's `struct loop_config`, with its `struct loop_info64`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// The kernel's `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    fn is_of(&self, file: &Metadata) -> bool {
        (self.device, self.inode) == (file.dev(), file.ino())
    }
}

impl Default for Info {
    fn default() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; NAME_BYTES],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// A loop device. It is free again when this and all that is mounted of it is gone.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    device: File,
}

/// What a loop device is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use<'a> {
    Reading,
    Writing,
    /// Writing, by somebody who opens it later; by this name it is found again.
    Lasting(&'a str),
}

impl LoopDevice {
    /// Makes one of a file, to be read only. Reads go past the page cache of the file: that of the device has what was
    /// read.
    ///
    /// # Errors
    /// If there are no loop devices, or the kernel refuses: without root, or if the file cannot be read directly.
    ///
    /// ```no_run
    /// let image = std::fs::File::open("/images/disk.ext4")?;
    /// let device = rawio::loop_device::LoopDevice::of(&image)?;
    /// println!("mount -o ro {} /mnt", device.path().display());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Self::make(&file, Use::Reading)
    }

    /// Makes one of a file, whose content is changed by what is written to the device: past the page cache of the file.
    /// Two devices of one file would each have a cache that the other does not know: look for [one](Self::found) first.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn writable(file: &File) -> io::Result<Self> {
        Self::make(file, Use::Writing)
    }

    /// Makes one like [`writable`](Self::writable) that stays until it is [freed](Self::free), whoever has it open. It is
    /// called `name`, of which the first 63 bytes count.
    ///
    /// # Errors
    /// As there.
    pub fn lasting(file: &File, name: &str) -> io::Result<Self> {
        Self::make(file, Use::Lasting(name))
    }

    /// Finds the devices that are called `name`, of files that are called as that of `path`.
    ///
    /// # Errors
    /// If it is not known which devices there are.
    pub fn named(name: &str, path: &Path) -> io::Result<Vec<Self>> {
        let name = file_name(name);
        Self::find(path, |of| of.file_name == name)
    }

    /// Returns whether it is of this file.
    #[must_use]
    pub fn is_of(&self, file: &File) -> bool {
        let wanted = file.metadata();
        let is_it = |of: Info| wanted.is_ok_and(|wanted| of.is_of(&wanted));
        status(&self.device).is_ok_and(is_it)
    }

    /// Frees it, as soon as nobody has it open or mounted any more.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn free(self) -> io::Result<()> {
        // SAFETY: the request has no argument, and the descriptor is borrowed and open.
        let result = unsafe { libc::ioctl(self.device.as_raw_fd(), LOOP_CLR_FD as libc::Ioctl) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Finds the device of a file that there is already; its name is that of `path`.
    ///
    /// # Errors
    /// If it is not known which devices there are.
    pub fn found(file: &File, path: &Path) -> io::Result<Option<Self>> {
        let wanted = file.metadata()?;
        let found = Self::find(path, |of| of.is_of(&wanted))?;
        Ok(found.into_iter().next())
    }

    /// Returns the devices of files that are called as that of `path` and of which that is true.
    fn find(path: &Path, is_wanted: impl Fn(&Info) -> bool) -> io::Result<Vec<Self>> {
        let name = path.file_name();
        let mut found = Vec::new();
        for entry in std::fs::read_dir(DEVICES)? {
            let entry = entry?;
            // Only devices that are in use have it. Of those of other files nothing is asked, which may take a while.
            let Ok(of) = std::fs::read(entry.path().join("loop/backing_file")) else {
                continue;
            };
            if !name.is_some_and(|name| of.trim_ascii_end().ends_with(name.as_bytes())) {
                continue;
            }
            let path = Path::new("/dev").join(entry.file_name());
            // Another one may have ended meanwhile.
            let Ok(device) = File::options().read(true).write(true).open(&path) else {
                continue;
            };
            if status(&device).is_ok_and(|of| is_wanted(&of)) {
                found.push(Self { path, device });
            }
        }
        Ok(found)
    }

    fn make(file: &impl AsFd, purpose: Use<'_>) -> io::Result<Self> {
        let control = File::options().read(true).write(true).open(CONTROL)?;
        let mut attempt = 0;
        loop {
            let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
            let is_written = purpose != Use::Reading;
            let device = File::options().read(true).write(is_written).open(&path)?;
            match configure(&device, file, purpose) {
                Ok(()) => return Ok(Self { path, device }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns it, open.
    #[must_use]
    pub const fn device(&self) -> &File {
        &self.device
    }
}

fn free_number(control: &File) -> io::Result<i32> {
    // SAFETY: the request has no argument, and the descriptor is borrowed and open.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as libc::Ioctl) };
    match number {
        0.. => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns a name as the kernel has it.
fn file_name(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let len = name.len().min(NAME_BYTES - 1);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

/// Returns which file a device is of.
fn status(device: &File) -> io::Result<Info> {
    let mut info = Info::default();
    // SAFETY: the structure has the kernel's layout, lives through the call, and is only written to; the descriptor is
    // borrowed and open.
    let result = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            LOOP_GET_STATUS64 as libc::Ioctl,
            &raw mut info,
        )
    };
    match result {
        0 => Ok(info),
        _ => Err(io::Error::last_os_error()),
    }
}

fn configure(device: &File, file: &impl AsFd, purpose: Use<'_>) -> io::Result<()> {
    let how = match purpose {
        Use::Reading => LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR,
        Use::Writing => LO_FLAGS_AUTOCLEAR,
        Use::Lasting(_) => 0,
    };
    let name = match purpose {
        Use::Lasting(name) => file_name(name),
        Use::Reading | Use::Writing => [0; NAME_BYTES],
    };
    let config = Config {
        // A descriptor is never negative.
        fd: file.as_fd().as_raw_fd().cast_unsigned(),
        block_size: 0, // that of the file
        info: Info {
            flags: how | LO_FLAGS_DIRECT_IO,
            file_name: name,
            ..Info::default()
        },
        reserved: [0; 8],
    };
    // SAFETY: the structure has the kernel's layout, lives through the call, and is only read; both descriptors are
    // borrowed and open.
    let result = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            LOOP_CONFIGURE as libc::Ioctl,
            &raw const config,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
