//! A user of a block device that goes past the page cache.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use blockexport::Exporter;
use blockexport::ublk::{UblkConfig, UblkExporter};
use blocks::Space;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};

use crate::conformance::{Client, Refused, Rig};

/// What direct reads and writes are aligned to in memory.
const ALIGNED: usize = 4096;

pub(crate) struct UblkRig {
    pub dir: tempfile::TempDir,
    pub config: UblkConfig,
}

impl UblkRig {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            config: UblkConfig {
                identity: "image".to_owned(),
                ..UblkConfig::default()
            },
        }
    }

    pub(crate) fn link(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Returns how an image of this name is served.
    pub(crate) fn exporter_of(&self, identity: &str) -> UblkExporter {
        UblkExporter {
            link: self.link(),
            config: UblkConfig {
                identity: identity.to_owned(),
                ..self.config.clone()
            },
        }
    }
}

impl Rig for UblkRig {
    fn exporter(&self) -> Box<dyn Exporter> {
        Box::new(self.exporter_of("image"))
    }

    fn connect(&self) -> Box<dyn Client> {
        let client = Direct::open(&self.link());
        // Neighbours that wait at the same time stay requests of their own. It waits for what is in flight.
        fs::write(client.sys("queue/nomerges"), "2").unwrap();
        Box::new(client)
    }

    fn shared(&self) -> bool {
        false // the kernel is the one client
    }

    fn sees_invalid_requests(&self) -> bool {
        false
    }
}

/// A device that is open for direct reads and writes; for reads only if it is read-only.
pub(crate) struct Direct {
    path: PathBuf,
    file: File,
}

/// A buffer for direct reads and writes.
struct Aligned(Vec<u8>, usize, usize);

impl Aligned {
    fn new(len: usize) -> Self {
        let buffer = vec![0; len + ALIGNED];
        let start = buffer.as_ptr().align_offset(ALIGNED);
        Self(buffer, start, len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}

impl Direct {
    pub(crate) fn open(link: &Path) -> Self {
        Self::with(link, OFlag::empty())
    }

    /// Opens a device with more flags.
    pub(crate) fn with(link: &Path, more: OFlag) -> Self {
        let path = fs::canonicalize(link).unwrap();
        let flags = (OFlag::O_DIRECT | more).bits();
        let mut options = File::options();
        let both = options
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&path);
        let file = both.unwrap_or_else(|_| options.write(false).open(&path).unwrap());
        Self { path, file }
    }

    /// Returns where the kernel tells something of it.
    pub(crate) fn sys(&self, what: &str) -> PathBuf {
        let device = self.path.file_name().unwrap();
        Path::new("/sys/block").join(device).join(what)
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Refused> {
        let mut buffer = Aligned::new(len);
        let read = self.file.read_exact_at(buffer.bytes(), offset);
        read.map_err(|_| Refused)?;
        Ok(buffer.bytes().to_vec())
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Refused> {
        let mut buffer = Aligned::new(data.len());
        buffer.bytes().copy_from_slice(data);
        let wrote = self.file.write_all_at(buffer.bytes(), offset);
        wrote.map_err(|_| Refused)
    }
}

impl Client for Direct {
    fn size(&self) -> u64 {
        let sectors = fs::read_to_string(self.sys("size")).unwrap();
        sectors.trim().parse::<u64>().unwrap() * 512
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Refused> {
        Self::read(self, offset, len)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Refused> {
        Self::write(self, offset, data)
    }

    fn flush(&mut self) -> Result<(), Refused> {
        self.file.sync_all().map_err(|_| Refused)
    }

    fn trim(&mut self, range: Range<u64>) -> Result<(), Refused> {
        // `blkdiscard` would cut it.
        if range.end > Client::size(self) {
            return Err(Refused);
        }
        let [start, len] = [range.start, range.end - range.start].map(|number| number.to_string());
        let done = Command::new("blkdiscard")
            .args(["-f", "-o", &start, "-l", &len])
            .arg(&self.path)
            .output()
            .unwrap();
        if done.status.success() {
            Ok(())
        } else {
            Err(Refused)
        }
    }

    fn zero(&mut self, range: Range<u64>, space: Space) -> Result<(), Refused> {
        let flags = match space {
            Space::Keep => FallocateFlags::FALLOC_FL_ZERO_RANGE,
            Space::Release => {
                FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE
            }
        };
        let (start, len) = (range.start, range.end - range.start);
        let (start, len) = (start.try_into().unwrap(), len.try_into().unwrap());
        fallocate(&self.file, flags, start, len).map_err(|_| Refused)
    }

    fn read_many(&mut self, offsets: &[u64], len: usize) -> Vec<Vec<u8>> {
        let client = &*self;
        std::thread::scope(|scope| {
            let reads = offsets.iter().map(|offset| {
                let read = || Direct::read(client, *offset, len).unwrap();
                scope.spawn(read)
            });
            let reads: Vec<_> = reads.collect();
            reads.into_iter().map(|read| read.join().unwrap()).collect()
        })
    }
}
