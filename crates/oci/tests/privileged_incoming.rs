//! Layers that are unpacked while they come from a real registry: what comes out is what a file of
//! them gives, and whatever is wrong with them is noticed at the end at the latest.

#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use oci::registry::{Access, RegistryConfig, RegistryError, Repository, Transport};
use oci::unpack::{Implied, Limits, TarError, UnpackError, Unpacked};
use oci::{
    Descriptor, DownloadWatch, Incoming, IncomingError, Reference, digest_and_len, digest_of,
    fetch_layer,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use testkit::layouts::{GZIP, gzip, layer};
use testkit::registries::{Kind, Proxy, Registry};

/// Ends a download after so many bytes of the tar.
struct Until {
    unpacked: u64,
    blob: Mutex<Vec<u8>>,
    most: AtomicU64,
}

impl Until {
    fn never() -> Self {
        Self::unpacked(u64::MAX)
    }

    fn unpacked(unpacked: u64) -> Self {
        Self {
            unpacked,
            blob: Mutex::default(),
            most: AtomicU64::new(0),
        }
    }
}

impl DownloadWatch for Until {
    fn at(&self, _came: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn came(&self, bytes: &[u8]) -> ControlFlow<()> {
        self.blob.lock().extend_from_slice(bytes);
        ControlFlow::Continue(())
    }

    fn unpacked(&self, bytes: u64) -> ControlFlow<()> {
        self.most.fetch_max(bytes, SeqCst);
        match bytes > self.unpacked {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

struct Bench {
    dir: TempDir,
    registry: Registry,
    proxy: Proxy,
}

impl Bench {
    fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        let registry = Registry::start(Kind::Docker);
        Self {
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            proxy: Proxy::before(&registry),
            registry,
        }
    }

    fn repository(host: &str) -> Repository {
        let reference: Reference = format!("{host}/some/app").parse().unwrap();
        let config = RegistryConfig {
            transport: Transport::Plain,
            ..RegistryConfig::default()
        };
        Repository::open(&reference, Access::Push, &config).unwrap()
    }

    fn push(&self, blob: &[u8]) -> Descriptor {
        let (digest, len) = digest_and_len(blob).unwrap();
        Self::repository(&self.registry.host())
            .push_blob(digest, len, Cursor::new(blob), &mut |_| {
                ControlFlow::Continue(())
            })
            .unwrap();
        Descriptor::new(GZIP, digest, len)
    }

    fn out(&self, name: &str) -> PathBuf {
        let out = self.dir.path().join(name);
        fs::create_dir(&out).unwrap();
        out
    }

    fn fetch(
        &self,
        blob: &Descriptor,
        tar: &[u8],
        into: &Path,
        limits: Limits,
        until: &Until,
    ) -> Result<(Unpacked, Implied), IncomingError> {
        let layer = Incoming {
            blob,
            diff_id: digest_of(tar),
            into,
            limits,
        };
        fetch_layer(&Self::repository(&self.proxy.host()), &layer, until)
    }
}

/// Bytes that do not compress (xorshift).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn privileged_a_layer_comes_whole_whatever_is_cut() {
    let bench = Bench::new();
    let content = noise(3_000_000);
    let tar = layer(&[("a/file", &content), ("b", b"short"), ("a/empty", b"")]);
    let compressed = zstd::encode_all(tar.as_slice(), 3).unwrap();
    for (index, blob) in [tar.clone(), gzip(&tar), compressed].iter().enumerate() {
        let descriptor = bench.push(blob);
        let out = bench.out(&format!("out{index}"));
        let until = Until::never();
        bench.proxy.cut_once_after(1_000_000);
        let (unpacked, implied) = bench
            .fetch(&descriptor, &tar, &out, Limits::default(), &until)
            .unwrap();
        assert_eq!((unpacked.entries, unpacked.bytes), (3, 3_000_005));
        assert!(fs::read(out.join("a/file")).unwrap() == content);
        assert_eq!(fs::read(out.join("b")).unwrap(), b"short");
        assert!(!implied.is_empty(), "of a and of the top nothing was said");
        assert!(*until.blob.lock() == *blob, "each byte came once");
        assert_eq!(until.most.load(SeqCst), tar.len() as u64);
    }
    assert!(bench.proxy.connections() > 3, "something was cut");
}

#[test]
fn privileged_what_is_wrong_with_a_layer_is_noticed() {
    let bench = Bench::new();
    // `X` is what a proxy changes; not compressed, so that it reaches the tar.
    let tar = layer(&[("first", &[b'a'; 700_000]), ("last", &[b'X'; 10])]);
    let descriptor = bench.push(&tar);
    let fetch = |name: &str, descriptor: &Descriptor, tar: &[u8], limits| {
        let out = bench.out(name);
        let until = Until::never();
        bench
            .fetch(descriptor, tar, &out, limits, &until)
            .unwrap_err()
    };
    let limits = Limits::default();

    let other = fetch("other", &descriptor, b"another tar", limits);
    let is_damaged = matches!(other, IncomingError::Unpack(UnpackError::Damaged { .. }));
    assert!(is_damaged, "{other}");

    let short = Descriptor::new(GZIP, descriptor.digest, descriptor.size - 1);
    let short = fetch("short", &short, &tar, limits);
    assert!(matches!(short, IncomingError::Registry(_)), "{short}");
    let long = Descriptor::new(GZIP, descriptor.digest, descriptor.size + 1);
    let long = fetch("long", &long, &tar, limits);
    let is_broken = matches!(
        long,
        IncomingError::Registry(RegistryError::Protocol { .. })
    );
    assert!(is_broken, "{long}");

    let bytes = Limits {
        bytes: 1_000_000,
        ..limits
    };
    let bomb_tar = layer(&[("zeros", &[0; 20_000_000])]);
    let bomb = bench.push(&gzip(&bomb_tar));
    assert!(bomb.size < 200_000);
    let bomb = fetch("bomb", &bomb, &bomb_tar, bytes);
    let IncomingError::Unpack(UnpackError::Entry { source, .. }) = bomb else {
        panic!("{bomb}");
    };
    assert!(source.to_string().contains("bytes"), "{source}");

    bench.proxy.lie();
    let changed = fetch("changed", &descriptor, &tar, limits);
    let is_damaged = matches!(
        changed,
        IncomingError::Registry(RegistryError::Blob { .. })
            | IncomingError::Unpack(UnpackError::Damaged { .. })
    );
    assert!(is_damaged, "{changed}");
}

#[test]
fn privileged_a_download_ends_when_nobody_wants_it() {
    let bench = Bench::new();
    // More than waits between the two threads.
    let tar = layer(&[("file", &noise(40 << 20))]);
    let descriptor = bench.push(&tar);
    let out = bench.out("out");
    let until = Until::unpacked(1 << 20);
    let before = bench.proxy.bytes();
    let ended = bench.fetch(&descriptor, &tar, &out, Limits::default(), &until);
    assert!(matches!(ended, Err(IncomingError::Cancelled)), "{ended:?}");
    assert!(bench.proxy.bytes() - before < tar.len() as u64);
    // Nor if what it is unpacked into is gone.
    let gone = bench.dir.path().join("gone");
    let until = Until::never();
    let failed = bench.fetch(&descriptor, &tar, &gone, Limits::default(), &until);
    let is_open = matches!(failed, Err(IncomingError::Unpack(UnpackError::Open { .. })));
    assert!(is_open, "{failed:?}");
}

#[test]
fn privileged_a_directory_that_is_not_told_of_is_as_it_is_below() {
    let bench = Bench::new();
    let tar = layer(&[
        ("a/b/file", b"x"),
        ("told/file", b"x"),
        ("new/file", b"x"),
        ("deleted/file", b"x"),
    ]);
    let descriptor = bench.push(&tar);
    let (out, near, far) = (bench.out("out"), bench.out("near"), bench.out("far"));
    let until = Until::never();
    let (_, implied) = bench
        .fetch(&descriptor, &tar, &out, Limits::default(), &until)
        .unwrap();
    for dir in ["near/told", "far/a", "far/a/b", "far/told", "far/deleted"] {
        fs::create_dir(bench.dir.path().join(dir)).unwrap();
    }
    let describe = |path: PathBuf, mode: u32, owner: u32| {
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    describe(far.join("a"), 0o700, 1);
    describe(far.join("a/b"), 0o2775, 2);
    describe(far.join("told"), 0o700, 3);
    describe(near.join("told"), 0o711, 4);
    describe(far.join("deleted"), 0o700, 5);
    describe(near.clone(), 0o700, 6);
    fs::write(near.join("deleted"), "not a directory").unwrap();
    let file = fs::File::open(far.join("a")).unwrap();
    rawio::xattr::set_at(&file, b".", c"user.kept", b"1").unwrap();
    rawio::xattr::set_at(&file, b".", c"trusted.overlay.opaque", b"y").unwrap();

    implied.take_after(&out, &[&near, &far]).unwrap();
    let seen = |path: &str| {
        let of = fs::metadata(out.join(path)).unwrap();
        (of.mode() & 0o7777, of.uid(), of.gid())
    };
    assert_eq!(seen("a"), (0o700, 1, 1));
    assert_eq!(seen("a/b"), (0o2775, 2, 2));
    assert_eq!(seen("told"), (0o711, 4, 4), "the nearest counts");
    assert_eq!(seen("new"), (0o755, 0, 0));
    assert_eq!(
        seen("deleted"),
        (0o755, 0, 0),
        "what was deleted below is new"
    );
    let top = fs::metadata(&out).unwrap();
    assert_eq!((top.uid(), top.gid()), (6, 6));
    assert_ne!(top.mode() & 0o7777, 0o700, "of the top only the owner");
    let dir = fs::File::open(out.join("a")).unwrap();
    let kept = rawio::xattr::get_at(&dir, b".", b"user.kept").unwrap();
    assert_eq!(kept.as_deref(), Some(b"1".as_slice()));
    let opaque = rawio::xattr::get_at(&dir, b".", b"trusted.overlay.opaque").unwrap();
    assert_eq!(opaque, None);
}

/// The error that says that somebody had enough is found, however deep it lies.
#[test]
fn privileged_cancelled_is_told_from_damaged() {
    let bench = Bench::new();
    let tar = layer(&[("file", &noise(100_000))]);
    let descriptor = bench.push(&gzip(&tar));
    let out = bench.out("out");
    let ended = bench.fetch(
        &descriptor,
        &tar,
        &out,
        Limits::default(),
        &Until::unpacked(0),
    );
    assert!(matches!(ended, Err(IncomingError::Cancelled)), "{ended:?}");
    assert_eq!(TarError::Cancelled.to_string(), "cancelled");
}
