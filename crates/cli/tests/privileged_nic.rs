//! Mounts whose blocks come from a block service: every byte is compared, whatever happens to the
//! service.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_line;
mod block_service;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use block_line::{Chunks, Line};
use block_service::{Nic, import, socket};
use blocks::{BlockSource, FileKey, SourceError};
use blockservice::client::{Client, ClientConfig, Patience};
use bootimg::{Image, Variant, WriteRequest, unwatched, write_image};
use chunks::CHUNK_MAX;
use lab::stopped::Stopped;
use lab::{Lab, busybox_root, fails, noise, ok, until};
use serde_json::Value;
use testkit::undisturbed::undisturbed;

/// Makes a root with small files and one of several chunks, and imports it as `root`.
fn imported(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    fs::write(root.join("large"), noise(99, 700_001)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 1_000_000).unwrap();
    let import = import(lab, "root", &root);
    assert!(import["chunks"].as_u64().unwrap() > 30, "{import}");
    root
}

/// Makes a root with files that lie apart, so that no read of one brings another's chunks, and imports it as
/// `root`.
fn imported_apart(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    for n in 0..APART_FILES {
        fs::write(apart(&root, n), noise(n, APART)).unwrap();
    }
    fs::write(root.join("large"), noise(99, LARGE)).unwrap();
    import(lab, "root", &root);
    root
}

/// Three chunks and some more: the one in the middle has no neighbour in another file.
const APART: usize = 400_000;
/// So many of them.
const APART_FILES: u32 = 28;
/// So many chunks that each of many reads finds one that was not read yet.
const LARGE: usize = 96 * CHUNK_MAX;

fn apart(root: &Path, n: u32) -> PathBuf {
    root.join(format!("usr/lib/apart{n:02}"))
}

/// Compares a page of a file of noise.
fn page_is(path: &Path, offset: usize, noise: &[u8]) {
    let mut page = [0; 4096];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut page, offset as u64).unwrap();
    assert!(page == noise[offset..][..4096], "{}", path.display());
}

/// Mounts the source `root` of the service, which is on no disk.
fn mounted(lab: &Lab, address: &str, name: &str, flags: &[&str]) -> PathBuf {
    let flags: Vec<_> = ["--nic", address].iter().chain(flags).copied().collect();
    lab.mount(Path::new("nic:root"), name, &flags)
}

/// Compares all files of two trees, through the file systems that show them.
fn same(root: &Path, mounted: &Path) {
    ok(Command::new("diff")
        .arg("-r")
        .arg("--no-dereference")
        .args([root, mounted]));
}

fn count(status: &Value, what: &str) -> u64 {
    let number = status["nic"][what].as_u64();
    number.unwrap_or_else(|| panic!("no {what}: {status}"))
}

#[test]
fn privileged_a_source_that_is_on_no_disk_is_served_whole() {
    let lab = Lab::new();
    let root = imported(&lab);
    let nic = Nic::start(&lab);
    let mountpoint = mounted(&lab, &nic.address, "mnt", &[]);
    same(&root, &mountpoint);
    let status = lab.status(&mountpoint);
    assert!(count(&status, "chunks") > 30, "{status}");
    assert_eq!(
        (count(&status, "lies"), count(&status, "failed_reads")),
        (0, 0),
        "{status}"
    );
    let program = mountpoint.join("bin/busybox");
    assert_eq!(ok(Command::new(program).args(["echo", "runs"])), "runs\n");
    lab.umount(&mountpoint);
}

