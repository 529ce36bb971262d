//! What was committed on a block image is pushed as an image of its own, and only what is new travels.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;
mod block_containers;
mod block_content;
mod node;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use block_containers::{DOCUMENTS, NOISE, Running, Source, is_removed, pull};
use block_content::{configured, roots_of};
use lab::service::{Service, signal_to};
use lab::{Lab, json, noise, ok, output, until};
use nix::sys::signal::Signal;
use node::Node;
use oci::registry::{Access, RegistryConfig, Repository, Target, Transport};
use oci::{Manifest, Platform, Reference};
use serde_json::Value;
use testkit::registries::{Kind, Proxy, Registry};

/// More than the documents of an image and all headers of a push take.
const ENVELOPE: u64 = 40_000;
const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";

/// Returns the manifest and the configuration of an image.
fn documents(name: &str) -> (Manifest, Value) {
    let reference: Reference = name.parse().unwrap();
    let config = RegistryConfig {
        transport: Transport::Plain,
        ..RegistryConfig::default()
    };
    let repository = Repository::open(&reference, Access::Pull, &config).unwrap();
    let mut watch = |_| ControlFlow::Continue(());
    let target = Target::of(&reference);
    let found = repository.image(&target, &Platform::host(), &mut watch);
    let (_, manifest) = found.unwrap().unwrap();
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        ControlFlow::Continue(())
    };
    repository
        .stream_blob(&manifest.config, &mut take, &mut watch)
        .unwrap();
    (manifest, serde_json::from_slice(&bytes).unwrap())
}

/// Makes an image on one in a registry.
fn create(lab: &Lab, name: &str, below: &str, kind: &str) -> PathBuf {
    let image = lab.path(name);
    let lower = format!("docker://{below}");
    let create = ["block", "create", "--kind", kind, "--lower", &lower];
    let mut command = lab.yolofs();
    command.args(create);
    if kind != "sealed" {
        command.args(["--size", "64G"]);
    }
    ok(command.arg(&image));
    image
}

/// Has the node mount the file system of an image while `act` uses it.
fn mounted<T>(lab: &Lab, image: &Path, flags: &[&str], act: impl FnOnce(&Path) -> T) -> T {
    let at = lab.make_dir("mounted");
    let cache = lab.path("cache");
    let name = image.file_name().unwrap().to_str().unwrap();
    let mount = ["--mount", "--erofs", at.to_str().unwrap()];
    let cache = ["--cache", cache.to_str().unwrap()];
    block_attached::attach(lab, image, name, &[&mount[..], &cache, flags].concat());
    let done = act(&at);
    until("it to be detached", || {
        output(lab.yolofs().args(["block", "detach", name]))
            .status
            .success()
    });
    done
}

fn commit(lab: &Lab, image: &Path, message: &str) -> Value {
    let commit = ["block", "commit", "--json", "--message", message];
    json(lab.yolofs().args(commit).arg(image))
}

fn push_command(lab: &Lab, image: &Path, to: &str) -> Command {
    let scratch = lab.path("scratch");
    fs::create_dir_all(&scratch).unwrap();
    push_by_way_of(lab, image, to, &scratch)
}

/// The same, with another directory for layers of the image below.
fn push_by_way_of(lab: &Lab, image: &Path, to: &str, scratch: &Path) -> Command {
    let mut push = lab.yolofs();
    push.args(["block", "push", "--json", "--scratch"])
        .arg(scratch);
    push.arg(image).arg(to);
    push
}

fn push(lab: &Lab, image: &Path, to: &str) -> Value {
    json(&mut push_command(lab, image, to))
}

fn is_refused(mut push: Command, why: &str) {
    let refused = output(&mut push);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(why), "{said}");
}

/// How the layers came there, the lowest first.
fn arrivals(pushed: &Value) -> Vec<&str> {
    let layers = pushed["layers"].as_array().unwrap().iter();
    layers.map(|layer| layer["how"].as_str().unwrap()).collect()
}

