//! Decompresses deflate, and reports where its blocks begin: places from which a decoder can continue with the
//! 32 KiB before. Libraries do not report them.

use std::io::{self, Read};

use super::gzip_index::WINDOW_BYTES;
use crate::num::size;

/// Bits of the longest code.
const CODE_BITS: usize = 15;
/// The order in which the lengths of the code lengths come.
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];
const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const LENGTH_BITS: [u8; 29] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];
const DISTANCE_BASE: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
    2049, 3073, 4097, 6145, 8193, 12_289, 16_385, 24_577,
];
const DISTANCE_BITS: [u8; 30] = [
    0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13,
    13,
];
const BUFFER_BYTES: usize = 64 << 10;

/// Where a block begins, or the data ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boundary {
    /// Uncompressed bytes before it.
    pub(super) uncompressed: u64,
    /// The first compressed byte that is whole.
    pub(super) compressed: u64,
    /// Bits of the byte before it that belong to the data.
    pub(super) bits: u8,
}

/// A decoder of one stream.
pub(super) struct Inflate<R> {
    input: Input<R>,
    /// The last bytes, around a ring.
    window: Vec<u8>,
    written: u64,
}

fn damaged(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<R: Read> Inflate<R> {
    /// Begins to read a stream whose first byte is at offset `at` of its file.
    pub(super) fn new(reader: R, at: u64) -> Self {
        Self {
            input: Input {
                reader,
                buffer: vec![0; BUFFER_BYTES],
                used: 0,
                filled: 0,
                taken: at,
                bits: 0,
                count: 0,
            },
            window: vec![0; WINDOW_BYTES],
            written: 0,
        }
    }

    /// Returns where the next block begins.
    pub(super) fn boundary(&self) -> Boundary {
        // Whole bytes that were taken ahead do not count.
        let whole = u64::from(self.input.count / 8);
        let bits = u8::try_from(self.input.count % 8).unwrap_or(0);
        Boundary {
            uncompressed: self.written,
            compressed: self.input.taken - whole,
            bits,
        }
    }

    /// Returns the 32 KiB before the next byte; zeros where nothing was.
    pub(super) fn window(&self) -> Vec<u8> {
        let at = self.place(self.written);
        [&self.window[at..], &self.window[..at]].concat()
    }

    /// Decompresses a block; returns whether it was the last one.
    pub(super) fn block(&mut self) -> io::Result<bool> {
        let last = self.input.take(1)? == 1;
        match self.input.take(2)? {
            0 => self.stored()?,
            1 => {
                let (literals, distances) = fixed()?;
                self.codes(&literals, &distances)?;
            }
            2 => {
                let (literals, distances) = self.dynamic()?;
                self.codes(&literals, &distances)?;
            }
            _ => return Err(damaged("a block of an unknown kind")),
        }
        Ok(last)
    }

    /// Returns the reader's bytes behind the data, from the next whole byte on.
    pub(super) fn rest(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.input.align();
        for byte in bytes {
            *byte = u8::try_from(self.input.take(8)?).unwrap_or(0);
        }
        Ok(())
    }

    /// Returns whether the file ends here.
    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.input.count < 8 && !self.input.more()?)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below 32 Ki"
    )]
    const fn place(&self, at: u64) -> usize {
        (at % WINDOW_BYTES as u64) as usize
    }

    fn write(&mut self, byte: u8) {
        let at = self.place(self.written);
        self.window[at] = byte;
        self.written += 1;
    }

    fn stored(&mut self) -> io::Result<()> {
        let mut head = [0; 4];
        self.rest(&mut head)?;
        let (len, not) = (
            u16::from_le_bytes([head[0], head[1]]),
            u16::from_le_bytes([head[2], head[3]]),
        );
        if len != !not {
            return Err(damaged("the length of a stored block"));
        }
        for _ in 0..len {
            let byte = self.input.take(8)?;
            self.write(u8::try_from(byte).unwrap_or(0));
        }
        Ok(())
    }

    fn dynamic(&mut self) -> io::Result<(Codes, Codes)> {
        let literals = self.input.take(5)? as usize + 257;
        let distances = self.input.take(5)? as usize + 1;
        let count = self.input.take(4)? as usize + 4;
        let mut lengths = [0; 19];
        for place in &ORDER[..count] {
            lengths[*place] = u8::try_from(self.input.take(3)?).unwrap_or(0);
        }
        let codes = Codes::new(&lengths)?;
        let total = literals + distances;
        let mut lengths: Vec<u8> = Vec::with_capacity(total);
        while lengths.len() < total {
            let (value, times) = match codes.next(&mut self.input)? {
                symbol @ 0..=15 => (u8::try_from(symbol).unwrap_or(0), 1),
                16 => {
                    let before = lengths.last().copied();
                    let before = before.ok_or_else(|| damaged("a length that repeats nothing"))?;
                    (before, 3 + self.input.take(2)?)
                }
                17 => (0, 3 + self.input.take(3)?),
                _ => (0, 11 + self.input.take(7)?),
            };
            let end = lengths.len() + times as usize;
            if end > total {
                return Err(damaged("more lengths than codes"));
            }
            lengths.resize(end, value);
        }
        let (literals, distances) = lengths.split_at(literals);
        Ok((Codes::new(literals)?, Codes::new(distances)?))
    }

    fn codes(&mut self, literals: &Codes, distances: &Codes) -> io::Result<()> {
        loop {
            let symbol = literals.next(&mut self.input)?;
            if let Ok(byte) = u8::try_from(symbol) {
                self.write(byte);
                continue;
            }
            if symbol == 256 {
                return Ok(());
            }
            let long = usize::from(symbol) - 257;
            let base = LENGTH_BASE.get(long).copied();
            let base = base.ok_or_else(|| damaged("a length of no code"))?;
            let len = u32::from(base) + self.input.take(LENGTH_BITS[long].into())?;
            let far = usize::from(distances.next(&mut self.input)?);
            let base = DISTANCE_BASE.get(far).copied();
            let base = base.ok_or_else(|| damaged("a distance of no code"))?;
            let distance = u32::from(base) + self.input.take(DISTANCE_BITS[far].into())?;
            if u64::from(distance) > self.written {
                return Err(damaged("a distance to before the beginning"));
            }
            for _ in 0..len {
                let from = self.place(self.written - u64::from(distance));
                self.write(self.window[from]);
            }
        }
    }
}

