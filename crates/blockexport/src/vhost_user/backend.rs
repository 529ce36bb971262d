//! Messages of a front end: features, memory, queues.

use std::fs::File;
use std::io;
use std::sync::Arc;

use blocks::{DeviceAccess, Durability};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::inflight::{Region, reaches};
use super::request::Served;
use super::ring::{Call, Ring, Start};
use super::{QUEUE_MAX_SIZE, config_space};

/// Regions of memory that a front end may have.
const REGIONS_MAX: usize = 32;

/// One front end's view of the device, for one connection.
pub(super) struct Backend {
    served: Arc<Served>,
    threads: usize,
    features: u64,
    regions: Vec<VhostUserMemoryRegion>,
    memory: Option<Arc<GuestMemoryMmap>>,
    inflight: Option<Region>,
    queues: Vec<Vring>,
}

/// A queue as it was described so far.
#[derive(Debug)]
struct Vring {
    queue: Queue,
    kick: Option<File>,
    call: Arc<Call>,
    enabled: bool,
    ring: Option<Ring>,
}

impl Backend {
    pub(super) fn new(served: Arc<Served>, queues: u16, threads: usize) -> Self {
        let queue = |_| Vring {
            queue: Queue::new(QUEUE_MAX_SIZE).unwrap_or_default(),
            kick: None,
            call: Arc::default(),
            enabled: false,
            ring: None,
        };
        Self {
            served,
            threads,
            features: 0,
            regions: Vec::new(),
            memory: None,
            inflight: None,
            queues: (0..queues).map(queue).collect(),
        }
    }