/// Frozen, and back: the origin answers meanwhile, and then the service again.
#[test]
fn privileged_a_service_that_freezes_or_dies_costs_no_read() {
    let lab = Lab::new();
    let root = imported_apart(&lab);
    let nic = Nic::at(&lab, "127.0.0.1:0", &["--blocks-open"]);
    let address = nic.address.clone();
    let by_name = address.replace("127.0.0.1", "localhost");
    let origin = root.to_str().unwrap().to_owned();
    let mountpoint = mounted(&lab, &by_name, "mnt", &["--origin", &origin]);
    let read = |n: u32| page_is(&apart(&mountpoint, n), APART / 2, &noise(n, APART));
    read(0);
    // Who owes an answer already is not waited for.
    until("what was asked for to have come", || {
        let service = &lab.status(&mountpoint)["nic"]["services"][0];
        service["chunks"].as_u64() >= service["requests"].as_u64()
    });
    let frozen_nic = Stopped::stop(nic.process.id());
    // On a slow machine some of it was read ahead.
    let mut unread = 1..20;
    until(
        "the origin to answer five, one of them after the service",
        || {
            read(unread.next().unwrap());
            let frozen = lab.status(&mountpoint);
            count(&frozen, "origin_chunks") >= 5 && count(&frozen, "late") >= 1
        },
    );
    drop(frozen_nic);
    until("the service is asked again", || {
        lab.status(&mountpoint)["nic"]["connected"] == true
    });
    let before = count(&lab.status(&mountpoint), "chunks");
    (20..23).for_each(read);
    let (large, content) = (mountpoint.join("large"), noise(99, LARGE));
    let mut places = (0..LARGE).step_by(CHUNK_MAX);
    until("it answers again", || {
        page_is(&large, places.next().unwrap(), &content);
        count(&lab.status(&mountpoint), "chunks") > before
    });
    nic.kill();
    (23..APART_FILES).for_each(read);
    let _again = Nic::at(&lab, &address, &["--blocks-open"]);
    until("the client has found the new one", || {
        lab.status(&mountpoint)["nic"]["connected"] == true
    });
    same(&root, &mountpoint);
    assert_eq!(count(&lab.status(&mountpoint), "failed_reads"), 0);
}

fn part(mountpoint: &Path, n: u32) {
    let path = mountpoint.join(format!("usr/lib/part{n:02}"));
    assert!(fs::read(path).unwrap() == noise(n, 30_000), "part {n}");
}

#[test]
fn privileged_a_service_that_lies_is_found_out() {
    let lab = Lab::new();
    let root = imported_apart(&lab);
    let _nic = Nic::start(&lab);
    let line = Line::start(lab.path("line.sock"), socket(&lab));
    line.treat(Chunks::Wrong);
    let origin = root.to_str().unwrap().to_owned();
    let with_origin = mounted(&lab, &line.address(), "mnt", &["--origin", &origin]);
    // Late chunks are no lies: how many reads it takes depends on the machine.
    let (large, content) = (with_origin.join("large"), noise(99, LARGE));
    let mut places = (0..LARGE).step_by(CHUNK_MAX);
    until("it is found out", || {
        page_is(&large, places.next().unwrap(), &content);
        count(&lab.status(&with_origin), "lies") >= 4
    });
    // From then on it is not asked for a second, then once more, and then for twice as long each time. These files lie apart, so
    // that nothing is read ahead: however slow this machine is, most come from the origin alone.
    let before = lab.status(&with_origin);
    for n in 0..APART_FILES {
        page_is(&apart(&with_origin, n), APART / 2, &noise(n, APART));
    }
    let after = lab.status(&with_origin);
    let more = |what: &str| count(&after, what) - count(&before, what);
    assert!(
        more("lies") + 10 < more("origin_chunks"),
        "{before}\n{after}"
    );
    same(&root, &with_origin);
    let status = lab.status(&with_origin);
    assert!(count(&status, "origin_chunks") > 30, "{status}");
    assert_eq!(
        (count(&status, "chunks"), count(&status, "failed_reads")),
        (0, 0),
        "{status}"
    );
    // With nobody else to ask, a reader waits for the truth.
    let alone = mounted(&lab, &line.address(), "alone", &[]);
    let reader = {
        let alone = alone.clone();
        std::thread::spawn(move || part(&alone, 3))
    };
    until("it was found out", || {
        count(&lab.status(&alone), "lies") >= 2
    });
    line.treat(Chunks::AsTheyAre);
    reader.join().unwrap();
    same(&root, &alone);
    assert_eq!(count(&lab.status(&alone), "failed_reads"), 0);
}

