//! Any bytes from a service: what a keeper takes of them is a message that it would write itself,
//! names are such as a list with colons can carry, and a program is a path from the root.
#![no_main]

use fdstore::{Message, is_name};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let message = Message::parse(input);
    assert!(message.name.as_deref().is_none_or(is_name));
    assert!(message.program.as_deref().is_none_or(|path| path.has_root()));
    if message.barrier {
        let alone = Message {
            barrier: true,
            ..Message::default()
        };
        assert_eq!(message, alone);
    }
    assert_eq!(Message::parse(&message.encode()), message);
});
