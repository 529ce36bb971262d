//! The registry protocol against real registries, and against a proxy that treats it badly.

// Needs no root, but docker-registry, skopeo, htpasswd, openssl and olareg.
#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::ops::ControlFlow;

use blocks::Digest;
use oci::registry::{
    Access, Credentials, Linked, RegistryConfig, RegistryError, Repository, Target, Transport,
};
use oci::{Descriptor, Manifest, Platform, Reference, digest_of};
use serde_json::json;
use testkit::layouts;
use testkit::layouts::{LayoutDir, layer, named, run};
use testkit::registries::{Kind, Proxy, Registry, USER};

const TYPE: &str = "application/vnd.example.test.v1";

fn go(_done: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn plain() -> RegistryConfig {
    RegistryConfig {
        transport: Transport::Plain,
        ..RegistryConfig::default()
    }
}

fn repository(host: &str, config: &RegistryConfig) -> Repository {
    let reference: Reference = format!("{host}/some/app:1").parse().unwrap();
    Repository::open(&reference, Access::Push, config).unwrap()
}

fn tag(tag: &str) -> Target {
    Target::Tag(tag.to_owned())
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: digest_of(bytes),
        size: bytes.len() as u64,
        artifact_type: None,
        annotations: BTreeMap::new(),
        platform: None,
    }
}

/// An artifact of one blob about a manifest.
fn artifact(repository: &Repository, subject: &Descriptor, blob: &[u8]) -> Manifest {
    let config = b"{}";
    repository
        .push_blob(digest_of(config), 2, Cursor::new(config), &mut go)
        .unwrap();
    repository
        .push_blob(
            digest_of(blob),
            blob.len() as u64,
            Cursor::new(blob),
            &mut go,
        )
        .unwrap();
    Manifest {
        schema_version: 2,
        media_type: layouts::MANIFEST.to_owned(),
        artifact_type: Some(TYPE.to_owned()),
        config: descriptor("application/vnd.oci.empty.v1+json", config),
        layers: vec![descriptor("application/octet-stream", blob)],
        subject: Some(subject.clone()),
        annotations: BTreeMap::new(),
    }
}

/// Pushes an image with skopeo, as people do, and returns what the registry made of it.
fn push_image(registry: &Registry) -> Descriptor {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir(dir.path());
    layout.start();
    let layers = [layer(&[("a", b"1")]), layer(&[("b", b"2")])];
    layout.index(&[named(layout.image(&layers, &json!({})), "1")]);
    let from = format!("oci:{}:1", dir.path().display());
    let to = format!("docker://{}/some/app:1", registry.host());
    run(
        "skopeo",
        &[
            "--insecure-policy",
            "copy",
            "--dest-tls-verify=false",
            &from,
            &to,
        ],
    );
    let found = repository(&registry.host(), &plain()).image(&tag("1"), &amd64(), &mut go);
    let (found, manifest) = found.unwrap().unwrap();
    assert_eq!(manifest.layers.len(), 2);
    descriptor(layouts::MANIFEST, &found.bytes)
}

fn amd64() -> Platform {
    Platform {
        architecture: "amd64".to_owned(),
        os: "linux".to_owned(),
        variant: None,
    }
}

fn artifacts_are_found(kind: Kind, expected: Linked) {
    let registry = Registry::start(kind);
    let repository = repository(&registry.host(), &plain());
    let subject = push_image(&registry);
    assert_eq!(
        repository.referrers(subject.digest, TYPE, &mut go).unwrap(),
        []
    );
    let mut pushed: Vec<Digest> = Vec::new();
    for blob in [&b"one"[..], b"two", b"two"] {
        let manifest = artifact(&repository, &subject, blob);
        let done = repository.push_artifact(&manifest, &mut go).unwrap();
        assert_eq!(done.linked, expected);
        pushed.push(done.digest);
    }
    let found = repository.referrers(subject.digest, TYPE, &mut go).unwrap();
    let mut found: Vec<_> = found.iter().map(|entry| entry.digest).collect();
    found.sort();
    pushed.sort();
    pushed.dedup();
    assert_eq!((found, pushed.len()), (pushed, 2));
    assert_eq!(
        repository
            .referrers(subject.digest, "application/other", &mut go)
            .unwrap(),
        []
    );
    let nobody = repository.referrers(digest_of(b"nobody"), TYPE, &mut go);
    assert_eq!(nobody.unwrap(), []);
}

#[test]
fn artifacts_are_found_by_tag_where_there_is_no_api() {
    artifacts_are_found(Kind::Docker, Linked::ByTag);
}

#[test]
fn artifacts_are_found_by_the_referrers_api() {
    artifacts_are_found(Kind::Olareg, Linked::ByRegistry);
}

#[test]
fn what_is_not_there_is_a_miss() {
    let registry = Registry::start(Kind::Docker);
    let repository = repository(&registry.host(), &plain());
    assert_eq!(repository.manifest(&tag("none"), &mut go).unwrap(), None);
    let digest = digest_of(b"none");
    assert_eq!(
        repository
            .manifest(&Target::Digest(digest), &mut go)
            .unwrap(),
        None
    );
    assert!(!repository.has_blob(digest, &mut go).unwrap());
    assert_eq!(repository.blob_size(digest, &mut go).unwrap(), None);
}

