//! What a client of any export may rely on, as tests that run on each.

use std::ops::Range;
use std::sync::{Arc, Barrier};

use blockexport::{Export, Exporter};
use blocks::testing::{Fault, Faulty, MemDevice};
use blocks::{BlockDevice, DeviceError, DeviceExtent, DeviceInfo, Durability, Space};

/// A request was refused or failed; not every export can tell why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// One client that is connected.
pub(crate) trait Client: Send {
    fn size(&self) -> u64;
    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Refused>;
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Refused>;
    fn flush(&mut self) -> Result<(), Refused>;
    fn trim(&mut self, range: Range<u64>) -> Result<(), Refused>;
    fn zero(&mut self, range: Range<u64>, space: Space) -> Result<(), Refused>;
    /// Sends reads without waiting, and then receives all that was read.
    fn read_many(&mut self, offsets: &[u64], len: usize) -> Vec<Vec<u8>>;
}

/// One way of exporting, and how to be its client.
pub(crate) trait Rig {
    fn exporter(&self) -> Box<dyn Exporter>;
    fn connect(&self) -> Box<dyn Client>;
    /// Whether several clients may share a device.
    fn shared(&self) -> bool;
    /// Whether invalid requests reach the server: a kernel in between refuses them itself.
    fn sees_invalid_requests(&self) -> bool {
        true
    }
}

const BLOCK: u64 = 512;
const SIZE: u64 = 256 * BLOCK;

/// Runs all of it.
pub(crate) fn run(rig: &dyn Rig) {
    clients_do_what_an_array_does(rig);
    invalid_requests_are_refused_and_end_nothing(rig);
    a_device_that_fails_or_panics_costs_one_request(rig);
    what_was_flushed_survives_a_crash(rig);
    requests_are_in_flight_together(rig);
    a_server_follows_another_on_the_same_place(rig);
}

fn export(rig: &dyn Rig, device: impl BlockDevice + 'static) -> Box<dyn Export> {
    rig.exporter().export(Arc::new(device)).unwrap()
}

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn clients_do_what_an_array_does(rig: &dyn Rig) {
    let device = Arc::new(MemDevice::new(SIZE, 512));
    let export = export(rig, Arc::clone(&device));
    let mut clients = vec![rig.connect()];
    if rig.shared() {
        clients.push(rig.connect());
    }
    let mut model = vec![0_u8; SIZE as usize];
    let mut numbers = Numbers(0x5eed);
    for step in 0..600 {
        let which = numbers.below(clients.len() as u64);
        let client = &mut clients[which as usize];
        assert_eq!(client.size(), SIZE);
        let start = numbers.below(SIZE / BLOCK) * BLOCK;
        let end = start + BLOCK * (1 + numbers.below(((SIZE - start) / BLOCK).min(64)));
        let span = start as usize..end as usize;
        match numbers.below(10) {
            0..4 => {
                let data: Vec<u8> = span.clone().map(|i| (i as u64 * 7 + step) as u8).collect();
                client.write(start, &data).unwrap();
                model[span].copy_from_slice(&data);
            }
            4..8 => assert_eq!(
                client.read(start, span.len()).unwrap(),
                &model[span],
                "{step}"
            ),
            8 => {
                let space = [Space::Keep, Space::Release][numbers.below(2) as usize];
                client.zero(start..end, space).unwrap();
                model[span].fill(0);
            }
            _ => {
                client.trim(start..end).unwrap();
                model[span].fill(0);
            }
        }
    }
    assert_eq!(device.content(), model);
    let counts = export.counts();
    assert_eq!(counts.clients, clients.len() as u64);
    assert!(counts.requests >= 600 && counts.errors == 0, "{counts:?}");
    assert!(
        counts.bytes_read > 0 && counts.bytes_written > 0,
        "{counts:?}"
    );
    drop(clients);
    export.stop();
}

