//! Requests of a driver without a front end: for tests and fuzzing.

use std::sync::Arc;

use blocks::{BlockDevice, Durability};
use virtio_queue::{Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::inflight::Region;
use super::request::Served;
use super::{Budget, Meter, REQUEST_MAX_BYTES, VhostUserConfig};

/// Bytes of the guest's memory.
pub const MEMORY_BYTES: usize = 64 << 10;
const QUEUE_SIZE: u16 = 16;
/// Where the ring of available requests is; the table of descriptors is at the beginning.
const AVAILABLE: u64 = 0x1000;

/// Answers what lies in a guest's memory, which begins with these bytes: 16 descriptors, and at byte 4 096 the
/// ring of available requests. Returns how many requests there were.
pub fn answer_all(device: Arc<dyn BlockDevice>, memory: &[u8]) -> usize {
    let Some((memory, queue)) = guest(memory) else {
        return 0;
    };
    let served = Served {
        device,
        meter: Arc::<Meter>::default(),
        budget: Budget::new(REQUEST_MAX_BYTES as u64),
        serial: VhostUserConfig::default().serial,
    };
    let mut queue = queue;
    let mut count = 0;
    let Ok(chains) = queue.iter(Arc::clone(&memory)) else {
        return 0;
    };
    for chain in chains.collect::<Vec<_>>() {
        served.answer(&memory, chain, Durability::Flushed);
        count += 1;
    }
    count
}

fn guest(bytes: &[u8]) -> Option<(Arc<GuestMemoryMmap>, Queue)> {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).ok()?;
    let len = bytes.len().min(MEMORY_BYTES);
    memory.write_slice(&bytes[..len], GuestAddress(0)).ok()?;
    let mut queue = Queue::new(QUEUE_SIZE).ok()?;
    queue.try_set_desc_table_address(GuestAddress(0)).ok()?;
    let available = GuestAddress(AVAILABLE);
    queue.try_set_avail_ring_address(available).ok()?;
    queue.set_ready(true);
    Some((Arc::new(memory), queue))
}

/// Resumes from a region of requests in flight whose file has these bytes, and returns what it says is in
/// flight.
pub fn resume(bytes: &[u8], used: u16) -> Option<Vec<u16>> {
    use std::os::unix::fs::FileExt as _;
    let (about, file) = Region::create(1, QUEUE_SIZE).ok()?;
    let len = bytes.len().min(usize::try_from(about.mmap_size).ok()?);
    file.write_all_at(&bytes[..len], 0).ok()?;
    let region = Region::open(&about, file)?;
    region.queue(0, QUEUE_SIZE)?.resume(used).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::MemDevice;

    #[test]
    fn a_request_in_memory_is_answered() {
        let mut memory = vec![0; 0x3000];
        // Three descriptors: the head of a read, its data, and its status.
        for (number, (at, len, flags, next)) in [
            (0x2000_u64, 16_u32, 1_u16, 1_u16),
            (0x2100, 512, 3, 2),
            (0x2400, 1, 2, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let entry = &mut memory[16 * number..16 * number + 16];
            entry[..8].copy_from_slice(&at.to_le_bytes());
            entry[8..12].copy_from_slice(&len.to_le_bytes());
            entry[12..14].copy_from_slice(&flags.to_le_bytes());
            entry[14..].copy_from_slice(&next.to_le_bytes());
        }
        memory[0x1002] = 1;
        let device = Arc::new(MemDevice::new(1 << 20, 512));
        assert_eq!(answer_all(device, &memory), 1);
    }
}
