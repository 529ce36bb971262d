//! A front end with the driver of a guest: memory, one ring, and requests in it.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blockexport::Exporter;
use blockexport::vhost_user::{VhostUserConfig, VhostUserExporter};
use blocks::Space;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::conformance::{Client, Refused, Rig};

pub(crate) struct VhostRig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: VhostUserConfig,
}

impl VhostRig {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            config: VhostUserConfig::default(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("vhost.sock")
    }
}

impl Rig for VhostRig {
    fn exporter(&self) -> Box<dyn Exporter> {
        Box::new(VhostUserExporter {
            socket: self.socket(),
            config: self.config.clone(),
        })
    }

    fn connect(&self) -> Box<dyn Client> {
        Box::new(Guest::boot(&self.socket()))
    }

    fn shared(&self) -> bool {
        false
    }
}

const QUEUE: u16 = 128;
const MEMORY: u64 = 16 << 20;
/// Where the front end says that it has mapped the memory; it never does.
const MAPPED: u64 = 0x7000_0000_0000;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x3000;
const USED: u64 = 0x4000;
/// 64 KiB for each slot but the first's data, which has the rest from 4 MiB on.
const SLOTS: u64 = 0x1_0000;
const SLOT: u64 = 0x1_0000;
const DATA_OF_FIRST: u64 = 4 << 20;

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const DISCARD: u32 = 11;
const ZERO: u32 = 13;

/// What a guest has, which outlives the servers of its disk.
pub(crate) struct Guest {
    memory: File,
    kick: EventFd,
    call: EventFd,
    inflight: Option<(VhostUserInflight, File)>,
    frontend: Option<Frontend>,
    pub(crate) size: u64,
    /// Requests put into the ring, and results taken out of it.
    sent: u16,
    seen: u16,
}

impl Guest {
    pub(crate) fn boot(socket: &Path) -> Self {
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let memory = File::from(nix::sys::memfd::memfd_create(c"guest", flags).unwrap());
        memory.set_len(MEMORY).unwrap();
        let mut guest = Self {
            memory,
            kick: EventFd::new(0).unwrap(),
            call: EventFd::new(nix::sys::eventfd::EfdFlags::EFD_NONBLOCK.bits()).unwrap(),
            inflight: None,
            frontend: None,
            size: 0,
            sent: 0,
            seen: 0,
        };
        guest.connect(socket);
        guest
    }

    /// Connects as QEMU does, the first time and after a restart of the server.
    pub(crate) fn connect(&mut self, socket: &Path) {
        let mut frontend = Frontend::connect(socket, 4).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        // All but the indexes in rings' events, which this driver does without.
        frontend.set_features(features & !(1 << 29)).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
        frontend.set_protocol_features(protocol).unwrap();
        let flags = VhostUserConfigFlags::empty();
        let (_, config) = frontend.get_config(0, 60, flags, &[0; 60]).unwrap();
        self.size = u64::from_le_bytes(config[..8].try_into().unwrap()) * 512;
        let (about, file) = self.inflight.get_or_insert_with(|| {
            let about = VhostUserInflight::new(0, 0, 1, QUEUE);
            frontend.get_inflight_fd(&about).unwrap()
        });
        frontend.set_inflight_fd(about, file.as_raw_fd()).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: MAPPED,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        frontend.set_vring_num(0, QUEUE).unwrap();
        // A front end whose server was killed knows no better than what the guest was told.
        frontend.set_vring_base(0, self.used()).unwrap();
        let config = VringConfigData {
            queue_max_size: QUEUE,
            queue_size: QUEUE,
            flags: 0,
            desc_table_addr: MAPPED + DESCRIPTORS,
            used_ring_addr: MAPPED + USED,
            avail_ring_addr: MAPPED + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &config).unwrap();
        frontend.set_vring_kick(0, &self.kick).unwrap();
        frontend.set_vring_call(0, &self.call).unwrap();
        frontend.set_vring_enable(0, true).unwrap();
        self.frontend = Some(frontend);
    }

    /// Loses the connection, as when the server is killed.
    pub(crate) fn disconnect(&mut self) {
        self.frontend = None;
    }

    /// How many requests the guest was told to be done.
    pub(crate) fn used(&self) -> u16 {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, USED + 2).unwrap();
        u16::from_le_bytes(index)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    fn data_of(slot: u16) -> u64 {
        if slot == 0 {
            DATA_OF_FIRST
        } else {
            SLOTS + u64::from(slot) * SLOT + 512
        }
    }

    fn status_of(slot: u16) -> u64 {
        SLOTS + u64::from(slot) * SLOT + 256
    }