#[test]
fn blobs_of_any_length_go_up_and_come_back() {
    for kind in [Kind::Docker, Kind::Olareg] {
        let registry = Registry::start(kind);
        let repository = repository(&registry.host(), &plain());
        let dir = tempfile::tempdir().unwrap();
        // More than two pieces, exactly one, and nothing at all.
        for len in [(20 << 20) + 7, 8 << 20, 0] {
            let blob: Vec<u8> = (0..len)
                .map(|n: u32| n.to_le_bytes()[n as usize % 3])
                .collect();
            let digest = digest_of(&blob);
            let mut most = 0;
            let mut watch = |done| {
                most = most.max(done);
                ControlFlow::Continue(())
            };
            repository
                .push_blob(digest, blob.len() as u64, Cursor::new(&blob), &mut watch)
                .unwrap();
            assert!(most < blob.len().max(1) as u64);
            assert!(repository.has_blob(digest, &mut go).unwrap());
            let size = repository.blob_size(digest, &mut go).unwrap();
            assert_eq!(size, Some(blob.len() as u64), "{kind:?}");
            let to = dir.path().join(digest.hex());
            let pulled = repository
                .pull_blob(&descriptor("", &blob), &to, &mut go)
                .unwrap();
            assert_eq!((pulled.fetched, pulled.resumed), (blob.len() as u64, 0));
            assert!(fs::read(&to).unwrap() == blob, "{kind:?} {len}");
        }
        // A blob that is not what was said is not taken.
        let wrong = repository.push_blob(digest_of(b"a"), 1, Cursor::new(b"b"), &mut go);
        assert!(
            matches!(wrong, Err(RegistryError::Refused { .. })),
            "{wrong:?}"
        );
    }
}

