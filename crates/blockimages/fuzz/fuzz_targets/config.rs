//! Decodes arbitrary bytes as overlaybd's config.v1.json: no panic, and what is decoded comes back when it was encoded.

#![no_main]

use std::path::Path;

use blockimages::DeviceConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("config.v1.json");
    if let Ok(config) = DeviceConfig::decode(bytes, path) {
        let text = serde_json::to_vec(&config).expect("it is JSON");
        let again = DeviceConfig::decode(&text, path).expect("what was encoded is valid");
        assert_eq!(again, config);
    }
});
