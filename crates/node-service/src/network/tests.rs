//! Caches that change hands, which takes root.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;

use super::*;

const WORKER: Identity = Identity {
    uid: Uid::from_raw(65534),
    gid: Gid::from_raw(65534),
};

fn spec(nic: &serde_json::Value) -> MountSpec {
    let spec = serde_json::json!({
        "source": "nic:web", "mountpoint": "/mnt", "store": "/store", "nic": nic,
    });
    serde_json::from_value(spec).unwrap()
}

fn owner(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().uid()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn privileged_a_cache_changes_hands_and_nothing_outside_does() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for name in ["file", "linked"] {
        fs::write(outside.join(name), "").unwrap();
    }
    let cache = dir.path().join("cache");
    let segments = cache.join("chunks/segments");
    fs::create_dir_all(&segments).unwrap();
    fs::write(segments.join("1"), "").unwrap();
    symlink(outside.join("file"), segments.join("link")).unwrap();
    symlink(&outside, cache.join("chunks/dir")).unwrap();
    fs::hard_link(outside.join("linked"), segments.join("second name")).unwrap();

    let spec = spec(&serde_json::json!({"address": "nic:5052", "cache": cache}));
    let nic = spec.nic.as_ref().unwrap();
    let worker = NetworkWorker::of(&spec, Some(WORKER)).unwrap();
    assert_eq!(worker.identity(), Some(WORKER));
    // The other one is root's, as where workers have no user of their own.
    let root = NetworkWorker {
        user: None,
        ..worker.clone()
    };
    for (who, uid) in [
        (&worker, 65534),
        (&worker, 65534),
        (&root, 0),
        (&worker, 65534),
    ] {
        who.give_cache(nic, Some(WORKER)).unwrap();
        for given in ["chunks", "chunks/segments", "chunks/segments/1", "sources"] {
            assert_eq!(owner(&cache.join(given)), uid, "{given}");
        }
        for closed in ["chunks", "sources"] {
            assert_eq!(mode(&cache.join(closed)), 0o700, "{closed}");
        }
        // As an earlier release left it.
        fs::set_permissions(cache.join("chunks"), Permissions::from_mode(0o755)).unwrap();
        for kept in ["file", "linked"] {
            assert_eq!(owner(&outside.join(kept)), 0, "{kept}");
        }
        for kept in [&outside, &cache] {
            assert_eq!(owner(kept), 0, "{}", kept.display());
        }
    }
    // Nobody else's is taken.
    chown(cache.join("chunks"), Some(12_345), None).unwrap();
    let why = format!("{:#}", worker.give_cache(nic, Some(WORKER)).unwrap_err());
    assert!(why.contains("user 12345's"), "{why}");
    // And no directory that somebody has put there by a link.
    fs::remove_dir_all(cache.join("chunks")).unwrap();
    symlink(&outside, cache.join("chunks")).unwrap();
    lchown(cache.join("chunks"), Some(65534), None).unwrap();
    worker.give_cache(nic, Some(WORKER)).unwrap_err();
    assert_eq!(owner(&outside), 0);
}

#[test]
fn a_worker_has_its_user_and_the_node_connects_for_it_to_a_socket_in_the_file_system() {
    let of = |address: &str| {
        let spec = spec(&serde_json::json!({ "address": address }));
        let worker = NetworkWorker::of(&spec, Some(WORKER)).unwrap();
        assert_eq!(worker.user, Some((65534, 65534)));
        worker.connections()
    };
    assert_eq!(of("unix:/nobody/listens"), Connections::ByNode);
    assert_eq!(of("nic:5052"), Connections::Own);
}

#[test]
fn what_a_node_of_an_earlier_release_tells_is_understood() {
    let told = r#"{"user": null, "needs": {"reads": [], "writes": [], "ports": [], "socket": "/s"}, "disk": false}"#;
    let told: NetworkWorker = serde_json::from_str(told).unwrap();
    assert_eq!(told.connections(), Connections::Own);
}

#[test]
fn what_is_told_arrives() {
    let spec = spec(&serde_json::json!({"address": "nic:5052", "key": "/key"}));
    let told = NetworkWorker::of(&spec, Some(WORKER)).unwrap();
    let (name, text) = told.variable().unwrap();
    assert_eq!(name, NETWORK_ENV);
    let text = text.to_str().unwrap();
    assert_eq!(serde_json::from_str::<NetworkWorker>(text).unwrap(), told);
    assert!(!told.disk);
}
