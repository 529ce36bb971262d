//! The device in memory does what plain arrays do, and loses what was not made durable.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::cast_possible_truncation, reason = "the device is small")]

use blocks::testing::{Fault, Faulty, MemDevice};
use blocks::{BlockDevice, Content, DeviceErrorKind, DeviceInfo, Durability, Space};
use proptest::prelude::*;

const BLOCKS: u64 = 12;
const BLOCK: u64 = 512;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u8, Durability),
    Zero(u64, u64, Space, Durability),
    Trim(u64, u64, Durability),
    Flush,
    Crash,
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![Just(Durability::Flushed), Just(Durability::Durable)]
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..BLOCKS).prop_flat_map(|start| (Just(start), start + 1..=BLOCKS));
    let space = prop_oneof![Just(Space::Release), Just(Space::Keep)];
    prop_oneof![
        (range(), 1..=u8::MAX, durability()).prop_map(|((s, e), byte, d)| Op::Write(s, e, byte, d)),
        (range(), space, durability()).prop_map(|((s, e), space, d)| Op::Zero(s, e, space, d)),
        (range(), durability()).prop_map(|((s, e), d)| Op::Trim(s, e, d)),
        Just(Op::Flush),
        Just(Op::Crash),
    ]
}

/// What each block holds now, and what it holds after a crash.
type Model = Vec<(u8, u8)>;

fn apply(device: &MemDevice, model: &mut Model, op: &Op) {
    let mut set = |start: u64, end: u64, byte, durability| {
        for (now, durable) in &mut model[start as usize..end as usize] {
            *now = byte;
            if durability == Durability::Durable {
                *durable = byte;
            }
        }
    };
    match *op {
        Op::Write(start, end, byte, durability) => {
            set(start, end, byte, durability);
            let data = vec![byte; ((end - start) * BLOCK) as usize];
            device.write_at(start * BLOCK, &data, durability).unwrap();
        }
        Op::Zero(start, end, space, durability) => {
            set(start, end, 0, durability);
            let range = start * BLOCK..end * BLOCK;
            device.write_zeroes(range, space, durability).unwrap();
        }
        Op::Trim(start, end, durability) => {
            set(start, end, 0, durability);
            let range = start * BLOCK..end * BLOCK;
            device.trim(range, durability).unwrap();
        }
        Op::Flush => {
            device.flush().unwrap();
            model.iter_mut().for_each(|(now, durable)| *durable = *now);
        }
        Op::Crash => {
            device.crash();
            model.iter_mut().for_each(|(now, durable)| *now = *durable);
        }
    }
}

proptest! {
    #[test]
    fn memory_is_what_was_written(ops in prop::collection::vec(op(), 0..40)) {
        let device = MemDevice::new(BLOCKS * BLOCK, 512);
        let mut model = vec![(0, 0); BLOCKS as usize];
        for op in &ops {
            apply(&device, &mut model, op);
            let expected: Vec<u8> = model.iter().flat_map(|(now, _)| [*now; 512]).collect();
            prop_assert_eq!(device.content(), expected);
            let extents = device.extents(0..BLOCKS * BLOCK, usize::MAX).unwrap();
            let contents = extents.iter().flat_map(|e| vec![e.content; (e.len / BLOCK) as usize]);
            let contents: Vec<Content> = contents.collect();
            prop_assert_eq!(contents.len(), model.len());
            for (content, (now, _)) in contents.iter().zip(&model) {
                prop_assert_eq!(*content == Content::Data, *now != 0);
            }
        }
    }
}

#[test]
fn ranges_are_checked_before_anything_is_done() {
    let device = MemDevice::new(BLOCKS * BLOCK, 512);
    let kind = |result: Result<(), blocks::DeviceError>| result.unwrap_err().kind();
    let read = |offset, len| kind(device.read_at(offset, &mut vec![0; len]));
    assert_eq!(read(BLOCKS * BLOCK, 512), DeviceErrorKind::OutOfBounds);
    assert_eq!(read(u64::MAX - 511, 1024), DeviceErrorKind::OutOfBounds);
    assert_eq!(read(1, 512), DeviceErrorKind::Misaligned);
    assert_eq!(read(0, 100), DeviceErrorKind::Misaligned);
    let trim = |range| kind(device.trim(range, Durability::Flushed));
    assert_eq!(trim(512..512), DeviceErrorKind::OutOfBounds);
    #[expect(clippy::reversed_empty_ranges, reason = "this is what is tested")]
    let reversed = trim(1024..512);
    assert_eq!(reversed, DeviceErrorKind::OutOfBounds);
    let fixed = MemDevice::read_only(&[7; 700], 512);
    assert_eq!(fixed.info(), DeviceInfo::read_only(1024, 512));
    let wrote = fixed.write_at(0, &[1; 512], Durability::Flushed);
    assert_eq!(kind(wrote), DeviceErrorKind::ReadOnly);
    assert_eq!(fixed.content(), [[7; 700].as_slice(), &[0; 324]].concat());
}

#[test]
fn a_faulty_device_works_and_then_fails() {
    let device = Faulty::new(MemDevice::new(BLOCKS * BLOCK, 512), Fault::Busy, 2);
    device.write_at(0, &[3; 512], Durability::Durable).unwrap();
    let mut buf = [0; 512];
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [3; 512]);
    let error = device.read_at(512, &mut buf).unwrap_err();
    assert_eq!(error.kind(), DeviceErrorKind::TimedOut);
    assert_eq!(buf, [0xEE; 512], "what a failed read leaves shows");
    assert_eq!(
        error.to_string(),
        "reading on purpose in vain at byte 512: no answer in time"
    );
}
