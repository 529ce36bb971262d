//! Random reads of 4 KiB of a layer in memory: as it is, and compressed. In CPU time of the thread, which other programs on
//! the machine disturb less.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lsmt::{
    BlobOptions, Codec, Compression, LayerInfo, LsmtError, MemoryStorage, Stack, ZFileOptions,
    open_blob, write_layer,
};
use nix::time::{ClockId, clock_gettime};

/// Bytes of the device, and of a read.
const BYTES: u64 = 16 << 20;
const READ: usize = 4096;

/// Bytes that compress to about half, as programs do.
fn content() -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let words = (0..BYTES / 16).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        [state, 0x2f62_696c_2f72_7375]
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn stack(content: &[u8], compression: Compression) -> Stack {
    let blob = Arc::new(MemoryStorage::default());
    let info = LayerInfo {
        virtual_size: BYTES,
        ..LayerInfo::default()
    };
    let options = BlobOptions {
        compression,
        ..BlobOptions::default()
    };
    let written = write_layer::<LsmtError>(&*blob, options, &info, |body| body.append(0, content));
    written.expect("a layer");
    let layer = open_blob(blob).expect("a layer");
    Stack::new(vec![layer]).expect("a stack")
}

fn reads(c: &mut Criterion) {
    let zfile = |codec| {
        Compression::ZFile(ZFileOptions {
            codec,
            ..ZFileOptions::default()
        })
    };
    let content = content();
    let mut group = c.benchmark_group("read 4 KiB");
    group.throughput(Throughput::Elements(1));
    for (name, compression) in [
        ("plain", Compression::None),
        ("LZ4", zfile(Codec::Lz4)),
        ("Zstandard", zfile(Codec::Zstd)),
    ] {
        let stack = stack(&content, compression);
        let mut buffer = vec![0; READ];
        let mut at = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|reads| {
                let start = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
                for _ in 0..reads {
                    // Each block once, in an order that no read-ahead knows.
                    at = (at + 1_657 * READ as u64) % BYTES;
                    stack.read_at(&mut buffer, at).expect("a read");
                }
                let end = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
                Duration::from(end - start)
            });
        });
    }
}

criterion_group! {
    name = reading;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = reads
}
criterion_main!(reading);
