//! `yolofs pull`, from a real registry into a real containerd.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(target_arch = "x86_64")]
mod broken;
mod fair;
mod node;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fair::Network;
use lab::{Lab, busybox_root, fails, json, noise, ok, until};
use node::{IMAGE, Node};
use oci::digest_of;
use serde_json::Value;
use testkit::layouts::{LayoutDir, gzip, layer, named};
use testkit::registries::{Kind, Proxy, Registry};

/// What files of the images here were changed at, unless nothing is said of them.
const LONG_AGO: i64 = 1_700_000_000;

/// Puts an image of these tars into a registry.
fn push(lab: &Lab, tars: &[Vec<u8>], to: &str) {
    let dir = lab.make_dir("layout");
    let layout = LayoutDir(&dir);
    layout.start();
    let run = serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]});
    layout.index(&[named(layout.image(tars, &run), "1")]);
    ok(Command::new("skopeo")
        .args(["copy", "--quiet", "--dest-tls-verify=false"])
        .arg(format!("oci:{}:1", dir.display()))
        .arg(format!("docker://{to}")));
    fs::remove_dir_all(dir).unwrap();
}

fn pull(lab: &Lab, node: &Node<'_>, image: &str) -> Command {
    let mut command = lab.yolofs();
    command
        .args(["pull", image, "--json"])
        .env("CONTAINERD_NAMESPACE", "default")
        .arg("--address")
        .arg(node.containerd_socket());
    command
}

fn pulled(lab: &Lab, node: &Node<'_>, image: &str) -> Value {
    json(&mut pull(lab, node, image))
}

/// Where the layers went.
fn went(report: &Value) -> Vec<&str> {
    let layers = report["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["went"].as_str().unwrap())
        .collect()
}

fn in_background(lab: &Lab, node: &Node<'_>, image: &str) -> Child {
    let mut command = pull(lab, node, image);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().unwrap()
}

fn names(dir: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn staged(node: &Node<'_>) -> Vec<String> {
    names(node.root().join("staged"))
}

/// Fails unless nothing of any pull is in containerd and the snapshotter.
fn assert_nothing_is_left(node: &Node<'_>) {
    assert_eq!(node.ctr(&["leases", "ls", "-q"]), "");
    assert_eq!(node.ctr(&["images", "ls", "-q"]), "");
    node.collect_garbage();
    until("all snapshots to go", || node.directories() == 0);
    until("all that was staged to go", || staged(node).is_empty());
}

/// All that can be said of a tree, by path.
fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let inside = fs::read_dir(root.join(&dir)).unwrap();
        let inside = inside.map(|entry| dir.join(entry.unwrap().file_name()));
        let mut all: Vec<_> = inside.collect();
        all.sort();
        if dir.as_os_str().is_empty() {
            all.push(PathBuf::new());
        }
        for path in all {
            let full = root.join(&path);
            let of = fs::symlink_metadata(&full).unwrap();
            let kind = of.file_type();
            if kind.is_dir() && !path.as_os_str().is_empty() {
                dirs.push(path.clone());
            }
            let content = match () {
                () if kind.is_file() => digest_of(&fs::read(&full).unwrap()).to_string(),
                () if kind.is_symlink() => fs::read_link(&full).unwrap().display().to_string(),
                () if kind.is_char_device() => format!("device {}", of.rdev()),
                () => String::new(),
            };
            // Where nothing is said, it is when it was unpacked.
            let changed = (of.mtime() == LONG_AGO).then_some(of.mtime_nsec());
            let first = inodes.entry(of.ino()).or_insert_with(|| path.clone());
            if kind.is_char_device() && of.rdev() == 0 {
                // Nobody looks at what else it is.
                found.insert(path, "deleted".to_owned());
                continue;
            }
            let xattrs = ok(Command::new("getfattr")
                .args([
                    "--no-dereference",
                    "--dump",
                    "--match=-",
                    "--absolute-names",
                ])
                .arg(&full));
            let xattrs: Vec<_> = xattrs.lines().filter(|line| line.contains('=')).collect();
            let links = if kind.is_dir() { 0 } else { of.nlink() };
            found.insert(
                path.clone(),
                format!(
                    "{:o} {}:{} {changed:?} {content} {links} {first:?} {xattrs:?}",
                    of.mode(),
                    of.uid(),
                    of.gid()
                ),
            );
        }
    }
    found
}