/// Lists all files with what is in them, without what a container has mounted.
fn tree(root: &Path) -> String {
    let script = "cd \"$1\"; set -- ./proc ./sys ./dev ./run ./lost+found; \
        for dir; do set -- \"$@\" -o -path \"$dir\"; shift; done; shift; \
        { find . -mindepth 1 \\( \"$@\" \\) -prune -o -printf '%p %y %m %U:%G %T@ %l\\n'; \
        find . \\( \"$@\" \\) -prune -o -type f -exec md5sum {} +; } | sort";
    ok(Command::new("sh").args(["-ec", script, "sh"]).arg(root))
}

fn change(root: &Path, round: u32) {
    fs::write(root.join(format!("srv/new-{round}")), noise(round, 300_000)).unwrap();
    fs::write(root.join("etc/config"), format!("round {round}\n")).unwrap();
    let _gone = fs::remove_file(root.join("srv/greeting"));
}

/// Compares the documents of an image with those of the one below its last layer.
fn has_one_more(below: &str, image: &str, last: &str) {
    let (base_manifest, base_config) = documents(below);
    let (manifest, config) = documents(image);
    assert_eq!(manifest.layers[..2], base_manifest.layers);
    let top = &manifest.layers[2];
    assert_eq!(last, top.digest.to_string());
    assert_eq!(top.annotations[BLOB_DIGEST], last);
    assert_eq!(top.media_type, "application/vnd.oci.image.layer.v1.tar");
    assert_eq!(
        top.annotations.len(),
        base_manifest.layers[0].annotations.len()
    );
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!(diff_ids.len(), 3);
    assert_eq!(diff_ids[2], last);
    assert_eq!(config["config"], base_config["config"]);
}

/// Compares what an image that was made on one of three layers has of their content.
fn has_roots(image: &Path, below: &str) {
    let roots = roots_of(below);
    assert_eq!((roots.len(), configured(image)), (3, roots));
}

#[test]
fn privileged_block_what_was_committed_is_pushed_and_only_what_is_new_travels() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let source = Source::with_ext4(&lab);
    let (base, to) = (source.image(), |tag: &str| {
        format!("{}/small:{tag}", source.proxy.host())
    });
    let image = create(&lab, "first", &base, "hybrid");
    let changed = mounted(&lab, &image, &["--writable"], |root| {
        change(root, 1);
        tree(root)
    });
    let uncommitted = push_command(&lab, &image, &to("first"));
    is_refused(uncommitted, "commit the changes first");
    let committed = commit(&lab, &image, "first round");
    let layer = &committed["layers"][0];
    let size = layer["size"].as_u64().unwrap();
    assert!(size < NOISE as u64 / 4, "{size}");
    let before = source.proxy.sent();
    let mut dry = push_command(&lab, &image, &to("first"));
    let planned = json(dry.arg("--dry-run"));
    assert_eq!(arrivals(&planned), ["there", "there", "missing"]);
    assert!(source.proxy.sent() - before < ENVELOPE);
    let before = source.proxy.sent();
    let pushed = push(&lab, &image, &to("first"));
    assert_eq!(arrivals(&pushed), ["there", "there", "pushed"]);
    assert_eq!(pushed["manifest"], planned["manifest"]);
    assert_eq!(pushed["bytes"], size);
    let sent = source.proxy.sent() - before;
    assert!((size..size + ENVELOPE).contains(&sent), "{sent} of {size}");
    // Nothing travels twice.
    let before = source.proxy.sent();
    let again = push(&lab, &image, &to("first"));
    assert_eq!(arrivals(&again), ["there"; 3]);
    assert_eq!(again["manifest"], pushed["manifest"]);
    assert_eq!(again["bytes"], 0);
    assert!(source.proxy.sent() - before < ENVELOPE);

    has_one_more(&base, &to("first"), layer["digest"].as_str().unwrap());
    let seen = create(&lab, "seen", &to("first"), "sealed");
    has_roots(&seen, &to("first"));
    assert_eq!(mounted(&lab, &seen, &[], tree), changed);

    // A second commit on top of it, and both layers of the first image in one push elsewhere.
    let second = create(&lab, "second", &to("first"), "append");
    let changed = mounted(&lab, &second, &["--writable"], |root| {
        change(root, 2);
        tree(root)
    });
    let size = commit(&lab, &second, "")["layers"][0]["size"]
        .as_u64()
        .unwrap();
    let before = source.proxy.sent();
    let pushed = push(&lab, &second, &to("second"));
    assert_eq!(arrivals(&pushed), ["there", "there", "there", "pushed"]);
    let sent = source.proxy.sent() - before;
    assert!((size..size + ENVELOPE).contains(&sent), "{sent} of {size}");
    let seen = create(&lab, "seen-2", &to("second"), "sealed");
    assert_eq!(mounted(&lab, &seen, &[], tree), changed);
    // Another repository of the registry takes the layers from there.
    let elsewhere = format!("{}/other/app:1", source.proxy.host());
    let before = source.proxy.sent();
    let pushed = push(&lab, &second, &elsewhere);
    assert_eq!(
        arrivals(&pushed),
        ["mounted", "mounted", "mounted", "pushed"]
    );
    assert!(source.proxy.sent() - before < size + ENVELOPE);
    // Another registry is sent them.
    let other = Registry::start(Kind::Olareg);
    let pushed = push(&lab, &second, &format!("{}/app:1", other.host()));
    assert_eq!(arrivals(&pushed), ["copied", "copied", "copied", "pushed"]);
    assert_eq!(
        documents(&format!("{}/app:1", other.host())),
        documents(&elsewhere)
    );
    let seen = create(&lab, "seen-3", &format!("{}/app:1", other.host()), "sealed");
    assert_eq!(mounted(&lab, &seen, &[], tree), changed);
    assert_eq!(left_in(&lab.path("scratch")), 0);
}

