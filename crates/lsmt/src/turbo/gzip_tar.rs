//! Random access to a gzip file, with an index.
//!
//! Decompression begins at an access point, which is at a bit of a byte and needs the 32 KiB before it.
//! Decoders support neither alone. So they are given a stream that begins with the window, as stored
//! blocks, and with empty blocks of as many bits as bring the data to its place in a byte:
//! stored data within the file is aligned to bytes, too.

use std::io;

use flate2::{Decompress, FlushDecompress, Status};
use parking_lot::Mutex;

use super::gzip_index::{AccessPoint, GzipIndex};
use crate::error::{Doing, LsmtError, Result, rule};
use crate::num::{size, wide};
use crate::storage::{ReadAt, check_range};

/// Compressed bytes that are read at once.
const INPUT_BYTES: u64 = 1 << 16;
/// Decoders that are kept to continue where a read ended: one for each of a few sequential readers.
const DECODERS: usize = 4;
/// Bytes that are decompressed and dropped at once.
const SKIP_BYTES: usize = 1 << 15;

/// The uncompressed content of a gzip file.
pub struct GzipTar<R> {
    gzip: R,
    index: GzipIndex,
    /// The latest one last.
    decoders: Mutex<Vec<Decoder>>,
}

impl<R> std::fmt::Debug for GzipTar<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GzipTar")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl<R: ReadAt> GzipTar<R> {
    /// Wraps a gzip file and its index.
    ///
    /// # Errors
    ///
    /// Fails if the index is of a file of another length.
    pub fn open(gzip: R, index: GzipIndex) -> Result<Self> {
        if gzip.size().doing("get the size of a gzip file")? != index.gzip_size() {
            return rule("gzip index", "it is that of a file of another length");
        }
        Ok(Self {
            gzip,
            index,
            decoders: Mutex::default(),
        })
    }

    /// Reads uncompressed bytes.
    ///
    /// # Errors
    ///
    /// Fails if they are not within the file, cannot be read, or are damaged. A gzip file has a
    /// checksum of the whole only: not all damage is found.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        check_range(offset, buffer.len(), self.index.uncompressed_size())?;
        let (point, _) = match self.index.point_for(offset) {
            Some(found) => found,
            None if buffer.is_empty() => return Ok(()),
            None => return rule("gzip index", "no access point is before the data"),
        };
        let mut decoder = match self.kept(offset, point.uncompressed) {
            Some(decoder) => decoder,
            None => self.begin(&point)?,
        };
        let mut skipped = [0; SKIP_BYTES];
        while decoder.at < offset {
            let len = size(offset - decoder.at).min(SKIP_BYTES);
            self.decompress(&mut decoder, &mut skipped[..len])?;
        }
        self.decompress(&mut decoder, buffer)?;
        let mut decoders = self.decoders.lock();
        if decoders.len() == DECODERS {
            decoders.remove(0);
        }
        decoders.push(decoder);
        Ok(())
    }

    /// Takes a decoder that is nearer than the access point.
    fn kept(&self, offset: u64, point: u64) -> Option<Decoder> {
        let mut decoders = self.decoders.lock();
        let near = |decoder: &&Decoder| point <= decoder.at && decoder.at <= offset;
        let nearest = decoders
            .iter()
            .filter(near)
            .map(|decoder| decoder.at)
            .max()?;
        let place = decoders.iter().position(|decoder| decoder.at == nearest)?;
        Some(decoders.remove(place))
    }

    fn begin(&self, point: &AccessPoint) -> Result<Decoder> {
        let window = self.index.window(point)?;
        let mut before = 0;
        if point.bits > 0 {
            let mut byte = [0];
            self.gzip
                .read_at(&mut byte, point.compressed - 1)
                .doing("read a gzip file")?;
            before = byte[0] >> (8 - point.bits);
        }
        let mut decoder = Decoder {
            inflate: Decompress::new(false),
            input: preamble(&window, point.bits, before),
            used: 0,
            compressed: point.compressed,
            at: point.uncompressed - wide(window.len()).min(point.uncompressed),
        };
        let mut skipped = vec![0; window.len()];
        self.decompress(&mut decoder, &mut skipped)?;
        decoder.at = point.uncompressed;
        Ok(decoder)
    }

    /// Fills the buffer with what comes next.
    fn decompress(&self, decoder: &mut Decoder, buffer: &mut [u8]) -> Result<()> {
        let part = "gzip file";
        let mut done = 0;
        while done < buffer.len() {
            if decoder.used == decoder.input.len() {
                let left = self.index.gzip_size() - decoder.compressed;
                decoder.input.resize(size(left.min(INPUT_BYTES)), 0);
                self.gzip
                    .read_at(&mut decoder.input, decoder.compressed)
                    .doing("read a gzip file")?;
                decoder.compressed += wide(decoder.input.len());
                decoder.used = 0;
            }
            let before = (decoder.inflate.total_in(), decoder.inflate.total_out());
            let status = decoder.inflate.decompress(
                &decoder.input[decoder.used..],
                &mut buffer[done..],
                FlushDecompress::None,
            );
            let (read, written) = (
                decoder.inflate.total_in() - before.0,
                decoder.inflate.total_out() - before.1,
            );
            decoder.used += size(read);
            done += size(written);
            let stuck = read == 0 && written == 0;
            let ended = matches!(status, Ok(Status::StreamEnd)) && done < buffer.len();
            if status.is_err() || stuck || ended {
                return Err(LsmtError::Compression {
                    part,
                    at: decoder.compressed,
                });
            }
        }
        decoder.at += wide(done);
        Ok(())
    }
}