    /// Puts a request into the ring that uses the descriptors and buffers of a slot.
    pub(crate) fn send(&mut self, slot: u16, kind: u32, sector: u64, out: &[u8], room: usize) {
        let head = SLOTS + u64::from(slot) * SLOT;
        self.put(head, &[kind.to_le_bytes(), [0; 4]].concat());
        self.put(head + 8, &sector.to_le_bytes());
        self.put(Self::data_of(slot), out);
        self.put(Self::status_of(slot), &[0xFF]);
        let data = Self::data_of(slot);
        let mut parts = vec![(head, 16, 0)];
        if !out.is_empty() {
            parts.push((data, out.len(), 0));
        }
        if room > 0 {
            parts.push((data, room, 2));
        }
        parts.push((Self::status_of(slot), 1, 2));
        let first = slot * 4;
        let last = parts.len() - 1;
        for (i, (address, len, writable)) in parts.into_iter().enumerate() {
            let this = first + i as u16;
            let (flags, next) = if i < last {
                (writable | 1_u16, this + 1)
            } else {
                (writable, 0)
            };
            let mut descriptor = address.to_le_bytes().to_vec();
            descriptor.extend((len as u32).to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            descriptor.extend(next.to_le_bytes());
            self.put(DESCRIPTORS + 16 * u64::from(this), &descriptor);
        }
        let at = AVAILABLE + 4 + 2 * u64::from(self.sent % QUEUE);
        self.put(at, &first.to_le_bytes());
        self.sent = self.sent.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.sent.to_le_bytes());
        self.kick.write(1).unwrap();
    }

    /// Waits for results until there are `count` that were not seen, and returns their slots.
    pub(crate) fn receive(&mut self, count: u16) -> Vec<u16> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.used().wrapping_sub(self.seen) < count {
            let done = self.used().wrapping_sub(self.seen);
            assert!(
                Instant::now() < deadline,
                "{done} of {count} requests are done"
            );
            match self.call.read() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                told => assert!(told.unwrap() > 0),
            }
        }
        let slots = (0..count).map(|i| {
            let at = USED + 4 + 8 * u64::from(self.seen.wrapping_add(i) % QUEUE);
            let mut entry = [0; 4];
            self.memory.read_exact_at(&mut entry, at).unwrap();
            u32::from_le_bytes(entry) as u16 / 4
        });
        let slots = slots.collect();
        self.seen = self.seen.wrapping_add(count);
        slots
    }

    pub(crate) fn status(&self, slot: u16) -> u8 {
        let mut status = [0];
        self.memory
            .read_exact_at(&mut status, Self::status_of(slot))
            .unwrap();
        status[0]
    }

    pub(crate) fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory
            .read_exact_at(&mut data, Self::data_of(slot))
            .unwrap();
        data
    }

    pub(crate) fn ask(
        &mut self,
        kind: u32,
        sector: u64,
        out: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, Refused> {
        self.send(0, kind, sector, out, room);
        assert_eq!(self.receive(1), [0]);
        match self.status(0) {
            0 => Ok(self.data(0, room)),
            1 | 2 => Err(Refused),
            other => panic!("{other} is no status"),
        }
    }

    fn clear(&mut self, kind: u32, range: Range<u64>, flags: u32) -> Result<(), Refused> {
        let mut segment = (range.start / 512).to_le_bytes().to_vec();
        segment.extend((((range.end - range.start) / 512) as u32).to_le_bytes());
        segment.extend(flags.to_le_bytes());
        self.ask(kind, 0, &segment, 0).map(drop)
    }
}

impl Client for Guest {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Refused> {
        self.ask(READ, offset / 512, &[], len)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Refused> {
        self.ask(WRITE, offset / 512, data, 0).map(drop)
    }

    fn flush(&mut self) -> Result<(), Refused> {
        self.ask(FLUSH, 0, &[], 0).map(drop)
    }

    fn trim(&mut self, range: Range<u64>) -> Result<(), Refused> {
        self.clear(DISCARD, range, 0)
    }

    fn zero(&mut self, range: Range<u64>, space: Space) -> Result<(), Refused> {
        let unmap = if space == Space::Release { 1 } else { 0 };
        self.clear(ZERO, range, unmap)
    }

    fn read_many(&mut self, offsets: &[u64], len: usize) -> Vec<Vec<u8>> {
        for (slot, offset) in (0..).zip(offsets) {
            self.send(slot, READ, offset / 512, &[], len);
        }
        let count = offsets.len() as u16;
        let done: HashMap<u16, ()> = self
            .receive(count)
            .into_iter()
            .map(|slot| (slot, ()))
            .collect();
        assert_eq!(done.len(), offsets.len(), "each once");
        (0..count)
            .map(|slot| {
                assert_eq!(self.status(slot), 0);
                self.data(slot, len)
            })
            .collect()
    }
}
