//! What gets who has broken into a worker: a process with a worker's user, capabilities, files and
//! system calls asks for what is not its own, of everybody who listens.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_service;
mod intruder;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use intruder::{As, DENIED, UNKNOWN};
use lab::Lab;
use lab::service::{Readers, Service};
use testkit::by_name::{self, Test};
use testkit::named_tests;

const TESTS: &[Test] = named_tests![
    privileged_a_broken_worker_sends_to_no_keeper_and_no_manager,
    privileged_a_broken_worker_that_may_call_is_answered_by_nobody,
    privileged_the_worker_that_asks_a_service_has_its_files_and_port_only,
    privileged_the_worker_of_a_service_that_lets_only_root_in_is_not_root,
    privileged_a_worker_of_block_images_has_its_files_only,
    privileged_keeper_and_node_of_another_release_go_together,
];

/// Runs the tests that the arguments name, or all; or plays the intruder.
fn main() {
    intruder::play();
    by_name::run(TESTS);
}

/// The names of all unix sockets in the run directory that a process has.
fn names(process: u32, lab: &Lab) -> Vec<PathBuf> {
    let open: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.to_owned()))
        .collect();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let named = sockets.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [.., inode, name] = fields.as_slice() else {
            return None;
        };
        let is_open = open.contains(&format!("{inode}]"));
        (is_open && name.starts_with(lab.run_dir().to_str().unwrap())).then(|| name.into())
    });
    named.collect()
}

/// The mounts as they are listed, without what changes by itself.
fn state(service: &Service<'_>, mountpoint: &Path) -> (u32, String, u32) {
    let worker = service.worker(mountpoint);
    (worker, service.state(mountpoint), service.pid())
}

fn privileged_a_broken_worker_sends_to_no_keeper_and_no_manager() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let before = state(&service, &mountpoint);
    // The keeper holds the API's, at which it hears nothing, and none of its own.
    let aside = format!("node.{}", service.pid());
    for process in [service.keeper(), service.pid()] {
        let names = names(process, &lab);
        assert_eq!(names, [lab.run_dir().join(&aside)], "{process}");
    }
    // As systemd listens.
    let manager = lab.path("notify.sock");
    let listening = UnixDatagram::bind(&manager).unwrap();
    listening.set_nonblocking(true).unwrap();
    fs::set_permissions(
        &manager,
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    let keeper = lab.run_dir().join("keeper.sock");
    for who in [As::Worker, As::RootWorker, As::Caller, As::RootCaller] {
        for place in [&manager, &keeper] {
            let said = intruder::does(&lab, who, "forge", place, &service.pid().to_string());
            assert_eq!(said, UNKNOWN, "{who:?}: {}", place.display());
        }
    }
    assert!(listening.recv(&mut [0; 1]).is_err(), "nothing came");
    assert_eq!(state(&service, &mountpoint), before);
    lab.umount(&mountpoint);
}

fn privileged_a_broken_worker_that_may_call_is_answered_by_nobody() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let readers = Readers::start(&mountpoint);
    let before = state(&service, &mountpoint);
    let listed = service.listed(&mountpoint).unwrap();
    let id = listed["id"].as_str().unwrap().to_owned();
    let mut records = fs::read_dir(lab.run_dir().join("node")).unwrap();
    let key = records
        .find_map(|entry| {
            Some(
                entry
                    .unwrap()
                    .path()
                    .file_name()?
                    .to_str()?
                    .strip_suffix(".json")?
                    .to_owned(),
            )
        })
        .unwrap();
    let api = lab.run_dir().join("node.sock");
    let worker = lab.run_dir().join(format!("workers/{}.sock", before.0));
    let attacks = [
        (&api, "unmount", id.as_str()),
        (&worker, "hand", key.as_str()),
        (&worker, "let_go", key.as_str()),
        (&worker, "close", key.as_str()),
    ];
    for (place, what, whose) in attacks {
        for who in [As::Worker, As::RootWorker, As::PortCaller] {
            let said = intruder::does(&lab, who, what, place, whose);
            assert_eq!(said, UNKNOWN, "{who:?}: {what}");
        }
        // Who is not root is kept from it by the file system.
        assert_eq!(intruder::does(&lab, As::Caller, what, place, whose), DENIED);
        // And root, if it is a worker, by whoever is asked.
        let said = intruder::does(&lab, As::RootCaller, what, place, whose);
        assert!(said.contains("a worker may not ask"), "{what}: {said}");
    }
    assert_eq!(state(&service, &mountpoint), before);
    readers.until_more();
    readers.stop();
    lab.umount(&mountpoint);
}