#[test]
fn privileged_a_service_that_is_slow_costs_no_read() {
    let lab = Lab::new();
    let root = imported(&lab);
    let _nic = Nic::start(&lab);
    let line = Line::start(lab.path("line.sock"), socket(&lab));
    let origin = root.to_str().unwrap().to_owned();
    let mountpoint = mounted(&lab, &line.address(), "mnt", &["--origin", &origin]);
    // Later than a read waits before it is asked for on the other connection, too.
    line.treat(Chunks::Late(Duration::from_millis(150)));
    (0..3).for_each(|n| part(&mountpoint, n));
    let status = lab.status(&mountpoint);
    assert!(count(&status, "hedged") >= 1, "{status}");
    // And later than it waits at all.
    line.treat(Chunks::Late(Duration::from_secs(2)));
    (3..6).for_each(|n| part(&mountpoint, n));
    let status = lab.status(&mountpoint);
    assert!(count(&status, "late") >= 1, "{status}");
    assert!(count(&status, "origin_chunks") >= 1, "{status}");
    line.treat(Chunks::AsTheyAre);
    same(&root, &mountpoint);
    assert_eq!(count(&lab.status(&mountpoint), "failed_reads"), 0);
}

#[test]
fn privileged_a_filled_cache_needs_nobody() {
    let lab = Lab::new();
    let root = imported(&lab);
    let nic = Nic::start(&lab);
    let address = nic.address.clone();
    let cache = lab.path("cache").to_str().unwrap().to_owned();
    let flags = ["--nic-cache", &cache, "--nic-cache-size", "256M"];
    let mountpoint = mounted(&lab, &nic.address, "mnt", &flags);
    until("all of it is here", || {
        lab.status(&mountpoint)["nic"]["filled"] == true
    });
    nic.kill();
    same(&root, &mountpoint);
    lab.umount(&mountpoint);
    // And a mount that begins while there is no service.
    let flags = [
        "--nic",
        &address,
        "--nic-cache",
        &cache,
        "--nic-cache-size",
        "256M",
    ];
    let again = lab.mount(Path::new("nic:root"), "again", &flags);
    same(&root, &again);
    let status = lab.status(&again);
    assert_eq!(
        (count(&status, "chunks"), count(&status, "failed_reads")),
        (0, 0),
        "{status}"
    );
}

#[test]
fn privileged_beside_a_local_source_the_disk_is_not_read() {
    let lab = Lab::new();
    let root = imported(&lab);
    let nic = Nic::start(&lab);
    let address = nic.address.clone();
    let flags = ["--nic", &address, "--nic-source", "root"];
    let mountpoint = lab.mount(&root, "mnt", &flags);
    // A file that is another by now is read from the disk.
    same(&root, &mountpoint);
    let status = lab.status(&mountpoint);
    assert!(count(&status, "chunks") > 30, "{status}");
    nic.kill();
    lab.umount(&mountpoint);
    let mountpoint = lab.mount(&root, "again", &flags);
    same(&root, &mountpoint);
    assert!(lab.status(&mountpoint)["nic"].is_null(), "it does without");
}

#[test]
fn privileged_the_second_machine_starts_from_what_the_first_one_recorded() {
    undisturbed(|| {
        let lab = Lab::new();
        let root = imported(&lab);
        let nic = Nic::start(&lab);
        let read = |mountpoint: &Path| [3, 7].into_iter().for_each(|n| part(mountpoint, n));
        let first = mounted(&lab, &nic.address, "first", &["--nic-share"]);
        read(&first);
        assert!(lab.status(&first)["boot"].is_null());
        lab.umount(&first);
        let second = lab.make_dir("second");
        let flags = ["--nic", &nic.address, "--wait-prewarm"];
        until("the boot image is at the service", || {
            ok(lab
                .yolofs()
                .arg("mount")
                .arg("nic:root")
                .arg(&second)
                .args(flags));
            let has = !lab.status(&second)["boot"].is_null();
            if !has {
                lab.umount(&second);
            }
            has
        });
        let before = lab.requests(&second, "read");
        read(&second);
        let status = lab.status(&second);
        assert_eq!(
            lab.requests(&second, "read"),
            before,
            "all was pushed: {status}"
        );
        assert!(
            status["boot"]["injected_pages"].as_u64().unwrap() >= 16,
            "{status}"
        );
        lab.umount(&second);
        forge(&lab, &nic.address);
        let third = mounted(&lab, &nic.address, "third", &["--wait-prewarm"]);
        let status = lab.status(&third);
        let pushed = status["boot"]["injected_pages"].as_u64();
        assert!(pushed >= Some(16), "what boots read is believed: {status}");
        same(&root, &third);
        lab.umount(&third);
        let fourth = mounted(&lab, &nic.address, "fourth", &["--no-inject"]);
        same(&root, &fourth);
        let status = lab.status(&fourth);
        assert!(!status["boot"].is_null(), "no byte of it is: {status}");
    });
}