/// An image with all that layers have, in four of them.
fn of_everything(lab: &Lab) -> Vec<Vec<u8>> {
    let dir = lab.make_dir("everything");
    let base = dir.join("base");
    busybox_root(&base);
    let script = "umask 022; mkdir srv group; chown 7:8 srv group; chmod 2770 group; chmod 770 srv; echo hello >srv/greeting; \
        mkdir -p srv/deep/down opt/gone opt/kept; chmod 700 srv/deep; chown 9:9 srv/deep; \
        echo x >opt/gone/file; echo x >opt/kept/file; ln srv/greeting srv/hard; ln -s greeting srv/soft; \
        chmod 4755 srv/hard; mkfifo srv/fifo; setfattr -n user.colour -v blue srv/greeting; \
        setfattr -n user.shape -v round srv/deep; : >srv/empty; chown 3:4 .";
    ok(Command::new("sh").args(["-ec", script]).current_dir(&base));
    let second = lab.make_dir("everything/second");
    let script = "mkdir -m 711 srv; echo new >srv/greeting; echo x >srv/.wh.hard; \
        mkdir opt; echo >opt/.wh.gone; mkdir opt/kept; echo >opt/kept/.wh..wh..opq; echo y >opt/kept/other";
    ok(Command::new("sh")
        .args(["-ec", script])
        .current_dir(&second));
    let tar = |name: &str| {
        let tar = dir.join(format!("{name}.tar"));
        ok(Command::new("tar")
            .arg(format!("--mtime=@{LONG_AGO}"))
            .args(["--format=pax", "--xattrs", "--xattrs-include=user.*", "-cf"])
            .arg(&tar)
            .args(["-C", name, "."])
            .current_dir(&dir));
        fs::read(tar).unwrap()
    };
    vec![
        tar("base"),
        tar("second"),
        // Its directories are those of the layers below: nothing is said of them, nor of the top.
        layer(&[
            ("srv/deep/down/file", b"x"),
            ("srv/deep/new/file", b"y"),
            ("srv/.wh.empty", b""),
        ]),
        layer(&[("big", &noise(3, 600_000))]),
    ]
}

#[test]
fn privileged_a_pulled_image_is_what_containerd_makes_of_it() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let node = Node::start(&lab, &[]);
    let tars = of_everything(&lab);
    push(&lab, &tars, &format!("{}/everything:1", registry.host()));
    let image = format!("{}/everything:1", proxy.host());

    let dry = json(pull(&lab, &node, &image).arg("--dry-run"));
    assert_eq!(went(&dry), ["disk"; 4]);
    assert_eq!(dry["dry_run"], true);
    assert_nothing_is_left(&node);

    let report = pulled(&lab, &node, &image);
    assert_eq!(went(&report), ["disk"; 4]);
    let all: usize = tars.iter().map(|tar| gzip(tar).len()).sum();
    assert_eq!(report["fetched_bytes"], all);
    assert_eq!(node.ctr(&["leases", "ls", "-q"]), "");
    assert_eq!(staged(&node), [""; 0]);
    assert_eq!(node.ctr(&["images", "ls", "-q"]), image);
    // containerd's own, of another namespace, which shares nothing with this one.
    let other = ["--namespace", "k8s.io", "images", "pull", "--plain-http"];
    node.ctr(&[&other[..], &["--snapshotter", "yolofs", &image]].concat());
    let ids = names(node.root().join("snapshots"));
    assert_eq!(ids.len(), 8, "{ids:?}");
    let mut ids: Vec<u64> = ids.iter().map(|id| id.parse().unwrap()).collect();
    ids.sort_unstable();
    for (layer, (ours, theirs)) in ids[..4].iter().zip(&ids[4..]).enumerate() {
        let at = |id: &u64| node.root().join(format!("snapshots/{id}/fs"));
        let (ours, theirs) = (describe(&at(ours)), describe(&at(theirs)));
        assert_eq!(ours, theirs, "layer {layer}");
        assert!(ours.len() > 1, "{ours:?}");
    }
    // A container finds it as it is to be.
    node.ctr(&["images", "tag", &image, IMAGE]);
    let script = "cat /srv/greeting; ls /opt /opt/kept /srv; stat -c '%a %u:%g' /srv/deep /srv /";
    let said = node.run(&[], "everything", script);
    let expected = "new\n/opt:\nkept\n\n/opt/kept:\nother\n\n/srv:\ndeep\nfifo\ngreeting\nsoft\n\
                    700 9:9\n711 0:0\n";
    assert!(said.starts_with(expected), "{said}");

    // The second time nothing is downloaded, and nothing is made.
    let before = proxy.bytes();
    let again = pulled(&lab, &node, &image);
    assert_eq!(went(&again), ["present"; 4]);
    assert_eq!(again["fetched_bytes"], 0);
    assert!(proxy.bytes() - before < 20_000);
    assert_eq!(node.directories(), 8);

    // What is removed goes.
    node.ctr(&["--namespace", "k8s.io", "images", "rm", "--sync", &image]);
    until("their layers to go", || node.directories() == 4);
    node.forget_everything();
    assert_nothing_is_left(&node);
}