/// A registry, or a blob, has broken into it.
fn privileged_a_worker_of_block_images_has_its_files_only() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let run_dir = lab.run_dir();
    for dir in [intruder::LAYER, intruder::LOWER, intruder::CACHE] {
        fs::create_dir(run_dir.join(dir)).unwrap();
    }
    let lower = run_dir.join(intruder::LOWER).join("lower.obd");
    fs::write(&lower, "").unwrap();
    // Plans say what to fetch; boot images say what files have.
    bootstore::store::make_block_plans(&run_dir.join(intruder::STORE)).unwrap();
    let store = run_dir.join(intruder::STORE);
    let [own, cached, plan, image, elsewhere] = [
        run_dir.join(intruder::LAYER).join("upper.data"),
        run_dir.join(intruder::CACHE).join("data"),
        bootstore::store::block_plans(&store).join("plan"),
        store.join("images/forged.bimg"),
        lab.path("elsewhere"),
    ];
    let docker = lab.path("docker.sock");
    let _listening = std::os::unix::net::UnixListener::bind(&docker).unwrap();
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = registry.local_addr().unwrap().port().to_string();
    for (who, cache, network) in [
        (As::Images, DENIED, UNKNOWN),
        (As::FetchedImages, "done", "done"),
    ] {
        let does = |what, place: &Path, whose| intruder::does(&lab, who, what, place, whose);
        for (what, place, whose, said) in [
            ("read", &lower, "", "done"),
            // One that shares a cache serves images that are not known yet.
            ("read", &PathBuf::from("/dev/null"), "", cache),
            ("read", &PathBuf::from("/etc/shadow"), "", cache),
            ("write", &own, "", "done"),
            ("write", &cached, "", cache),
            ("write", &plan, "", cache),
            ("write", &image, "", DENIED),
            ("write", &elsewhere, "", DENIED),
            (
                "write",
                &PathBuf::from("/etc/cron.d/yolofs-test"),
                "",
                DENIED,
            ),
            ("call", &elsewhere, port.as_str(), network),
            ("connect", &docker, "", UNKNOWN),
            ("connect", &run_dir.join("node.sock"), "", UNKNOWN),
            ("forge", &docker, "1", UNKNOWN),
            ("open", &PathBuf::from("/etc/shadow"), "", UNKNOWN),
        ] {
            assert_eq!(
                does(what, place, whose),
                said,
                "{who:?} {what} {}",
                place.display()
            );
        }
        for (what, place) in [("mount", lab.path(".")), ("execute", "/bin/true".into())] {
            let by = intruder::dies(&lab, who, what, &place);
            assert_eq!(by, Some(Signal::SIGSYS as i32), "{who:?} {what}");
        }
    }
    the_workers_of_a_node_are_such(&lab);
    drop(service);
}

fn the_workers_of_a_node_are_such(lab: &Lab) {
    // One that reads, and one that keeps what it fetches.
    let (disk, cache) = (lab.path("disk.raw"), lab.path("fetched"));
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let image = lab.make_dir("image");
    let layer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors/B1.obd");
    fs::copy(layer, image.join("B1.obd")).unwrap();
    fs::write(
        image.join("config.v1.json"),
        r#"{"lowers":[{"file":"B1.obd"}]}"#,
    )
    .unwrap();
    let attach = |image: &Path, name: &str, flags: &[&str]| {
        let mut attach = lab.yolofs();
        lab::ok(
            attach
                .args(["block", "attach"])
                .arg(image)
                .arg(name)
                .args(flags),
        );
    };
    attach(&disk, "read", &[]);
    attach(&image, "kept", &["--cache", cache.to_str().unwrap()]);
    let listed = lab::json(lab.yolofs().args(["block", "status", "--json"]));
    for device in listed.as_array().unwrap() {
        let status = fs::read_to_string(format!("/proc/{}/status", device["pid"])).unwrap();
        // CAP_DAC_READ_SEARCH and CAP_IPC_LOCK; CAP_DAC_OVERRIDE where it writes.
        let capabilities = match device["name"].as_str().unwrap() {
            "read" => "0000000000004004",
            _ => "0000000000004006",
        };
        for expected in [
            "Uid:\t65534\t65534\t65534\t65534\n".to_owned(),
            "Groups:\t \n".to_owned(),
            format!("CapPrm:\t{capabilities}\n"),
            format!("CapEff:\t{capabilities}\n"),
            format!("CapBnd:\t{capabilities}\n"),
            "NoNewPrivs:\t1\n".to_owned(),
            "Seccomp:\t2\n".to_owned(),
        ] {
            assert!(status.contains(&expected), "{expected}\n{status}");
        }
    }
    // What it left in its cache is of use to root's own commands, and theirs to it.
    lab::ok(lab.yolofs().args(["block", "detach", "kept"]));
    let mut verify = lab.yolofs();
    let verify = verify.args(["block", "verify"]).arg(&image);
    lab::ok(verify.arg("--cache").arg(&cache));
    attach(&image, "again", &["--cache", cache.to_str().unwrap()]);
}