fn invalid_requests_are_refused_and_end_nothing(rig: &dyn Rig) {
    let served = export(rig, MemDevice::new(SIZE, 512));
    let mut client = rig.connect();
    assert_eq!(client.read(SIZE, 512), Err(Refused));
    assert_eq!(client.read(SIZE - 512, 1024), Err(Refused));
    assert_eq!(client.write(SIZE, &[1; 512]), Err(Refused));
    assert_eq!(client.trim(SIZE..SIZE + 512), Err(Refused));
    assert_eq!(
        client.zero(SIZE - 512..SIZE + 512, Space::Keep),
        Err(Refused)
    );
    client.write(SIZE - 512, &[9; 512]).unwrap();
    assert_eq!(client.read(SIZE - 512, 512).unwrap(), [9; 512]);
    let errors = if rig.sees_invalid_requests() { 5 } else { 0 };
    assert_eq!(served.counts().errors, errors);
    drop(client);
    served.stop();

    let content: Vec<u8> = (0..SIZE).map(|i| (i / 3) as u8).collect();
    let served = export(rig, MemDevice::read_only(&content, 512));
    let mut client = rig.connect();
    assert!(client.write(0, &[1; 512]).is_err());
    assert!(client.zero(0..512, Space::Release).is_err());
    assert_eq!(client.read(0, SIZE as usize).unwrap(), content);
    drop(client);
    served.stop();
}

/// Panics when it is written to.
struct Panics(MemDevice);

impl BlockDevice for Panics {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, _: u64, _: &[u8], _: Durability) -> Result<(), DeviceError> {
        panic!("on purpose")
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        self.0.trim(range, durability)
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.0.write_zeroes(range, space, durability)
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        self.0.extents(range, limit)
    }
}

fn a_device_that_fails_or_panics_costs_one_request(rig: &dyn Rig) {
    let served = export(rig, Panics(MemDevice::new(SIZE, 512)));
    let mut client = rig.connect();
    assert_eq!(client.write(0, &[1; 512]), Err(Refused));
    assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    drop(client);
    served.stop();

    let served = export(rig, Faulty::new(MemDevice::new(SIZE, 512), Fault::Busy, 2));
    let mut client = rig.connect();
    client.write(0, &[1; 512]).unwrap();
    assert_eq!(client.read(0, 512).unwrap(), [1; 512]);
    assert_eq!(client.read(0, 512), Err(Refused));
    assert_eq!(client.flush(), Err(Refused));
    assert_eq!(served.counts().errors, 2);
    drop(client);
    served.stop();
}

fn what_was_flushed_survives_a_crash(rig: &dyn Rig) {
    let device = Arc::new(MemDevice::new(SIZE, 512));
    let served = export(rig, Arc::clone(&device));
    let mut client = rig.connect();
    client.write(0, &[1; 512]).unwrap();
    client.flush().unwrap();
    client.write(512, &[2; 512]).unwrap();
    client.write(0, &[3; 512]).unwrap();
    device.crash();
    assert_eq!(client.read(0, 1024).unwrap(), [[1; 512], [0; 512]].concat());
    drop(client);
    served.stop();
}

/// Answers reads only when so many are there at once.
struct Together(MemDevice, Barrier);

impl BlockDevice for Together {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.1.wait();
        self.0.read_at(offset, buf)
    }

    fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.0.write_at(offset, data, durability)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        self.0.trim(range, durability)
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.0.write_zeroes(range, space, durability)
    }
}

fn requests_are_in_flight_together(rig: &dyn Rig) {
    let content: Vec<u8> = (0..SIZE).map(|i| (i / BLOCK) as u8).collect();
    let device = Together(MemDevice::read_only(&content, 512), Barrier::new(16));
    let served = export(rig, device);
    let mut client = rig.connect();
    let offsets: Vec<u64> = (0..32).map(|i| (i * 37 % 256) * BLOCK).collect();
    let read = client.read_many(&offsets, 512);
    for (offset, data) in offsets.iter().zip(read) {
        assert_eq!(data, [(offset / BLOCK) as u8; 512], "at {offset}");
    }
    drop(client);
    served.stop();
}

fn a_server_follows_another_on_the_same_place(rig: &dyn Rig) {
    let device = Arc::new(MemDevice::new(SIZE, 512));
    let first = export(rig, Arc::clone(&device));
    let refused = rig.exporter().export(Arc::new(MemDevice::new(SIZE, 512)));
    assert!(refused.is_err(), "two serve in one place");
    let mut client = rig.connect();
    client.write(512, &[4; 512]).unwrap();
    first.stop();
    let second = export(rig, device);
    let mut client = rig.connect();
    assert_eq!(client.read(512, 512).unwrap(), [4; 512]);
    drop(client);
    second.stop();
}