impl<R: ReadAt> ReadAt for GzipTar<R> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.index.uncompressed_size())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        Ok(self.read(buffer, offset)?)
    }
}

/// A decoder in the middle of the file.
struct Decoder {
    inflate: Decompress,
    input: Vec<u8>,
    used: usize,
    /// The compressed byte behind the input.
    compressed: u64,
    /// The uncompressed byte that comes next.
    at: u64,
}

/// Returns what a decoder reads before the first whole byte of the data: the window, stored, then
/// empty blocks, then `bits` bits of data.
fn preamble(window: &[u8], bits: u8, data: u8) -> Vec<u8> {
    let mut stream = Bits::default();
    let len = u16::try_from(window.len()).unwrap_or(u16::MAX);
    if len > 0 {
        // Not the last block, stored; the rest of the byte is skipped.
        stream.bytes.push(0);
        stream.bytes.extend(len.to_le_bytes());
        stream.bytes.extend((!len).to_le_bytes());
        stream.bytes.extend(window);
    }
    let missing = (8 - u32::from(bits)) % 8;
    if missing % 2 == 1 {
        empty_dynamic_block(&mut stream);
    }
    while stream.count % 8 != missing {
        // Not the last block, fixed codes, and at once its end: 10 bits.
        stream.push(0b010, 3);
        stream.push(0, 7);
    }
    stream.push(data.into(), bits.into());
    stream.bytes
}

/// Appends an empty block with codes of its own, which has 91 bits: an odd number.
fn empty_dynamic_block(stream: &mut Bits) {
    // Not the last block, codes of its own: 257 literals, 1 distance, 18 lengths of lengths.
    stream.push(0b100, 3);
    stream.push(0, 5);
    stream.push(0, 5);
    stream.push(14, 4);
    // In the format's order: 16 17 18 0 8 7 9 6 10 5 11 4 12 3 13 2 14 1. The lengths in use are 18
    // (a run of zeros) and 1, each with a code of one bit: "1" is 0, "18" is 1.
    for place in 0..18 {
        stream.push(u32::from(matches!(place, 2 | 17)), 3);
    }
    // Literal 0 has one bit, the next 138 and 117 have none, the end of the block has one.
    stream.push(0, 1);
    stream.push(1, 1);
    stream.push(138 - 11, 7);
    stream.push(1, 1);
    stream.push(117 - 11, 7);
    stream.push(0, 1);
    // So has the distance.
    stream.push(0, 1);
    // The end of the block is the second of the two codes.
    stream.push(1, 1);
}

/// A stream of bits, the lowest of each byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    /// Bits behind the whole bytes that came first.
    count: u32,
}

impl Bits {
    fn push(&mut self, value: u32, bits: u32) {
        for bit in 0..bits {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let place = self.count % 8;
            if let Some(last) = self.bytes.last_mut() {
                *last |= u8::from(value >> bit & 1 == 1) << place;
            }
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    /// Data whose first bits are in another byte, for each number of bits; some of it is stored.
    #[test]
    fn data_may_begin_at_any_bit() {
        let window: Vec<u8> = (0..40_000_u32)
            .map(|n| u8::try_from(n % 251).unwrap())
            .collect();
        for level in [Compression::none(), Compression::best()] {
            let mut encoder = DeflateEncoder::new(Vec::new(), level);
            encoder.write_all(&window).unwrap();
            let data = encoder.finish().unwrap();
            for empty in 0..8 {
                // A file that begins with empty blocks of 10 bits, and of 91.
                let mut file = Bits::default();
                if empty % 2 == 1 {
                    empty_dynamic_block(&mut file);
                }
                for _ in 0..empty / 2 {
                    file.push(0b010, 10);
                }
                let at = file.count;
                if level == Compression::none() && at % 8 != 0 {
                    // What is stored is aligned: only the block's header can be at any bit.
                    continue;
                }
                for byte in &data {
                    file.push((*byte).into(), 8);
                }
                let bits = (8 - at % 8) % 8;
                let whole = usize::try_from(at.div_ceil(8)).unwrap();
                let first = match bits {
                    0 => 0,
                    _ => file.bytes[whole - 1] >> (8 - bits),
                };
                let mut stream = preamble(&window[..100], u8::try_from(bits).unwrap(), first);
                stream.extend(&file.bytes[whole..]);
                let mut out = vec![0; window.len() + 100];
                let mut inflate = Decompress::new(false);
                inflate
                    .decompress(&stream, &mut out, FlushDecompress::Finish)
                    .unwrap();
                assert_eq!(out[..100], window[..100]);
                assert_eq!(out[100..], window, "{bits} bits");
            }
        }
    }
}
