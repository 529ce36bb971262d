//! Packages go when there are too many: the least valuable first, none that is in use, and whole.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio as ProcessStdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rig::{PATIENCE, PYTHON, Rig, names_in};
use sandbox::{ExitStatus, Packages, Python, Request, Sandbox, Stdio, ZygoteSpec};
use sandbox_packages::{Installed, PackageError, Resolution, Store};

/// Three packages of different sizes.
fn with_packages() -> Rig {
    let rig = Rig::new();
    for (name, bytes) in [("bread", 4_000), ("cake", 400_000), ("pie", 40_000)] {
        let (module, data) = (
            format!("{name}.py=V = 1"),
            format!("{name}_data=zeros:{bytes}"),
        );
        rig.wheel(name, "1", "", &[&module, &data]);
        rig.add(&[name]).unwrap();
    }
    rig.has_only(&["bread==1", "cake==1", "pie==1"]);
    rig
}

fn total(rig: &Rig) -> u64 {
    let all = rig.store.list().unwrap();
    all.iter().map(|one| one.bytes).sum()
}

fn evict(rig: &Rig, bytes_max: u64, needed: &[&str]) -> u64 {
    let needed = needed
        .iter()
        .map(|&one| ("host".to_owned(), one.to_owned()));
    let needed: BTreeSet<_> = needed.collect();
    rig.store.evict(&rig.sandboxes, bytes_max, &needed).unwrap()
}

fn use_once(rig: &Rig, name: &str) {
    rig.store.packages_of("host", &[name.to_owned()]).unwrap();
}

fn start(rig: &Rig, packages: &Packages, text: &str) -> Arc<Sandbox> {
    let mut request = Request::new("host", &["-c", text]);
    request.python = Some(Python {
        interpreter: PYTHON.to_owned(),
        packages: packages.clone(),
    });
    request.packages = Some(rig.store.dir_of("host"));
    rig.sandboxes.create(request, Stdio::Captured).unwrap()
}

#[test]
fn the_least_valuable_package_goes_first() {
    let rig = with_packages();
    assert_eq!(evict(&rig, total(&rig), &[]), 0);
    // A use of a small package is worth more than one of a large one, and no use is worth nothing.
    use_once(&rig, "bread");
    for _ in 0..2 {
        use_once(&rig, "cake");
    }
    assert_eq!(evict(&rig, total(&rig) - 1, &[]), 1);
    rig.has_only(&["bread==1", "cake==1"]);
    assert_eq!(evict(&rig, total(&rig) - 1, &[]), 1);
    rig.has_only(&["bread==1"]);
    let error = rig.store.packages_of("host", &["cake".to_owned()]);
    assert!(matches!(error, Err(PackageError::Unknown(_))));
    assert_eq!(evict(&rig, 0, &[]), 1);
    rig.has_only(&[]);
    // It is installed again when it is needed again.
    assert_eq!(
        rig.python(&rig.add(&["cake"]).unwrap(), "import cake; print(cake.V)"),
        "1\n"
    );
}

#[test]
fn what_is_in_use_stays() {
    let rig = with_packages();
    let packages = Packages::from(["cake==1".to_owned()]);
    let user = start(
        &rig,
        &packages,
        "import time; print('up', flush=True); time.sleep(1000)",
    );
    let claim = rig
        .store
        .packages_of("host", &["bread".to_owned()])
        .unwrap();
    // Neither what a sandbox has, nor what a request is about to use, nor what is needed.
    assert_eq!(evict(&rig, 0, &["pie==1"]), 0);
    for (package, by) in [("cake==1", user.id()), ("bread==1", "a request")] {
        let error = rig
            .store
            .remove(&rig.sandboxes, "host", package)
            .unwrap_err();
        assert!(matches!(&error, PackageError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(by), "{error}");
    }
    rig.has_only(&["bread==1", "cake==1", "pie==1"]);
    drop(claim);
    assert_eq!(evict(&rig, 0, &["pie==1"]), 1);
    rig.has_only(&["cake==1", "pie==1"]);
    user.kill().unwrap();
    user.wait(PATIENCE).unwrap();
    // A Zygote can be made again, so it keeps nothing.
    let mut spec = ZygoteSpec::new("host", PYTHON, &[]);
    spec.packages = packages;
    spec.store = Some(rig.store.dir_of("host"));
    rig.sandboxes.add_zygote(spec).unwrap();
    assert_eq!(evict(&rig, 0, &["pie==1"]), 1);
    rig.has_only(&["pie==1"]);
    assert!(rig.sandboxes.zygotes().is_empty());
}

/// Copies an installed package, as its installation would.
fn copy(store: &Path, from: &str, to: &str) {
    let host = store.join("host");
    let name = |package: &str| package.split("==").next().unwrap().to_owned();
    let record = host.join("records").join(format!("{from}.json"));
    let mut installed: Installed = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    installed.package = to.to_owned();
    let record = host.join("records").join(format!("{to}.json"));
    fs::write(record, serde_json::to_vec(&installed).unwrap()).unwrap();
    let place = host.join("packages").join(to);
    let copied = Command::new("cp")
        .arg("-a")
        .args([&host.join("packages").join(from), &place])
        .status();
    assert!(copied.unwrap().success());
    let resolution = Resolution {
        requirements: vec![name(to)],
        packages: BTreeSet::from([to.to_owned()]),
    };
    let path = host.join("resolutions").join(format!("{}.json", name(to)));
    fs::write(path, serde_json::to_vec(&resolution).unwrap()).unwrap();
}

fn files_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let count = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => files_below(&entry.path()),
        false => 1,
    };
    entries.map(count).sum()
}