    fn vring(&mut self, index: impl TryInto<usize>) -> Result<&mut Vring> {
        let index = index.try_into().map_err(|_| Error::InvalidParam)?;
        self.queues.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// Starts a queue if all is known that it needs.
    fn start(&mut self, index: usize) -> Result<()> {
        let flush = self.features & (1 << VIRTIO_BLK_F_FLUSH) != 0;
        let event_idx = self.features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let vring = self.queues.get_mut(index).ok_or(Error::InvalidParam)?;
        let (Some(memory), true, None) = (&self.memory, vring.enabled, &vring.ring) else {
            return Ok(());
        };
        let Some(kick) = vring.kick.as_ref() else {
            return Ok(());
        };
        let mut queue = Queue::new(QUEUE_MAX_SIZE).map_err(refused)?;
        queue.try_set_size(vring.queue.size()).map_err(refused)?;
        let desc_table = GuestAddress(vring.queue.desc_table());
        queue
            .try_set_desc_table_address(desc_table)
            .map_err(refused)?;
        let avail_ring = GuestAddress(vring.queue.avail_ring());
        queue
            .try_set_avail_ring_address(avail_ring)
            .map_err(refused)?;
        let used_ring = GuestAddress(vring.queue.used_ring());
        queue
            .try_set_used_ring_address(used_ring)
            .map_err(refused)?;
        queue.set_next_avail(vring.queue.next_avail());
        queue.set_event_idx(event_idx);
        let number = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
        let inflight = self.inflight.as_ref();
        let start = Start {
            memory: Arc::clone(memory),
            inflight: inflight.and_then(|region| region.queue(number, queue.size())),
            queue,
            kick: kick.try_clone().map_err(Error::ReqHandlerError)?,
            call: Arc::clone(&vring.call),
            durability: match flush {
                true => Durability::Flushed,
                false => Durability::Durable,
            },
            threads: self.threads,
        };
        let ring = Ring::start(start, Arc::clone(&self.served)).map_err(refused)?;
        vring.ring = Some(ring);
        Ok(())
    }

    fn stop(&mut self, index: usize) -> Result<()> {
        let vring = self.vring(index)?;
        if let Some(ring) = vring.ring.take() {
            let next = ring.stop();
            vring.queue.set_next_avail(next);
        }
        Ok(())
    }

    /// Returns where an address of the front end's process is for the guest.
    fn guest_address(&self, address: u64) -> Result<GuestAddress> {
        let within = |region: &&VhostUserMemoryRegion| {
            let offset = address.checked_sub(region.user_addr);
            offset.is_some_and(|offset| offset < region.memory_size)
        };
        let region = self.regions.iter().find(within);
        let guest = region.and_then(|region| {
            let offset = address - region.user_addr;
            region.guest_phys_addr.checked_add(offset)
        });
        guest.map(GuestAddress).ok_or(Error::InvalidParam)
    }

    fn stop_all(&mut self) -> Result<()> {
        (0..self.queues.len()).try_for_each(|index| self.stop(index))
    }
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

const UNKNOWN: Error = Error::InvalidOperation("this device does not offer it");

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all()?;
        for vring in &mut self.queues {
            vring.enabled = false;
            vring.kick = None;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        let info = self.served.device.info();
        let bits = [
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_F_VERSION_1,
        ];
        let mut features = bits.iter().fold(0, |all, bit| all | 1_u64 << bit);
        match info.access {
            DeviceAccess::ReadOnly => features |= 1 << VIRTIO_BLK_F_RO,
            DeviceAccess::ReadWrite => {
                features |= u64::from(info.trim) << VIRTIO_BLK_F_DISCARD;
                features |= u64::from(info.write_zeroes) << VIRTIO_BLK_F_WRITE_ZEROES;
            }
        }
        Ok(features | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features = features;
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            // Without the message that enables them, queues run from their first event on.
            self.queues
                .iter_mut()
                .for_each(|vring| vring.enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        if regions.len() > REGIONS_MAX || regions.len() != files.len() {
            return Err(Error::InvalidParam);
        }
        let mut ranges = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            let size = usize::try_from(region.memory_size).map_err(|_| Error::InvalidParam)?;
            if !reaches(&file, region.mmap_offset, region.memory_size) {
                return Err(Error::InvalidParam);
            }
            let file = FileOffset::new(file, region.mmap_offset);
            ranges.push((GuestAddress(region.guest_phys_addr), size, Some(file)));
        }
        ranges.sort_by_key(|(address, ..)| *address);
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).map_err(refused)?;
        let memory = Arc::new(memory);
        for vring in &self.queues {
            if let Some(ring) = &vring.ring {
                ring.set_memory(&memory);
            }
        }
        self.regions = regions.to_vec();
        self.memory = Some(memory);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        let vring = self.vring(index)?;
        vring.queue.try_set_size(size).map_err(refused)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return Err(UNKNOWN);
        }
        let (descriptor, available) = (
            self.guest_address(descriptor)?,
            self.guest_address(available)?,
        );
        let used = self.guest_address(used)?;
        let queue = &mut self.vring(index)?.queue;
        queue
            .try_set_desc_table_address(descriptor)
            .map_err(refused)?;
        queue
            .try_set_avail_ring_address(available)
            .map_err(refused)?;
        queue.try_set_used_ring_address(used).map_err(refused)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.vring(index)?.queue.set_next_avail(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index as usize)?;
        let vring = self.vring(index)?;
        vring.kick = None;
        let base = u32::from(vring.queue.next_avail());
        Ok(VhostUserVringState::new(index, base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.stop(index.into())?;
        self.vring(index)?.kick = fd;
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.vring(index)?.call.set(fd);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        self.vring(index).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.enabled = enable;
        match enable {
            true => self.start(index as usize),
            false => self.stop(index as usize),
        }
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = config_space(&self.served.device.info(), self.queues.len());
        let (start, size) = (offset as usize, size as usize);
        // A newer front end asks for more than this device has: those parts are zero.
        let have = space.get(start..).unwrap_or_default();
        let mut answer = have[..have.len().min(size)].to_vec();
        answer.resize(size, 0);
        Ok(answer)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(UNKNOWN)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(UNKNOWN)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(UNKNOWN)
    }

    fn get_inflight_fd(&mut self, about: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let queues = usize::from(about.num_queues);
        if queues > self.queues.len() || about.queue_size > QUEUE_MAX_SIZE {
            return Err(Error::InvalidParam);
        }
        let created = Region::create(about.num_queues, about.queue_size);
        let (about, file) = created.map_err(Error::ReqHandlerError)?;
        let ours = file.try_clone().map_err(Error::ReqHandlerError)?;
        self.inflight = Region::open(&about, ours);
        Ok((about, file))
    }

    fn set_inflight_fd(&mut self, about: &VhostUserInflight, file: File) -> Result<()> {
        let region = Region::open(about, file).ok_or(Error::InvalidParam)?;
        self.inflight = Some(region);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(UNKNOWN)
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        Err(UNKNOWN)
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(UNKNOWN)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(UNKNOWN)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(UNKNOWN)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(UNKNOWN)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(UNKNOWN)
    }
}