#[test]
fn privileged_block_what_does_not_belong_together_is_not_pushed() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let archive = node::archive(&lab, NOISE);
    let source = Source::of(&lab, &archive);
    let ext4 = source.add_ext4(&lab, &archive);
    let (erofs, to) = (source.image(), format!("{}/small:new", source.proxy.host()));
    let image = create(&lab, "image", &ext4, "hybrid");
    mounted(&lab, &image, &["--writable"], |root| change(root, 1));
    commit(&lab, &image, "");
    let refused = |flags: &[&str], why: &str| {
        let refused = output(push_command(&lab, &image, &to).args(flags));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused(&["--base", &erofs], "written on another image: layer 1 ");
    refused(&["--base", &to], "there is no image");
    let plain = format!("docker://{}/plain:1", source.registry.host());
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--insecure-policy", "--dest-tls-verify=false"]);
    ok(skopeo.args([&format!("docker-archive:{}", archive.display()), &plain]));
    let plain = format!("{}/plain:1", source.proxy.host());
    refused(&["--base", &plain], "no block images: convert it");
    // A layer that was changed since its commit.
    let config: Value =
        serde_json::from_slice(&fs::read(image.join("config.v1.json")).unwrap()).unwrap();
    let layer = image.join(config["lowers"][2]["file"].as_str().unwrap());
    let whole = fs::read(&layer).unwrap();
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(&layer, damaged).unwrap();
    refused(&[], "was changed");
    fs::write(&layer, whole).unwrap();
    push(&lab, &image, &to);
    // A registry that knows nobody by this name.
    let locked = Registry::start(Kind::DockerWithUsers);
    let refused = output(&mut push_command(
        &lab,
        &image,
        &format!("{}/app:1", locked.host()),
    ));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("docker login"), "{said}");
}

/// What has a container write to a device of its own.
const WRITABLE: &str = "containerd.io/snapshot/overlaybd.writable";

/// Pushes a committed snapshot.
fn push_snapshot(lab: &Lab, node: &Node<'_>, key: &str, to: &str) -> Command {
    let image = PathBuf::from(format!("containerd://default/{key}"));
    let mut push = push_command(lab, &image, to);
    push.arg("--address").arg(node.containerd_socket());
    push
}