#[test]
fn privileged_a_layer_with_a_wrong_byte_leaves_nothing() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let node = Node::start(&lab, &["--layers-fast", "tmpfs,max=64M"]);
    let tars = [1, 2, 3].map(|seed| layer(&[("file", &noise(seed, 300_000))]));
    push(&lab, &tars, &format!("{}/wrong:1", registry.host()));
    let image = format!("{}/wrong:1", proxy.host());
    proxy.lie();
    let said = fails(1, &mut pull(&lab, &node, &image));
    assert!(said.contains("pulling the layer"), "{said}");
    assert_nothing_is_left(&node);
    let missing = fails(
        1,
        &mut pull(&lab, &node, &format!("{}/none:1", proxy.host())),
    );
    assert!(missing.contains("is not in the registry"), "{missing}");
}

#[test]
fn privileged_who_is_missing_is_named() {
    let lab = Lab::new();
    let node = Node::start(&lab, &[]);
    let mut nobody = lab.yolofs();
    nobody.args(["pull", IMAGE, "--address", "/nonexistent/containerd.sock"]);
    let said = fails(1, &mut nobody);
    assert!(said.contains("is containerd running?"), "{said}");
    let said = fails(1, pull(&lab, &node, IMAGE).args(["--snapshotter", "none"]));
    assert!(said.contains("proxy_plugins"), "{said}");
    let said = fails(
        1,
        pull(&lab, &node, IMAGE).args(["--snapshotter", "overlayfs"]),
    );
    assert!(said.contains("of containerd's own"), "{said}");
    let elsewhere = lab.make_dir("elsewhere");
    let said = fails(1, pull(&lab, &node, IMAGE).arg("--run-dir").arg(elsewhere));
    assert!(said.contains("--run-dir"), "{said}");
}

/// An image whose second layer has all but its last bytes come until it is told otherwise.
struct Held {
    image: String,
    tars: [Vec<u8>; 3],
    go: Arc<AtomicBool>,
    reached: Arc<AtomicBool>,
}

impl Held {
    fn new(lab: &Lab, registry: &Registry, network: &Network) -> Self {
        let tars = [1, 2, 3].map(|seed| layer(&[("file", &noise(seed, 900_000))]));
        push(lab, &tars, &format!("{}/held:1", registry.host()));
        let held = Self {
            image: format!("127.0.0.1:{}/held:1", network.port),
            tars,
            go: Arc::default(),
            reached: Arc::default(),
        };
        let (go, reached) = (Arc::clone(&held.go), Arc::clone(&held.reached));
        network.hold(digest_of(&gzip(&held.tars[1])).hex(), move || {
            reached.store(true, SeqCst);
            go.load(SeqCst)
        });
        held
    }

    /// Waits until the lowest layer is containerd's, and the others are staged.
    fn until_in_the_middle(&self, node: &Node<'_>) {
        until("the pull to be in the middle", || {
            let is_there = || node.ctr(&["snapshots", "ls"]).contains("Committed");
            self.reached.load(SeqCst) && self.files(node, "staged") == 2 && is_there()
        });
    }

    /// Counts the layers that have a file in a directory of the root.
    fn files(&self, node: &Node<'_>, dir: &str) -> usize {
        let dir = node.root().join(dir);
        let all = names(dir.clone()).into_iter();
        all.filter(|name| dir.join(name).join("fs/file").exists())
            .count()
    }

    fn assert_whole(&self, node: &Node<'_>) {
        for (id, tar) in names(node.root().join("snapshots")).iter().zip(&self.tars) {
            let file = fs::read(node.root().join("snapshots").join(id).join("fs/file")).unwrap();
            assert_eq!(layer(&[("file", &file)]), *tar);
        }
        assert_eq!(node.directories(), 3);
        assert_eq!(staged(node), [""; 0]);
    }
}

