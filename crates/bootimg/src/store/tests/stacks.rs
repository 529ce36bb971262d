//! Container images in a store.

use blocks::Digest;

use super::*;
use crate::{Stack, layer_name, place_name};

fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

pub(super) fn stack(reference: &str, image: u8, layers: &[u8]) -> Stack {
    Stack {
        reference: reference.to_owned(),
        image: digest(image),
        manifest: None,
        layers: layers.iter().map(|byte| digest(*byte)).collect(),
        recorded_at: 1,
        ready_ms: Vec::new(),
        command: Vec::new(),
    }
}

#[test]
fn stacks_are_found_by_reference_and_by_digest() {
    let (dir, store) = fresh();
    let nginx = stack("docker.io/library/nginx:1", 1, &[10, 11]);
    let latest = stack("docker.io/library/nginx:latest", 1, &[10, 11]);
    let redis = stack("docker.io/library/redis:7", 2, &[10, 12]);
    for stack in [&redis, &latest, &nginx] {
        store.put_stack(stack).unwrap();
    }
    let all = store.stacks().unwrap();
    assert_eq!(all, [nginx.clone(), latest, redis.clone()]);
    assert_eq!(store.find_stack(&nginx.reference).unwrap(), nginx);
    let by_digest = store.find_stack(&digest(2).to_string()).unwrap();
    assert_eq!(by_digest, redis);
    assert_eq!(store.find_stack("020202020202").unwrap(), redis);
    // Two references of one image are one image.
    assert_eq!(store.find_stack("010101010101").unwrap().image, nginx.image);
    for missing in ["nginx", "02020202020", "", "sha256:"] {
        let found = store.find_stack(missing);
        assert!(
            matches!(found, Err(StoreError::NotFound { .. })),
            "{missing}"
        );
    }
    let mut close = stack("close", 0, &[1]);
    close.image.0 = [2; 32];
    close.image.0[31] = 3;
    store.put_stack(&close).unwrap();
    let found = store.find_stack("020202020202");
    assert!(matches!(found, Err(StoreError::Ambiguous { count: 2, .. })));
    // Damaged descriptions do not hide the others.
    let path = store.places.stack(&redis.reference);
    assert!(path.starts_with(dir.path()));
    fs::write(path, "{").unwrap();
    assert_eq!(store.stacks().unwrap().len(), 3);
    assert!(matches!(
        store.find_stack(&redis.reference),
        Err(StoreError::Stack { .. })
    ));
}

#[test]
fn recording_an_image_again_replaces_what_was_known() {
    let (_dir, store) = fresh();
    store.put_stack(&stack("nginx", 1, &[1, 2])).unwrap();
    let newer = stack("nginx", 7, &[1, 3]);
    store.put_stack(&newer).unwrap();
    assert_eq!(store.stacks().unwrap(), [newer]);
}

#[test]
fn a_layer_has_an_image_of_its_own_and_one_for_each_place() {
    let (_dir, store) = fresh();
    let layer = digest(1);
    assert_eq!(store.layer(&layer).unwrap(), None);
    let (here, there) = (SourceId::of_label(b"here"), SourceId::of_label(b"there"));
    let first = add(&store, &Sample::other(0), &layer_name(&layer)).id;
    store.name(&first, &place_name(&layer, here)).unwrap();
    let second = add(&store, &Sample::other(1), &place_name(&layer, there)).id;
    assert_eq!(store.layer(&layer).unwrap(), Some(first));
    assert_eq!(store.layer_at(&layer, here).unwrap(), Some(first));
    assert_eq!(store.layer_at(&layer, there).unwrap(), Some(second));
    store.remove(&second).unwrap();
    assert_eq!(store.layer_at(&layer, there).unwrap(), None);
    // A name that leads to an image that is gone leads nowhere.
    fs::remove_file(store.places.image(&first)).unwrap();
    assert_eq!(store.layer(&layer).unwrap(), None);
    let renamed = store.name(&first, "other");
    assert!(matches!(renamed, Err(StoreError::NotFound { .. })));
}

#[test]
fn a_hint_about_a_layer_is_never_taken_for_a_recording_of_the_source_that_it_names() {
    let (_dir, store) = fresh();
    let layer = digest(1);
    // As pulled from a registry: it claims to be of a directory here.
    let forged = Sample::other(0);
    let id = add(&store, &forged, &layer_name(&layer)).id;
    assert_eq!(store.find_source(forged.info.id).unwrap(), None);
    assert_eq!(store.layer(&layer).unwrap(), Some(id));
    // Recorded here it has a name that says so.
    let place = place_name(&layer, forged.info.id);
    store.name(&id, &place).unwrap();
    assert_eq!(store.find_source(forged.info.id).unwrap(), Some(id));
}

#[test]
fn removing_a_stack_gives_up_the_layers_that_no_other_has() {
    let (_dir, store) = fresh();
    for byte in [1, 2, 3] {
        let sample = Sample::other(u64::from(byte));
        let id = add(&store, &sample, &layer_name(&digest(byte))).id;
        let place = place_name(&digest(byte), SourceId::of_label(&[byte]));
        store.name(&id, &place).unwrap();
    }
    store.put_stack(&stack("a", 1, &[1, 2])).unwrap();
    store.put_stack(&stack("b", 2, &[1, 3])).unwrap();
    assert_eq!(store.remove_stack("a").unwrap(), [digest(2)]);
    let left = |byte| store.layer(&digest(byte)).unwrap().is_some();
    assert_eq!([left(1), left(2), left(3)], [true, false, true]);
    // They are not listed without a name until the next gc.
    assert_eq!(store.list().unwrap().len(), 2);
    // One that is pinned, or has another name, was not kept for the container image alone.
    let first = store.layer(&digest(1)).unwrap().unwrap();
    store.pin(&first).unwrap();
    let third = store.layer(&digest(3)).unwrap().unwrap();
    store.name(&third, "mine").unwrap();
    assert_eq!(store.remove_stack("b").unwrap(), [digest(1), digest(3)]);
    let left = store.list().unwrap();
    let left: BTreeSet<_> = left.iter().map(|image| image.info.id).collect();
    assert_eq!(left, BTreeSet::from([first, third]));
    store.remove(&first).unwrap();
    store.remove(&third).unwrap();
    let again = store.remove_stack("b");
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
}
