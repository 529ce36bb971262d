//! Any text as a log: an error, or a valid trace.
#![no_main]

use blocks::{FileId, Version};
use libfuzzer_sys::fuzz_target;
use tracer::import::{self, BlkparseOptions, Disk};
use tracer::{TraceInfo, TracedFile};

fuzz_target!(|text: &[u8]| {
    let disk = Disk {
        info: TraceInfo::default(),
        file: TracedFile {
            file: FileId(1),
            version: Version {
                size: 1 << 40,
                ..Version::default()
            },
            path: b"disk".to_vec(),
        },
    };
    let imports = [
        import::qemu(text, &disk),
        import::blkparse(text, &disk, &BlkparseOptions { first_sector: 2048 }),
    ];
    for imported in imports.into_iter().flatten() {
        assert_eq!(imported.trace.check(), Ok(()));
    }
});
