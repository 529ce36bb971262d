//! Any bytes as what `docker login` left: an error, or logins that go to no other registry than the one
//! that they are of, and helpers whose names lead to no other directory.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use oci::registry::{DockerConfig, Known, helper_answer};
use serde_json::Value;

const REGISTRIES: [&str; 5] = ["docker.io", "r.io", "r.io:5000", "localhost", "a"];

fuzz_target!(|bytes: &[u8]| {
    let _ = helper_answer(bytes);
    let Ok(config) = DockerConfig::decode(bytes) else {
        return;
    };
    // What is not looked at may be no text: then there is nothing to compare with.
    let all = serde_json::from_slice::<BTreeMap<String, Value>>(bytes).ok();
    let auths = all.as_ref().map(|all| all.get("auths").and_then(Value::as_object));
    for registry in REGISTRIES {
        match config.find(registry) {
            Known::Here(login) => {
                // It goes into a header, and has to come out of it as it was.
                let header = distribution::basic(&login.username, &login.password);
                let pair = distribution::parse_basic(&header);
                assert_eq!(pair, Some((login.username, login.password)));
                if let Some(auths) = auths {
                    let mut keys = auths.into_iter().flat_map(|auths| auths.keys());
                    assert!(keys.any(|key| key.contains(registry)), "{registry}");
                }
            }
            Known::Helper { name, server } => {
                assert!(!name.is_empty() && !name.contains(['/', '\0']), "{name:?}");
                assert!(server.contains(registry), "{server} for {registry}");
            }
            Known::Nowhere => {}
        }
    }
});