fn privileged_the_worker_that_asks_a_service_has_its_files_and_port_only() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = service.source("tree");
    let _imported = block_service::import(&lab, "tree", &source);
    let secret = "ab".repeat(32);
    for (name, text) in [("access", format!("vm1 {secret} tree\n")), ("key", secret)] {
        fs::write(lab.path(name), text).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(lab.path(name), private).unwrap();
    }
    let access = lab.path("access");
    let flags = ["--blocks-access", access.to_str().unwrap()];
    let nic = block_service::Nic::at(&lab, "127.0.0.1:0", &flags);
    let (key, cache) = (lab.path("key"), lab.path("cache"));
    let cache = cache.to_str().unwrap();
    let flags = ["--nic", &nic.address, "--nic-name", "vm1", "--nic-key"];
    let more = [
        key.to_str().unwrap(),
        "--nic-cache",
        cache,
        "--nic-cache-size",
        "256M",
    ];
    // As root's own process has left it.
    fs::create_dir_all(lab.path("cache/chunks/segments")).unwrap();
    let mountpoint = lab.mount(Path::new("nic:tree"), "mnt", &[&flags[..], &more].concat());
    let readers = Readers::start(&mountpoint);
    let status = fs::read_to_string(format!("/proc/{}/status", nic.process.id())).unwrap();
    // CAP_DAC_OVERRIDE and CAP_NET_BIND_SERVICE.
    for expected in [
        "CapPrm:\t0000000000000402\n",
        "CapBnd:\t0000000000000402\n",
        "Seccomp:\t2\n",
    ] {
        assert!(status.contains(expected), "{expected}\n{status}");
    }
    for _ in 0..3 {
        let worker = service.worker(&mountpoint);
        let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        for expected in [
            "Uid:\t65534\t65534\t65534\t65534\n",
            "Groups:\t \n",
            // CAP_DAC_READ_SEARCH and CAP_IPC_LOCK.
            "CapPrm:\t0000000000004004\n",
            "CapBnd:\t0000000000004004\n",
            "NoNewPrivs:\t1\n",
            "Seccomp:\t2\n",
        ] {
            assert!(status.contains(expected), "{expected}\n{status}");
        }
        service.kill_worker(&mountpoint, Signal::SIGKILL);
        readers.until_more();
    }
    readers.stop();
    lab::ok(Command::new("diff").arg("-r").args([&source, &mountpoint]));
    let said = lab.status(&mountpoint)["nic"].clone();
    assert_eq!(said["lies"], 0, "{said}");
    lab.umount(&mountpoint);
    // What a worker wrote, the next one goes on from, and so does root's own daemon.
    let written = fs::read_dir(lab.path("cache/chunks/segments")).unwrap();
    assert!(written.count() > 0);
    drop(service);
    drop(nic);
    let flags = ["--standalone", "--nic", "127.0.0.1:1", "--nic-cache", cache];
    let mountpoint = lab.mount(Path::new("nic:tree"), "alone", &flags);
    lab::ok(Command::new("diff").arg("-r").args([&source, &mountpoint]));
    lab.umount(&mountpoint);
    // What it may open and call is what the attack is about.
    let own = lab.path("own");
    fs::create_dir(&own).unwrap();
    for (what, place, whose, expected) in [
        ("read", lab.path("access"), "", DENIED),
        ("read", PathBuf::from("/etc/shadow"), "", DENIED),
        ("write", lab.path("new"), "", DENIED),
        ("call", PathBuf::new(), "2", DENIED),
        ("call", PathBuf::new(), "1", intruder::REFUSED),
    ] {
        let said = intruder::does(&lab, As::PortCaller, what, &place, whose);
        assert_eq!(said, expected, "{what} {} {whose}", place.display());
    }
}