fn fixed() -> io::Result<(Codes, Codes)> {
    let mut lengths = [8; 288];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    Ok((Codes::new(&lengths)?, Codes::new(&[5; 30])?))
}

/// Codes of one kind: a table of all that the next bits can be.
struct Codes {
    /// Symbol, and in the highest bits the length of its code; zero for an invalid code.
    table: Vec<u16>,
    bits: u32,
}

/// Bits of an entry that have the symbol: there are 288 at most.
const SYMBOL_BITS: u32 = 9;

impl Codes {
    fn new(lengths: &[u8]) -> io::Result<Self> {
        let mut counts = [0_u32; CODE_BITS + 1];
        for len in lengths {
            counts[usize::from(*len)] += 1;
        }
        counts[0] = 0;
        let mut next = [0_u32; CODE_BITS + 2];
        let mut left = 1_i64;
        for bits in 1..=CODE_BITS {
            left = left * 2 - i64::from(counts[bits]);
            if left < 0 {
                return Err(damaged("more codes than bits"));
            }
            next[bits + 1] = (next[bits] + counts[bits]) << 1;
        }
        let longest = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        let mut table = vec![0; 1 << longest];
        for (symbol, len) in (0_u16..).zip(lengths) {
            let len = usize::from(*len);
            if len == 0 {
                continue;
            }
            // Codes come with their highest bit first.
            let code = next[len].reverse_bits() >> (32 - len);
            next[len] += 1;
            let entry = u16::try_from(len).unwrap_or(0) << SYMBOL_BITS | symbol;
            for place in (code as usize..table.len()).step_by(1 << len) {
                table[place] = entry;
            }
        }
        Ok(Self {
            table,
            bits: u32::try_from(longest).unwrap_or(0),
        })
    }

    fn next<R: Read>(&self, input: &mut Input<R>) -> io::Result<u16> {
        let ahead = input.peek(self.bits)?;
        let entry = self.table[size(ahead)];
        let len = u32::from(entry >> SYMBOL_BITS);
        if len == 0 || len > input.count {
            return Err(damaged("bits that are no code"));
        }
        input.drop_bits(len);
        Ok(entry & ((1 << SYMBOL_BITS) - 1))
    }
}

/// The compressed bytes, bit by bit, the lowest of each byte first.
struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    /// Bytes of the file up to the last one whose bits were used.
    taken: u64,
    bits: u64,
    count: u32,
}

impl<R: Read> Input<R> {
    /// Reads more if nothing is buffered; returns whether there is something.
    fn more(&mut self) -> io::Result<bool> {
        while self.used == self.filled {
            match self.reader.read(&mut self.buffer) {
                Ok(0) => return Ok(false),
                Ok(len) => (self.used, self.filled) = (0, len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns the next bits, zeros behind the end, and leaves them there.
    fn peek(&mut self, bits: u32) -> io::Result<u64> {
        while self.count < bits && self.more()? {
            self.bits |= u64::from(self.buffer[self.used]) << self.count;
            self.used += 1;
            self.taken += 1;
            self.count += 8;
        }
        Ok(self.bits & ((1 << bits) - 1))
    }

    const fn drop_bits(&mut self, bits: u32) {
        self.bits >>= bits;
        self.count -= bits;
    }

    fn take(&mut self, bits: u32) -> io::Result<u32> {
        let found = self.peek(bits)?;
        if self.count < bits {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.drop_bits(bits);
        Ok(u32::try_from(found).unwrap_or(0))
    }

    /// Skips to the next whole byte.
    const fn align(&mut self) {
        self.drop_bits(self.count % 8);
    }
}