#[test]
fn privileged_each_machine_adds_what_the_boot_image_lacked() {
    undisturbed(|| {
        let lab = Lab::new();
        let root = imported(&lab);
        let nic = Nic::start(&lab);
        let boots = || {
            let indexes = fs::read_dir(lab.path("nic/sources/boots"));
            let indexes = indexes.into_iter().flatten().map(|dir| dir.unwrap().path());
            let kept = indexes.map(|dir| fs::read_dir(dir).unwrap().count());
            kept.sum::<usize>()
        };
        // Mounts, reads, unmounts, and waits until the daemon has shared what there is to share.
        let boot = |name: &str, parts: &[u32]| {
            let mountpoint = mounted(&lab, &nic.address, name, &["--nic-share", "--wait-prewarm"]);
            parts.iter().for_each(|n| part(&mountpoint, *n));
            let daemon = lab.status(&mountpoint)["pid"].clone();
            lab.umount(&mountpoint);
            let process = PathBuf::from(format!("/proc/{daemon}"));
            until("the daemon to end", || !process.exists());
        };
        boot("first", &[3]);
        assert_eq!(boots(), 1);
        boot("second", &[3, 7]);
        assert_eq!(boots(), 2);
        boot("third", &[7, 3]);
        assert_eq!(boots(), 2, "there was nothing to add");
        let last = mounted(&lab, &nic.address, "last", &["--wait-prewarm"]);
        let before = lab.requests(&last, "read");
        [3, 7].iter().for_each(|n| part(&last, *n));
        assert_eq!(lab.requests(&last, "read"), before, "all was pushed");
        same(&root, &last);
    });
}

/// Gives the service a boot image which is like the one that it has, and has other content.
fn forge(lab: &Lab, address: &str) {
    struct Liar;
    impl BlockSource for Liar {
        fn read_at(&self, file: &FileKey, at: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
            let left = usize::try_from(file.version.size - at).unwrap();
            let len = left.min(buf.len());
            buf[..len].fill(0x66);
            Ok(len)
        }
    }
    let only = |dir: &Path| fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let honest = only(&only(&lab.path("nic/sources/boots")));
    let image = Image::open(&honest).unwrap();
    let request = WriteRequest {
        tree: image.tree(),
        info: &image.info().source,
        plan: image.plan(),
        blocks: &Liar,
        variant: Variant::Packed,
    };
    let forged = lab.path("forged");
    let written = write_image(&forged, &request, &mut unwatched).unwrap();
    assert!(written.blocks >= 16 && written.dropped.is_empty());
    let forged = fs::read(forged).unwrap();
    let liar = ClientConfig {
        address: address.parse().unwrap(),
        others: Vec::new(),
        name: b"liar".to_vec(),
        key: None,
        tls: None,
        patience: Patience {
            transfer: Duration::from_secs(60),
            ..Patience::default()
        },
    };
    let liar = Client::start(liar).unwrap();
    assert!(liar.wait_until_connected(Duration::from_secs(60)));
    let id = liar.keep_boot(b"root", &forged).unwrap();
    assert_eq!(liar.boots(b"root").unwrap()[0].id, id, "it is the newest");
}