/// A pull that is in its middle, and goes on when `held.go` says so.
struct Halfway<'lab> {
    child: Child,
    held: Held,
    node: Node<'lab>,
    _network: Network,
    registry: Registry,
}

impl<'lab> Halfway<'lab> {
    fn start(lab: &'lab Lab) -> Self {
        let registry = Registry::start(Kind::Docker);
        let network = Network::before(registry.port);
        let node = Node::start(lab, &[]);
        let held = Held::new(lab, &registry, &network);
        let child = in_background(lab, &node, &held.image);
        held.until_in_the_middle(&node);
        Self {
            child,
            held,
            node,
            _network: network,
            registry,
        }
    }
}

#[test]
fn privileged_a_pull_that_is_ended_leaves_nothing() {
    let lab = Lab::new();
    let mut pull = Halfway::start(&lab);
    ok(Command::new("kill").args(["-INT", &pull.child.id().to_string()]));
    assert_eq!(pull.child.wait().unwrap().code(), Some(130));
    assert_nothing_is_left(&pull.node);
    pull.held.go.store(true, SeqCst);
}

#[test]
fn privileged_a_pull_that_is_killed_leaves_nothing_to_the_next() {
    let lab = Lab::new();
    let mut pull = Halfway::start(&lab);
    pull.child.kill().unwrap();
    pull.child.wait().unwrap();
    assert_eq!(staged(&pull.node).len(), 2, "nobody could delete it");
    pull.held.go.store(true, SeqCst);
    // The next one finds the lowest layer, or has it again if it was collected with the lease.
    let report = pulled(&lab, &pull.node, &pull.held.image);
    assert_eq!(went(&report)[1..], ["disk"; 2]);
    until("what was staged to go", || staged(&pull.node).is_empty());
    until("the lease of the dead to go", || {
        pull.node.ctr(&["leases", "ls", "-q"]).is_empty()
    });
    pull.node.collect_garbage();
    until("only the image to be there", || {
        pull.node.directories() == 3
    });
    pull.held.assert_whole(&pull.node);
    pull.node.forget_everything();
    assert_nothing_is_left(&pull.node);
}

/// Each removes the leases of those that were killed. A confined one cannot look at the others.
#[test]
fn privileged_a_pull_keeps_what_another_pull_has() {
    let lab = Lab::new();
    let mut pull = Halfway::start(&lab);
    let leases = || pull.node.ctr(&["leases", "ls", "-q"]);
    let before = leases();
    assert!(
        before.contains(&format!("-{}-", pull.child.id())),
        "{before}"
    );
    let other = format!("{}/other:1", pull.registry.host());
    push(&lab, &[layer(&[("file", b"other")])], &other);
    pulled(&lab, &pull.node, &other);
    assert_eq!(leases(), before, "the lease of a pull that goes on");
    pull.node.collect_garbage();
    pull.held.go.store(true, SeqCst);
    assert!(pull.child.wait().unwrap().success());
    assert_eq!(leases(), "");
    pull.node.forget_everything();
    assert_nothing_is_left(&pull.node);
}

#[test]
fn privileged_a_pull_outlives_the_snapshotter() {
    let lab = Lab::new();
    let mut pull = Halfway::start(&lab);
    let before = staged(&pull.node);
    pull.node.kill_snapshotter();
    let orphan = pull.node.root().join("staged").join("a".repeat(32));
    fs::create_dir_all(orphan.join("fs")).unwrap();
    pull.node.start_snapshotter();
    until("what nobody holds to go", || !orphan.exists());
    assert_eq!(staged(&pull.node), before, "what somebody holds stays");
    pull.held.go.store(true, SeqCst);
    assert!(pull.child.wait().unwrap().success());
    pull.held.assert_whole(&pull.node);
    pull.node.forget_everything();
    assert_nothing_is_left(&pull.node);
}