#[test]
fn name_and_password_are_asked_for() {
    let registry = Registry::start(Kind::DockerWithUsers);
    let (name, password) = USER;
    let as_user = |username: &str, password: &str| RegistryConfig {
        credentials: Some(Credentials {
            username: username.to_owned(),
            password: password.to_owned(),
        }),
        ..plain()
    };
    for (config, hint) in [
        (plain(), "docker login"),
        (as_user(name, "guess"), "are wrong"),
    ] {
        let error = repository(&registry.host(), &config).has_blob(digest_of(b"x"), &mut go);
        let error = error.unwrap_err();
        assert!(
            matches!(error, RegistryError::Unauthorized { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(hint), "{error}");
    }
    let repository = repository(&registry.host(), &as_user(name, password));
    repository
        .push_blob(digest_of(b"x"), 1, Cursor::new(b"x"), &mut go)
        .unwrap();
    assert!(repository.has_blob(digest_of(b"x"), &mut go).unwrap());
}

#[test]
fn a_certificate_needs_an_authority() {
    let registry = Registry::start(Kind::DockerWithTls);
    let trusting = RegistryConfig {
        authorities: vec![fs::read(registry.ca()).unwrap()],
        ..RegistryConfig::default()
    };
    let repository = repository(&registry.host(), &trusting);
    repository
        .push_blob(digest_of(b"x"), 1, Cursor::new(b"x"), &mut go)
        .unwrap();
    assert!(repository.has_blob(digest_of(b"x"), &mut go).unwrap());
    // Of another authority, and of none.
    let other = Registry::start(Kind::DockerWithTls);
    let wrong = RegistryConfig {
        authorities: vec![fs::read(other.ca()).unwrap()],
        ..RegistryConfig::default()
    };
    let reference: Reference = format!("{}/some/app", registry.host()).parse().unwrap();
    let distrusting = Repository::open(&reference, Access::Pull, &wrong).unwrap();
    let error = distrusting.has_blob(digest_of(b"x"), &mut go).unwrap_err();
    assert!(matches!(error, RegistryError::NoAnswer { .. }), "{error}");
    let garbage = RegistryConfig {
        authorities: vec![b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n".to_vec()],
        ..RegistryConfig::default()
    };
    let error = Repository::open(&reference, Access::Pull, &garbage).unwrap_err();
    assert!(matches!(error, RegistryError::SetUp { .. }), "{error}");
}

#[test]
fn a_pull_that_was_cut_goes_on_where_it_was() {
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let blob: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let direct = repository(&registry.host(), &plain());
    direct
        .push_blob(
            digest_of(&blob),
            blob.len() as u64,
            Cursor::new(&blob),
            &mut go,
        )
        .unwrap();
    let through = repository(&proxy.host(), &plain());
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("blob");
    let part = dir.path().join("blob.part");
    proxy.cut_after(1_000_000);
    let error = through
        .pull_blob(&descriptor("", &blob), &to, &mut go)
        .unwrap_err();
    assert!(matches!(error, RegistryError::NoAnswer { .. }), "{error}");
    let kept = fs::metadata(&part).unwrap().len();
    assert!((100_000..1_000_000).contains(&kept), "{kept}");
    proxy.stop_cutting();
    let before = proxy.bytes();
    let pulled = through
        .pull_blob(&descriptor("", &blob), &to, &mut go)
        .unwrap();
    assert_eq!(
        (pulled.resumed, pulled.fetched),
        (kept, blob.len() as u64 - kept)
    );
    assert!(fs::read(&to).unwrap() == blob);
    assert!(!part.exists());
    let came = proxy.bytes() - before;
    assert!(came < blob.len() as u64 - kept + 10_000, "{came}");
    // What was kept may have been changed meanwhile: then nothing of it is used.
    fs::write(&part, vec![9; 500]).unwrap();
    let error = through
        .pull_blob(&descriptor("", &blob), &to, &mut go)
        .unwrap_err();
    assert!(matches!(error, RegistryError::Blob { .. }), "{error}");
    assert!(!part.exists());
    through
        .pull_blob(&descriptor("", &blob), &to, &mut go)
        .unwrap();
}

/// One cut in the middle is not even noticed.
#[test]
fn a_transfer_that_is_cut_once_goes_on() {
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let through = repository(&proxy.host(), &plain());
    let blob: Vec<u8> = (0..20_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    // In the middle of the answer to the first piece.
    proxy.cut_once_after(700);
    through
        .push_blob(
            digest_of(&blob),
            blob.len() as u64,
            Cursor::new(&blob),
            &mut go,
        )
        .unwrap();
    let before = proxy.bytes();
    proxy.cut_once_after(5_000_000);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("blob");
    let pulled = through
        .pull_blob(&descriptor("", &blob), &to, &mut go)
        .unwrap();
    assert_eq!((pulled.fetched, pulled.resumed), (blob.len() as u64, 0));
    assert!(fs::read(&to).unwrap() == blob);
    let came = proxy.bytes() - before;
    assert!(came < blob.len() as u64 + 100_000, "{came}");
}

#[test]
fn wrong_bytes_and_lengths_are_refused() {
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let blob = vec![b'X'; 100_000];
    let direct = repository(&registry.host(), &plain());
    direct
        .push_blob(
            digest_of(&blob),
            blob.len() as u64,
            Cursor::new(&blob),
            &mut go,
        )
        .unwrap();
    let subject = push_image(&registry);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("blob");
    for size in [99_999, 100_001] {
        let mut wrong = descriptor("", &blob);
        wrong.size = size;
        let error = direct.pull_blob(&wrong, &to, &mut go).unwrap_err();
        assert!(
            matches!(
                error,
                RegistryError::Blob { .. } | RegistryError::Protocol { .. }
            ),
            "{error}"
        );
        assert!(!to.exists());
        let _gone = fs::remove_file(dir.path().join("blob.part"));
    }
    proxy.lie();
    let through = repository(&proxy.host(), &plain());
    let error = through
        .pull_blob(&descriptor("", &blob), &to, &mut go)
        .unwrap_err();
    assert!(matches!(error, RegistryError::Blob { .. }), "{error}");
    assert!(!to.exists() && !dir.path().join("blob.part").exists());
    drop(subject);
}

#[test]
fn a_watch_that_has_enough_stops_a_transfer() {
    let registry = Registry::start(Kind::Docker);
    let repository = repository(&registry.host(), &plain());
    let mut stop = |_| ControlFlow::Break(());
    let error = repository.has_blob(digest_of(b"x"), &mut stop).unwrap_err();
    assert!(matches!(error, RegistryError::Cancelled), "{error}");
}

#[test]
fn a_registry_that_is_not_there_is_named() {
    let registry = Registry::start(Kind::Docker);
    let host = registry.host();
    drop(registry);
    let repository = repository(&host, &plain());
    let error = repository.has_blob(digest_of(b"x"), &mut go).unwrap_err();
    assert!(matches!(error, RegistryError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains(&host), "{error}");
}

#[test]
fn a_blob_is_taken_from_another_repository_of_the_registry() {
    for kind in [Kind::Docker, Kind::Olareg] {
        let registry = Registry::start(kind);
        let proxy = Proxy::before(&registry);
        let blob = vec![7; 1 << 20];
        let digest = digest_of(&blob);
        repository(&registry.host(), &plain())
            .push_blob(digest, blob.len() as u64, Cursor::new(&blob), &mut go)
            .unwrap();
        let other: Reference = format!("{}/other/app:1", proxy.host()).parse().unwrap();
        let others = ["some/app", "no/such"];
        let other = Repository::open_beside(&other, Access::Push, &others, &plain()).unwrap();
        assert!(!other.has_blob(digest, &mut go).unwrap());
        let none = digest_of(b"none");
        assert!(!other.mount_blob(none, "some/app", &mut go).unwrap());
        assert!(!other.mount_blob(digest, "no/such", &mut go).unwrap());
        assert!(other.mount_blob(digest, "some/app", &mut go).unwrap());
        assert!(other.has_blob(digest, &mut go).unwrap());
        assert!(proxy.sent() < 10_000, "{kind:?}: {} bytes", proxy.sent());
    }
}
