//! Reads arbitrary bytes as frames, as they are and with heads and seals made right: no panic, no
//! memory beyond the limits, and what is read is written as the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use blockservice::wire::{BODY_MAX, DATA_MAX, Direction, Frame, HEAD_BYTES, Head, Seal};

const DIRECTIONS: [(Direction, &[u8]); 2] =
    [(Direction::ToService, b"c"), (Direction::ToClient, b"s")];

fuzz_target!(|bytes: &[u8]| {
    for (direction, letter) in DIRECTIONS {
        // Several frames, one after the other, as they come from a socket.
        let mut seal = Seal::open(direction);
        let mut rest = bytes;
        while let Some(len) = read(rest, &mut seal) {
            rest = &rest[len..];
        }
        if let Some(forged) = forge(bytes, letter)
            && read(&forged, &mut Seal::open(direction)).is_some()
        {
            let head = Head::parse(forged.first_chunk().expect("it has a head")).expect("read");
            let (body, data) = forged[HEAD_BYTES..].split_at(head.body_len());
            let mut again = Seal::open(direction);
            let frame = Frame::parse(&head, body, data.to_vec(), &mut again).expect("read before");
            let written = frame.encode(&mut Seal::open(direction));
            assert!(written == forged[..written.len()], "it is written otherwise");
        }
    }
});

/// Reads a frame, and returns its length.
fn read(bytes: &[u8], seal: &mut Seal) -> Option<usize> {
    let head = Head::parse(bytes.first_chunk()?).ok()?;
    assert!(head.body_len() <= BODY_MAX && head.data_len() <= DATA_MAX);
    let end = HEAD_BYTES + head.body_len();
    let body = bytes.get(HEAD_BYTES..end)?;
    let data = bytes.get(end..end + head.data_len())?;
    Frame::parse(&head, body, data.to_vec(), seal).ok()?;
    Some(end + data.len())
}

/// Makes a frame of any kind that a forger would: the first byte is its kind, the second says
/// whether it has data.
fn forge(bytes: &[u8], letter: &[u8]) -> Option<Vec<u8>> {
    let (&[kind, with_data], rest) = bytes.split_first_chunk::<2>()?;
    let data = match with_data % 2 {
        0 => 0,
        _ => rest.len().min(4),
    };
    let (data, body) = rest.split_at(data);
    let body = &body[..body.len().min(BODY_MAX)];
    let len = |part: &[u8]| u32::try_from(part.len()).expect("it is short").to_le_bytes();
    let mut out = b"nfbl\x01".to_vec();
    out.push(kind % 34);
    out.extend([0; 2]);
    out.extend(7_u64.to_le_bytes());
    out.extend(len(body));
    out.extend(len(data));
    let key = blake3::derive_key("nicfetch 2026 frames", letter);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&0_u64.to_le_bytes()).update(&out).update(body);
    out.extend(&hasher.finalize().as_bytes()[..8]);
    out.extend(body);
    out.extend(data);
    Some(out)
}