#[test]
fn privileged_layers_go_to_the_fast_place_while_there_is_room() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let flags = ["--layers-fast", "tmpfs,max=8M", "--layers-stay", "3600"];
    let node = Node::start(&lab, &flags);
    let fast = || node.status()["layers_fast"].clone();
    // The last one to come is the second. What does not compress is foreseen to take four times as
    // much; zeros take more than that, and more than there is.
    let sizes = [300_000, 900_000, 400_000];
    let noises = sizes.map(|len| layer(&[("file", &noise(7, len))]));
    let zeros = layer(&[("file", &[0; 40_000_000])]);
    let tars = [&noises[..], &[zeros]].concat();
    let image = format!("{}/fast:1", registry.host());
    push(&lab, &tars, &image);
    let report = pulled(&lab, &node, &image);
    assert_eq!(went(&report), ["disk", "fast", "fast", "disk"]);
    let at = |id: usize| node.root().join(format!("snapshots/{id}"));
    for (id, (is_fast, len)) in [
        (false, 300_000),
        (true, 900_000),
        (true, 400_000),
        (false, 40_000_000),
    ]
    .into_iter()
    .enumerate()
    {
        let id = id + 1;
        assert_eq!(at(id).is_symlink(), is_fast, "{id}");
        assert_eq!(at(id).join("fs/file").metadata().unwrap().len(), len);
    }
    assert_eq!(names(node.root().join("layers/staged")), [""; 0]);
    // What was booked for the one that did not fit is given back in the background.
    until("only these two to be counted", || fast()["layers"] == 2);
    let state = fast();
    let number = |name: &str| state[name].as_u64().unwrap();
    assert_eq!(
        (number("fast"), number("disk"), number("layers")),
        (2, 2, 2)
    );
    let used = number("used_bytes");
    assert!((1_300_000..1_600_000).contains(&used), "{state}");
    node.forget_everything();
    until("the room to be free", || fast()["used_bytes"] == 0);
}

#[test]
fn privileged_blobs_that_are_kept_can_be_exported() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let node = Node::start(&lab, &[]);
    let tars = [1, 2, 3].map(|seed| layer(&[("file", &noise(seed, 700_000))]));
    push(&lab, &tars, &format!("{}/kept:1", registry.host()));
    let image = format!("{}/kept:1", proxy.host());
    let blobs = |node: &Node<'_>| node.ctr(&["content", "ls", "-q"]).lines().count();
    // One that is cut, and goes on, is kept whole.
    proxy.cut_once_after(900_000);
    let report = json(pull(&lab, &node, &image).args(["--blobs", "keep"]));
    assert_eq!(went(&report), ["disk"; 3]);
    assert_eq!(blobs(&node), 5, "manifest, configuration, layers");
    node.collect_garbage();
    assert_eq!(blobs(&node), 5, "the image names them");
    let archive = lab.path("exported.tar");
    node.ctr(&["images", "export", archive.to_str().unwrap(), &image]);
    let listed = ok(Command::new("tar").arg("-tf").arg(&archive));
    for tar in &tars {
        let name = format!("blobs/sha256/{}", digest_of(&gzip(tar)).hex());
        assert!(listed.contains(&name), "{name} in {listed}");
    }
    node.forget_everything();
    until("the blobs to go", || blobs(&node) == 0);
    assert_nothing_is_left(&node);
    // Of a pull that fails none is kept.
    proxy.lie();
    fails(1, pull(&lab, &node, &image).args(["--blobs", "keep"]));
    assert_nothing_is_left(&node);
    until("the blobs to go", || blobs(&node) == 0);
    let active = node.ctr(&["content", "active"]);
    assert_eq!(active.lines().count(), 1, "a heading: {active}");
}

/// It unpacks as root, and so has much of root's power, but only the snapshotter's directories.
#[cfg(target_arch = "x86_64")]
#[test]
fn privileged_who_pulls_is_left_the_snapshotters_directories() {
    use broken::{Came, DENIED, Deed, KILLED, one_does, until_confined};
    let lab = Lab::new();
    let node = Node::start(&lab, &[]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/some/app:1", silent.local_addr().unwrap());
    let confined = || {
        let mut pull = pull(&lab, &node, &image);
        let pull = pull.stdout(Stdio::null()).stderr(Stdio::null());
        let child = pull.spawn().unwrap();
        until_confined(&child);
        let status = broken::status(&child);
        assert!(status.contains("CapPrm:\t000000008820001b\n"), "{status}");
        child
    };
    let attacked = |deed, path: &Path| one_does(confined, deed, path);
    let outside = lab.path("outside");
    assert_eq!(attacked(Deed::Make, &outside), DENIED);
    assert!(!outside.exists());
    assert_eq!(attacked(Deed::Read, Path::new("/etc/shadow")), DENIED);
    assert_eq!(attacked(Deed::Execute, Path::new("/bin/true")), KILLED);
    let inside = node.root().join("staged/made");
    assert_eq!(attacked(Deed::Make, &inside), Came::Done);
    fs::remove_file(inside).unwrap();
}