#[test]
fn a_program_that_is_killed_while_it_evicts_leaves_whole_packages() {
    let rig = Rig::new();
    let files: Vec<_> = (0..20)
        .map(|number| format!("bread/{number}.py=V = 1"))
        .collect();
    let files: Vec<_> = files.iter().map(String::as_str).collect();
    rig.wheel("bread", "1", "", &files);
    rig.add(&["bread"]).unwrap();
    let root = rig.dir.path().join("other");
    let copied = Command::new("cp")
        .arg("-a")
        .args([&rig.dir.path().join("store"), &root])
        .status();
    assert!(copied.unwrap().success());
    for number in 0..80 {
        copy(&root, "bread==1", &format!("loaf{number}==1"));
    }
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    let (mut left, mut cut) = (81, 0);
    while left > 0 {
        let mut evictor = Command::new(env!("CARGO_BIN_EXE_package-evictor"))
            .arg(&root)
            .arg(rig.dir.path().join("evictor"))
            .arg(format!(
                "sandbox-packages-test/{}-evictor",
                std::process::id()
            ))
            .stdout(ProcessStdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(evictor.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 10_000));
        evictor.kill().unwrap();
        evictor.wait().unwrap();
        let under_way = names_in(&root.join("incoming")).len();
        let store = Store::open(&root).unwrap();
        assert_eq!(names_in(&root.join("incoming")), [""; 0]);
        let listed = store.list().unwrap();
        let there = names_in(&store.dir_of("host"));
        assert_eq!(listed.len(), there.len(), "each has a record");
        for one in &listed {
            let dir = store.dir_of("host").join(&one.package);
            assert_eq!(files_below(&dir), one.files, "{one:?}");
        }
        let resolutions = root.join("host/resolutions");
        for name in names_in(&resolutions) {
            let text = fs::read(resolutions.join(name)).unwrap();
            let kept: Resolution = serde_json::from_slice(&text).unwrap();
            assert!(
                kept.packages.iter().all(|one| there.contains(one)),
                "{kept:?}"
            );
        }
        cut += usize::from(under_way > 0 || (listed.len() < left && !listed.is_empty()));
        left = listed.len();
    }
    assert!(cut > 0, "it was never killed in the middle");
}

/// Ends the other thread, also when this one fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Who has found its packages imports them, whatever is evicted meanwhile.
#[test]
fn a_request_gets_its_packages_or_is_told_that_there_are_none() {
    let rig = with_packages();
    let store = rig.dir.path().join("store");
    let saved = rig.dir.path().join("saved");
    let copied = Command::new("cp").arg("-a").args([&store, &saved]).status();
    assert!(copied.unwrap().success());
    let done = AtomicBool::new(false);
    let cake = Packages::from(["cake==1".to_owned()]);
    let (mut ran, mut missed) = (0, 0);
    std::thread::scope(|scope| {
        let evictor = scope.spawn(|| {
            let mut gone = 0;
            while !done.load(Relaxed) {
                gone += evict(&rig, 0, &["bread==1", "pie==1"]);
            }
            gone
        });
        let ends = Ends(&done);
        while ran < 30 {
            let Ok((packages, claim)) = rig.store.packages_of("host", &["cake".to_owned()]) else {
                missed += 1;
                // As an installation does: not before the removal is over.
                let _over = rig.store.claim("host", &cake).unwrap();
                put_back(&saved, &store, "cake==1");
                continue;
            };
            let sandbox = start(&rig, &packages, "import cake; print(cake.V)");
            drop(claim);
            let exit = sandbox.wait(PATIENCE).unwrap();
            assert_eq!(exit.status, ExitStatus::Code(0), "{:?}", sandbox.written());
            ran += 1;
            // Now and then, the package goes before the next request comes.
            let place = rig.store.dir_of("host").join("cake==1");
            let deadline = Instant::now() + PATIENCE;
            while ran % 3 == 0 && place.exists() {
                assert!(Instant::now() < deadline, "it is not evicted");
                std::thread::yield_now();
            }
        }
        drop(ends);
        assert!(evictor.join().unwrap() > 0);
    });
    assert!(missed >= 9, "{missed} of 30 found nothing");
}

/// Puts a package back as an installation does: its record, then all of it at once, then the resolution.
fn put_back(saved: &Path, store: &Path, package: &str) {
    let copy = |name: &Path, aside: &Path| {
        let aside = store.join(aside);
        let copied = Command::new("cp")
            .arg("-a")
            .args([&saved.join(name), &aside])
            .status();
        assert!(copied.unwrap().success());
        fs::rename(&aside, store.join(name)).unwrap();
    };
    let host = Path::new("host");
    let aside = Path::new("host/aside");
    copy(&host.join("records").join(format!("{package}.json")), aside);
    copy(&host.join("packages").join(package), aside);
    for name in names_in(&saved.join("host/resolutions")) {
        copy(&host.join("resolutions").join(name), aside);
    }
}