/// Commits what a container has written, and returns the bytes of the layer.
fn commit_snapshot(node: &Node<'_>, name: &str, key: &str) -> u64 {
    node.ctr(&["snapshots", "commit", name, key]);
    let info = node.ctr(&["snapshots", "info", name]);
    let info: Value = serde_json::from_str(&info).unwrap();
    let path = "containerd.io/snapshot/overlaybd.localcommitpath";
    let path = info["Labels"][path].as_str().unwrap();
    fs::metadata(path).unwrap().len()
}

#[test]
fn privileged_block_what_containers_changed_is_pushed_and_started_lazily_elsewhere() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::with_ext4(&lab);
    let (image, to) = (source.image(), |tag: &str| {
        format!("{}/small:{tag}", source.proxy.host())
    });
    pull(&node, &image);
    let container = Running::start(&node, &image, "push-1", &[(WRITABLE, "dir")]);
    change(&container.root, 1);
    let first = tree(&container.root);
    let refused = |key, why| is_refused(push_snapshot(&lab, &node, key, &to("first")), why);
    refused("push-1", "end its container");
    refused("nobody", "there is no snapshot");
    container.end();
    let size = commit_snapshot(&node, "committed-1", "push-1");
    // Nobody serves anything while it is pushed.
    service.kill_node();
    let before = source.proxy.sent();
    let pushed = json(&mut push_snapshot(&lab, &node, "committed-1", &to("first")));
    assert_eq!(arrivals(&pushed), ["there", "there", "pushed"]);
    let sent = source.proxy.sent() - before;
    assert!((size..size + ENVELOPE).contains(&sent), "{sent} of {size}");
    // An overlay has no layer of a block image.
    node.ctr(&["snapshots", "prepare", "usual", "committed-1"]);
    node.ctr(&["snapshots", "commit", "committed-usual", "usual"]);
    refused("committed-usual", "wrote to an overlay");
    for key in ["committed-usual", "committed-1"] {
        node.ctr(&["snapshots", "rm", key]);
    }
    node.ctr(&["containers", "rm", "push-1"]);
    is_removed(&lab, &node, &image);
    drop(container);
    drop((node, service));

    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &["--block-background", "plan"]);
    let before = source.proxy.bytes();
    pull(&node, &to("first"));
    let pulled = source.proxy.bytes() - before;
    assert!(pulled < DOCUMENTS, "{pulled} bytes were pulled");
    let name = to("first");
    let container = Running::start(&node, &name, "push-2", &[(WRITABLE, "dir")]);
    assert_eq!(tree(&container.root), first);
    change(&container.root, 2);
    let second = tree(&container.root);
    container.end();
    let size = commit_snapshot(&node, "committed-2", "push-2");
    let before = source.proxy.sent();
    let pushed = json(&mut push_snapshot(
        &lab,
        &node,
        "committed-2",
        &to("second"),
    ));
    assert_eq!(arrivals(&pushed), ["there", "there", "there", "pushed"]);
    let sent = source.proxy.sent() - before;
    assert!((size..size + ENVELOPE).contains(&sent), "{sent} of {size}");
    // To another repository, by way of the one that containerd knows.
    let other = format!("{}/other/app:1", source.proxy.host());
    let pushed = json(&mut push_snapshot(&lab, &node, "committed-2", &other));
    assert_eq!(
        arrivals(&pushed),
        ["mounted", "mounted", "mounted", "pushed"]
    );
    // In an overlay, too.
    pull(&node, &other);
    let seen = Running::start(&node, &other, "push-3", &[]);
    assert_eq!(seen.mounted().0, "overlay");
    assert_eq!(tree(&seen.root), second);
    seen.end();
    for key in ["push-2", "push-3"] {
        node.ctr(&["containers", "rm", key]);
    }
    node.ctr(&["snapshots", "rm", "committed-2"]);
    node.ctr(&["images", "rm", "--sync", &other]);
    is_removed(&lab, &node, &name);
}

/// Bytes of a layer that goes up in several requests.
const LARGE: usize = 20 << 20;

/// Makes an image on one in a registry, and commits a large file on top.
fn with_large_layer(lab: &Lab, below: &str) -> (PathBuf, u64) {
    let image = create(lab, "large", below, "hybrid");
    mounted(lab, &image, &["--writable"], |root| {
        fs::write(root.join("srv/large"), noise(3, LARGE)).unwrap();
    });
    let size = commit(lab, &image, "large")["layers"][0]["size"].as_u64();
    (image, size.unwrap())
}

