//! One nicfetch that is both: a mirror for engines, and a block service for mounts.

#![cfg(feature = "privileged")]

mod nic;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::{Lab, busybox_root, fails, json, noise, ok, output, until};
use nic::{BlockServer, IMAGE, Mirror, Site, ended, operate};
use testkit::registries::Kind;

fn nicfetch(verb: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    command.arg(verb);
    command
}

/// Compares all files of two trees, through the file systems that show them.
fn same(root: &Path, mounted: &Path) {
    ok(Command::new("diff")
        .arg("-r")
        .arg("--no-dereference")
        .args([root, mounted]));
}

/// Makes a small root.
fn root(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    root
}

#[test]
fn privileged_one_process_mirrors_and_serves_blocks_until_it_is_told() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let root = root(&lab);
    let store = site.path("store");
    let mut import = nicfetch("import");
    import.arg("--store").arg(&store);
    json(import.args(["--json", "--name", "root"]).arg(&root));
    let socket = format!("unix:{}", lab.path("nic.sock").display());
    let flags = ["--size", "2G", "--blocks", &socket, "--blocks-open"];
    let mut mirror = site.mirror("store", &flags);
    assert_eq!(mirror.blocks.as_deref(), Some(&*socket));
    mirror.blob(site.long().0);
    let origin = root.to_str().unwrap();
    let flags = ["--nic", &socket, "--origin", origin];
    let mountpoint = lab.mount(Path::new("nic:root"), "mnt", &flags);
    same(&root, &mountpoint);
    let status = lab.status(&mountpoint);
    assert!(status["nic"]["chunks"].as_u64().unwrap() >= 20, "{status}");
    // Half of the size is for blobs: the rest is the chunks'.
    let status = json(mirror.ask(&["status"]).arg("--json"));
    assert_eq!(status["budget_bytes"], 1 << 30, "{status}");
    // Nobody else can have the store meanwhile.
    let why = fails(1, &mut import);
    assert!(why.contains("opening the chunks"), "{why}");
    mirror.terminate();
    assert_eq!(ended(&mut mirror), Some(0));
    // What the service does not answer any more, the origin has.
    fs::write(root.join("etc/later"), "not of the source").unwrap();
    assert_eq!(
        fs::read(mountpoint.join("etc/config")).unwrap(),
        b"answer = 42\n"
    );
    lab.umount(&mountpoint);
}

#[test]
fn privileged_without_registries_there_are_only_blocks() {
    let lab = Lab::new();
    let config = lab.path("config.json");
    let socket = format!("unix:{}", lab.path("nic.sock").display());
    let admin = format!("unix:{}", lab.path("admin/nic.sock").display());
    let words = serde_json::json!({
        "admin": admin, "store": lab.path("store"), "size": "1G",
        "blocks": socket, "blocks_open": true,
    });
    fs::write(&config, words.to_string()).unwrap();
    let mut serve = nicfetch("serve");
    let mut serve = serve
        .arg("--config")
        .arg(&config)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(serve.stdout.take().unwrap()).lines();
    let lines: Vec<_> = lines.take(2).map(Result::unwrap).collect();
    assert_eq!(lines[0], format!("admin {admin}"));
    assert_eq!(lines[1], format!("blocks {socket}"));
    assert_eq!(operate(&admin, "GET", "/readyz", &[]).status, 200);
    serve.kill().unwrap();
    serve.wait().unwrap();
    let why = fails(2, &mut nicfetch("serve"));
    assert!(why.contains("--upstream"), "{why}");
}

/// Whether an image is a source of the block service, and whole.
fn is_source(mirror: &Mirror, name: &str) -> bool {
    let listed = json(&mut mirror.ask(&["ls", "--json"]));
    let sources = listed["sources"].as_array().into_iter().flatten();
    let mut found = sources.filter(|source| source["name"] == name);
    found.any(|source| source["absent_chunks"] == 0)
}

/// Compares the image of a site with what is mounted of it.
fn reads_as_pushed(lab: &Lab, mirror: &Mirror, name: &str) {
    let source = format!("nic:{IMAGE}");
    let address = mirror.blocks.as_deref().expect("it serves blocks");
    let mountpoint = lab.mount(Path::new(&source), name, &["--nic", address]);
    for (file, seed, len) in [("long", 1, 6 << 20), ("short", 2, 300_000)] {
        let found = fs::read(mountpoint.join(file)).expect("it is there");
        assert!(found == noise(seed, len), "{file}");
    }
    lab.umount(&mountpoint);
}

#[test]
fn privileged_an_image_that_was_brought_is_mounted_without_another_download() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let socket = format!("unix:{}", lab.path("nic.sock").display());
    let flags = ["--size", "2G", "--blocks", &socket, "--blocks-open"];
    let mirror = site.mirror("store", &flags);
    let done = json(&mut mirror.ask(&["prewarm", IMAGE, "--json"]));
    assert_eq!(done["source"], IMAGE, "{done}");
    // However far it is: what was promised is taken up again.
    mirror.kill();
    let mirror = site.mirror("store", &flags);
    until("the image is a source", || is_source(&mirror, IMAGE));
    reads_as_pushed(&lab, &mirror, "mnt");
    assert_eq!(site.proxy.body_bytes("/blobs/"), site.bytes());
    // Once more costs nothing.
    let again = json(&mut mirror.ask(&["prewarm", IMAGE, "--json"]));
    assert_eq!(again["fetched_bytes"], 0, "{again}");
}

