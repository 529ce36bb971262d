//! Serves arbitrary bytes as what an NBD client sends, from the first byte on or after a handshake that is right: the
//! server ends when they end, and nothing panics.

#![no_main]

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use blockexport::nbd::{NbdConfig, serve_client};
use blocks::testing::MemDevice;
use libfuzzer_sys::fuzz_target;

/// The flags of a client, structured replies, the metadata of allocation, and the export `disk`.
const HANDSHAKE: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0\
IHAVEOPT\0\0\0\x0a\0\0\0\x1f\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation\
IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0";

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    let (mut client, server) = UnixStream::pair().expect("a pair");
    let config = NbdConfig {
        threads: 2,
        ..NbdConfig::default()
    };
    let mut replies = client.try_clone().expect("a descriptor");
    let reader = std::thread::spawn(move || {
        let mut count = 0;
        let mut buffer = [0; 4096];
        while let Ok(more @ 1..) = replies.read(&mut buffer) {
            count += more;
        }
        count
    });
    let sent = match choice % 2 {
        0 => bytes.to_vec(),
        _ => [HANDSHAKE, bytes].concat(),
    };
    let writer = std::thread::spawn(move || {
        // It fails when the server has left.
        drop(client.write_all(&sent));
        drop(client.shutdown(Shutdown::Write));
    });
    let device = Arc::new(MemDevice::new(1 << 16, 512));
    drop(serve_client(server, device, &config));
    writer.join().expect("it does not panic");
    let told = reader.join().expect("it does not panic");
    assert!(told >= 18, "it greets everybody");
});