fn privileged_the_worker_of_a_service_that_lets_only_root_in_is_not_root() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = service.source("tree");
    let _imported = block_service::import(&lab, "tree", &source);
    let for_root = |nic: block_service::Nic| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(block_service::socket(&lab), mode).unwrap();
        nic
    };
    let nic = for_root(block_service::Nic::start(&lab));
    let mountpoint = lab.mount(Path::new("nic:tree"), "mnt", &["--nic", &nic.address]);
    let worker = service.worker(&mountpoint);
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    for expected in [
        "Uid:\t65534\t65534\t65534\t65534\n",
        // CAP_DAC_READ_SEARCH and CAP_IPC_LOCK.
        "CapPrm:\t0000000000004004\n",
        "Seccomp:\t2\n",
    ] {
        assert!(status.contains(expected), "{expected}\n{status}");
    }
    lab::ok(Command::new("diff").arg("-r").args([&source, &mountpoint]));
    let connected = || lab.status(&mountpoint)["nic"]["connected"] == true;
    let chunks = || lab.status(&mountpoint)["nic"]["chunks"].as_u64().unwrap();
    assert!(connected() && chunks() > 0);
    // The service comes back while this node is there, and when another has taken its place.
    nic.kill();
    lab::until("it is seen that the service is gone", || !connected());
    let nic = for_root(block_service::Nic::start(&lab));
    lab::until("the worker is connected again", connected);
    service.kill_node();
    nic.kill();
    lab::until("it is seen again that the service is gone", || !connected());
    let _nic = for_root(block_service::Nic::start(&lab));
    lab::until("another node has connected the worker", connected);
    assert_eq!(service.worker(&mountpoint), worker);
    // Who has broken into it connects to nobody by a name, not even where everybody may.
    let docker = lab.path("docker.sock");
    let _listening = std::os::unix::net::UnixListener::bind(&docker).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&docker, mode).unwrap();
    let api = lab.run_dir().join("node.sock");
    for place in [&docker, &api, &block_service::socket(&lab)] {
        let said = intruder::does(&lab, As::NodeCaller, "connect", place, "");
        assert_eq!(said, UNKNOWN, "{}", place.display());
    }
    lab.umount(&mountpoint);
}

/// A keeper as earlier releases had it is systemd to the node, but for the variable.
fn privileged_keeper_and_node_of_another_release_go_together() {
    let lab = Lab::new();
    let manager = lab.path("keeper.sock");
    let listening = UnixDatagram::bind(&manager).unwrap();
    let log = fs::File::create(lab.path("node.log")).unwrap();
    let mut node = lab
        .yolofs()
        .env("NOTIFY_SOCKET", &manager)
        .env("YOLOFS_KEEPER_PID", std::process::id().to_string())
        .args(["node", "--state-dir"])
        .arg(lab.path("state"))
        .stderr(log)
        .spawn()
        .unwrap();
    let mut ready = [0; 64];
    listening
        .set_read_timeout(Some(std::time::Duration::from_secs(60)))
        .unwrap();
    loop {
        let len = listening.recv(&mut ready).unwrap();
        if ready[..len].starts_with(b"READY=1") {
            break;
        }
    }
    let said = fs::read_to_string(lab.path("node.log")).unwrap();
    assert!(said.contains("is of an earlier release"), "{said}");
    node.kill().unwrap();
    node.wait().unwrap();
    // What such a node says of this release's keeper is in fdstore's tests; this is the other way
    // round: no keeper's descriptor came.
    let mut command = lab.yolofs();
    command
        .env("NOTIFY_SOCKET", "fd:keeper-link")
        .args(["node", "--state-dir"]);
    let why = lab::fails(1, command.arg(lab.path("state")));
    assert!(
        why.contains("was this process started by a keeper"),
        "{why}"
    );
}