/// Docker's registry keeps what has come of a request that was cut, and then refuses to go on: all of it is sent again.
#[test]
fn privileged_block_an_upload_that_is_cut_goes_on_where_the_registry_has_it() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let source = Source::with_ext4(&lab);
    let (image, size) = with_large_layer(&lab, &source.image());
    for (kind, again) in [(Kind::Olareg, 8 << 20), (Kind::Docker, size)] {
        let registry = Registry::start(kind);
        let proxy = Proxy::before(&registry);
        // In the middle of the second of three requests for the new layer.
        let below = documents(&source.image()).0.layers;
        let below: u64 = below.iter().map(|layer| layer.size).sum();
        proxy.cut_sent_after(below + (12 << 20));
        let pushed = push(&lab, &image, &format!("{}/app:large", proxy.host()));
        assert!(!proxy.cuts_sent(), "it was not cut");
        assert_eq!(arrivals(&pushed), ["copied", "copied", "pushed"]);
        let sent = proxy.sent() - below;
        assert!(sent < size + again + ENVELOPE, "{kind:?}: {sent} of {size}");
    }
}

#[test]
fn privileged_block_a_push_outlives_a_registry_that_dies_and_one_that_is_interrupted_is_repeated() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let source = Source::with_ext4(&lab);
    let (image, size) = with_large_layer(&lab, &source.image());
    let mut other = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&other);
    let to = format!("{}/app:1", proxy.host());
    // A slow line: no faster than 3.2 MB/s.
    proxy.slow_down(5);
    let begun = |enough: u64| {
        let before = proxy.sent();
        let child = push_command(&lab, &image, &to)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("it to send something", || proxy.sent() - before > enough);
        child
    };
    // The image below has arrived, and a part of the new layer.
    let child = begun(NOISE as u64 + (4 << 20));
    signal_to(child.id(), Signal::SIGINT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let nothing = output(lab.yolofs().args(["block", "create", "--lower"]).args([
        &format!("docker://{to}"),
        lab.path("nothing").to_str().unwrap(),
    ]));
    let said = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(said.contains("there is no image"), "{said}");
    // Again, and the registry is killed in the middle of it, and comes back.
    let before = proxy.sent();
    let child = begun(6 << 20);
    other.kill();
    other.start_again();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let pushed: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(arrivals(&pushed), ["there", "there", "pushed"]);
    let sent = proxy.sent() - before;
    assert!(sent < 2 * size, "{sent} of {size}");
    proxy.slow_down(0);
    let seen = create(&lab, "seen", &to, "sealed");
    let found = mounted(&lab, &seen, &[], |root| {
        fs::read(root.join("srv/large")).unwrap()
    });
    assert!(found == noise(3, LARGE), "it differs");
    assert_eq!(left_in(&lab.path("scratch")), 0);
}

/// How much a push has left in its directory.
fn left_in(scratch: &Path) -> usize {
    fs::read_dir(scratch).unwrap().count()
}

#[test]
fn privileged_block_a_push_without_room_for_the_image_below_says_so() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let source = Source::with_ext4(&lab);
    let image = create(&lab, "image", &source.image(), "hybrid");
    mounted(&lab, &image, &["--writable"], |root| change(root, 1));
    commit(&lab, &image, "");
    let small = lab.make_dir("small");
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&small));
    let other = Registry::start(Kind::Docker);
    let to = format!("{}/app:1", other.host());
    let push = || push_by_way_of(&lab, &image, &to, &small);
    let refused = output(&mut push());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("No space left"),
        "{said}"
    );
    assert_eq!(left_in(&small), 0);
    ok(Command::new("mount")
        .args(["-o", "remount,size=64m"])
        .arg(&small));
    let pushed = json(&mut push());
    assert_eq!(arrivals(&pushed), ["copied", "copied", "pushed"]);
    assert_eq!(left_in(&small), 0);
    ok(Command::new("umount").arg(&small));
}