#[test]
fn privileged_what_clients_pull_becomes_a_source_if_that_is_wanted() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let socket = format!("unix:{}", lab.path("nic.sock").display());
    let flags = ["--size", "2G", "--blocks", &socket, "--blocks-open"];
    let mirror = site.mirror("store", &[&flags[..], &["--blocks-from-pulls"]].concat());
    assert!(!is_source(&mirror, IMAGE));
    ok(&mut mirror.skopeo(&site.path("copy")));
    until("the image is a source", || is_source(&mirror, IMAGE));
    reads_as_pushed(&lab, &mirror, "mnt");
    assert_eq!(site.proxy.body_bytes("/blobs/"), site.bytes());
}

/// What `ls` shows of the only source.
fn only_source(server: &BlockServer) -> serde_json::Value {
    let listed = json(server.ask("ls").arg("--json"));
    let sources = listed["sources"].as_array().expect("it is a list");
    assert_eq!(sources.len(), 1, "{listed}");
    sources[0].clone()
}

#[test]
fn privileged_what_is_pinned_is_so_after_a_crash() {
    let lab = Lab::new();
    let root = root(&lab);
    let (store, socket) = (lab.path("nic"), lab.path("nic.sock"));
    let server = BlockServer::start(&store, &socket);
    let import = |more: &[&str]| {
        let mut import = server.ask("import");
        import.args(["--json", "--name", "a root"]).args(more);
        json(import.arg(&root))
    };
    assert_eq!(import(&[])["pinned"], false);
    assert_eq!(import(&["--pin"])["pinned"], true);
    assert_eq!(import(&[])["pinned"], true, "whoever replaces it");
    let status = json(server.ask("status").arg("--json"));
    assert_eq!(
        status["blocks"]["pinned_chunks"],
        status["blocks"]["chunks"]
    );
    drop(server);
    let server = BlockServer::start(&store, &socket);
    assert_eq!(only_source(&server)["pinned"], true);
    let text = ok(&mut server.ask("ls"));
    assert!(text.contains(", pinned"), "{text}");
    let freed = json(server.ask("unpin").args(["a root", "--json"]));
    assert_eq!(freed["pinned"], false);
    drop(server);
    let server = BlockServer::start(&store, &socket);
    assert_eq!(only_source(&server)["pinned"], false);
    json(server.ask("pin").args(["a root", "--json"]));
    assert_eq!(only_source(&server)["pinned"], true);
    let why = fails(1, server.ask("pin").arg("another"));
    assert!(why.contains("there is no source \"another\""), "{why}");
}

#[test]
fn privileged_an_operator_sees_and_looks_after_both() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let root = root(&lab);
    let socket = format!("unix:{}", lab.path("nic.sock").display());
    let flags = ["--size", "2G", "--blocks", &socket, "--blocks-open"];
    let mirror = site.mirror("store", &flags);
    mirror.blob(site.long().0);
    let path = root.to_str().expect("it is text");
    let import = || json(&mut mirror.ask(&["import", "--json", "--name", "root", path]));
    let first = import();
    let mountpoint = lab.mount(Path::new("nic:root"), "mnt", &["--nic", &socket]);
    same(&root, &mountpoint);
    lab.umount(&mountpoint);
    let status = json(&mut mirror.ask(&["status", "--json"]));
    let blocks = &status["blocks"];
    assert_eq!(blocks["source_bytes"], first["bytes"], "{status}");
    assert_eq!(blocks["chunks"], first["chunks"], "{status}");
    let sent = blocks["sent_chunks"].as_u64();
    assert!(sent >= first["chunks"].as_u64(), "{status}");
    assert_eq!(
        Some(mirror.metric("nicfetch_blocks_sent_chunks_total ")),
        sent
    );
    // One machine has read: all that was sent, for whatever reason, was sent to it.
    for counted in [
        r"nicfetch_blocks_answers_total{",
        r"nicfetch_blocks_machine_chunks_total{",
    ] {
        let lines = mirror.lines(counted);
        let lines = lines.iter().filter(|(labels, _)| {
            !labels.contains("answer=") || labels.contains(r#"answer="sent""#)
        });
        assert_eq!(Some(lines.map(|(_, count)| count).sum()), sent, "{counted}");
    }
    assert_eq!(mirror.metric("nicfetch_blocks_sources "), 1);
    let verified = json(&mut mirror.ask(&["verify", "--json"]));
    assert_eq!(verified["chunks"], first["chunks"], "{verified}");
    assert_eq!(
        (&verified["blobs"], &verified["damaged"]),
        (&1.into(), &0.into())
    );
    // A source that was replaced leaves its index, which goes.
    fs::write(root.join("etc/config"), "answer = 43\n").expect("it can be written");
    let second = import();
    assert_ne!(first["index"], second["index"]);
    let collected = json(&mut mirror.ask(&["gc", "--json"]));
    assert_eq!(collected["chunks"]["indexes"], 1, "{collected}");
    // What rots on the disk is found, and is gone.
    let digest = site.long().0.replace(':', "/");
    let file = site.path("store/mirror/blobs").join(digest);
    let mut bytes = fs::read(&file).expect("it is there");
    bytes[1000] ^= 1;
    fs::write(&file, bytes).expect("it can be written");
    let found = output(&mut mirror.ask(&["verify", "--json"]));
    assert_eq!(found.status.code(), Some(4));
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).expect("it is JSON");
    assert_eq!(found["damaged_names"], serde_json::json!([site.long().0]));
    mirror.blob(site.long().0);
}