#[test]
fn privileged_who_has_not_the_key_gets_nothing() {
    let lab = Lab::new();
    let root = imported(&lab);
    let key = |n: u8| format!("{n:02x}").repeat(32);
    let list = lab.path("access");
    fs::write(
        &list,
        format!("vm1 {} root\nvm2 {} other\n", key(1), key(2)),
    )
    .unwrap();
    let nic = Nic::at(
        &lab,
        "127.0.0.1:0",
        &["--blocks-access", list.to_str().unwrap()],
    );
    let mount = |name: &str, n: u8, mountpoint: &Path| {
        let file = lab.path(&format!("key{n}"));
        fs::write(&file, key(n)).unwrap();
        let mut command = lab.yolofs();
        command.arg("mount").arg("nic:root").arg(mountpoint);
        command
            .args(["--nic", &nic.address, "--nic-name", name, "--nic-key"])
            .arg(file);
        command
    };
    let mountpoint = lab.make_dir("mnt");
    let why = fails(1, &mut mount("vm1", 2, &mountpoint));
    assert!(why.contains("cannot be reached"), "{why}");
    let why = fails(1, &mut mount("vm2", 2, &mountpoint));
    assert!(why.contains("no such source"), "{why}");
    ok(&mut mount("vm1", 1, &mountpoint));
    same(&root, &mountpoint);
}

/// Makes an authority, and below it directories with what `--nic-tls` and `--blocks-tls` want.
struct Authority {
    dir: PathBuf,
}

impl Authority {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let made = Self { dir };
        made.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
             -keyout ca.key -out ca.pem -subj /CN=authority -days 2",
        );
        made
    }

    fn openssl(&self, args: &str) {
        let args = args.split_whitespace();
        ok(Command::new("openssl").args(args).current_dir(&self.dir));
    }

    /// Signs a certificate for a name, and returns its directory.
    fn sign(&self, name: &str, alternatives: &str) -> String {
        let into = self.dir.join(name);
        fs::create_dir(&into).unwrap();
        fs::write(
            self.dir.join("ext"),
            format!("subjectAltName={alternatives}\n"),
        )
        .unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
             -keyout {name}/key.pem -out csr -subj /CN={name}"
        ));
        self.openssl(&format!(
            "x509 -req -in csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
             -extfile ext -out {name}/cert.pem"
        ));
        fs::copy(self.dir.join("ca.pem"), into.join("ca.pem")).unwrap();
        into.to_str().unwrap().to_owned()
    }
}

#[test]
fn privileged_a_certificate_says_who_it_is() {
    let lab = Lab::new();
    let root = imported(&lab);
    let list = lab.path("access");
    fs::write(&list, "vm1 - root\nvm2 - other\n").unwrap();
    let ours = Authority::new(lab.path("ours"));
    let theirs = Authority::new(lab.path("theirs"));
    let service = ours.sign("service", "IP:127.0.0.1,DNS:localhost");
    let flags = [
        "--blocks-access",
        list.to_str().unwrap(),
        "--blocks-tls",
        &service,
    ];
    let nic = Nic::at(&lab, "127.0.0.1:0", &flags);
    let mount = |flags: &[&str], name: &str| {
        let mountpoint = lab.make_dir(name);
        let mut command = lab.yolofs();
        command.arg("mount").arg("nic:root").arg(&mountpoint);
        command.args(["--nic", &nic.address]).args(flags);
        (command, mountpoint)
    };
    let (one, two) = (ours.sign("vm1", "DNS:vm1"), ours.sign("vm2", "DNS:vm2"));
    let stranger = theirs.sign("vm1", "DNS:vm1");
    // What it calls itself counts for nothing beside its certificate.
    let (mut other, _) = mount(&["--nic-tls", &two, "--nic-name", "vm1"], "two");
    let why = fails(1, &mut other);
    assert!(why.contains("no such source"), "{why}");
    for (flags, name) in [
        (&["--nic-tls", &stranger][..], "stranger"),
        (&["--nic-name", "vm1"], "plain"),
    ] {
        let (mut refused, _) = mount(flags, name);
        let why = fails(1, &mut refused);
        assert!(why.contains("cannot be reached"), "{why}");
    }
    let (mut right, mountpoint) = mount(&["--nic-tls", &one], "one");
    ok(&mut right);
    same(&root, &mountpoint);
    assert_eq!(count(&lab.status(&mountpoint), "failed_reads"), 0);
}
