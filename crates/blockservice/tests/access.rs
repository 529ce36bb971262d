//! What a virtual machine may open, and that nothing else opens a source.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use blocks::ContentId;
use blockservice::client::ClientError;
use blockservice::identity::{Access, Key};
use blockservice::service::Limits;
use blockservice::wire::{ErrorCode, Priority};
use chunks::{ChunkId, ChunkStore};
use rig::{Rig, connected, sample, until};

#[test]
fn a_virtual_machine_opens_what_it_may_and_nothing_else() {
    let mut rig = Rig::new();
    for (name, seed) in [("one", 1), ("two", 2)] {
        let sample = sample(name, seed, &*rig.store);
        rig.catalog.add(name.as_bytes(), &sample.index).unwrap();
    }
    let key = |n: u8| Key::new([n; 32]);
    let hex = |n: u8| format!("{n:02x}").repeat(32);
    let list = format!("vm1 {} one\nvm2 {} one two\n", hex(1), hex(2));
    rig.start(Access::parse(&list).unwrap(), Limits::default());

    let one = rig.client("vm1", Some(key(1)));
    connected(&one);
    assert!(one.open(b"one", None, |_| None).is_ok());
    // Forbidden and absent look the same.
    let codes = [&b"two"[..], b"three"].map(|name| match one.open(name, None, |_| None) {
        Err(ClientError::Refused { code, text }) => (code, text),
        other => panic!("{other:?}"),
    });
    assert_eq!(codes[0], codes[1]);
    assert_eq!(codes[0].0, ErrorCode::NoSource);
    let two = rig.client("vm2", Some(key(2)));
    connected(&two);
    assert!(two.open(b"two", None, |_| None).is_ok());

    // The wrong key, somebody else's name, no key at all, a name that nobody has.
    let refused = [
        rig.client("vm1", Some(key(9))),
        rig.client("vm1", Some(key(2))),
        rig.client("vm1", None),
        rig.client("vm9", Some(key(1))),
    ];
    until("all were refused", || rig.stats().refused >= 8);
    assert!(refused.iter().all(|client| !client.is_there()));
}

#[test]
fn a_wrong_index_is_refused() {
    let (rig, _) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let pinned = client.open(b"one", Some(ContentId::of(b"another")), |_| None);
    assert!(
        matches!(pinned, Err(ClientError::Wrong { .. })),
        "{pinned:?}"
    );
}

/// Everything that a client may read, it asks for by number: a hash opens nothing.
#[test]
fn a_hash_is_no_key() {
    let mut rig = Rig::new();
    let secret = sample("secret", 2, &*rig.store);
    let public = sample("public", 1, &*rig.store);
    rig.catalog.add(b"secret", &secret.index).unwrap();
    rig.catalog.add(b"public", &public.index).unwrap();
    let list = format!("vm {} public\n", "07".repeat(32));
    rig.start(Access::parse(&list).unwrap(), Limits::default());
    let client = rig.client("vm", Some(Key::new([7; 32])));
    connected(&client);
    // An index of ours that names somebody else's chunks, under a name that we may open.
    let forged = secret.index.clone();
    let wanted: ChunkId = forged.chunk(0).unwrap();
    assert!(rig.store.contains(&wanted));
    let remote = client.remote(b"public", Arc::new(forged));
    let found = remote.fetch(0..1, Priority::Demand, Duration::from_secs(20));
    assert_eq!(found, [None], "another index under this name opens nothing");
    let remote = client.remote(b"secret", Arc::new(secret.index));
    let found = remote.fetch(0..1, Priority::Demand, Duration::from_secs(20));
    assert_eq!(found, [None]);
    assert_eq!(rig.stats().chunks, 0);
}
