//! Layers on the fast place and on the disk, where a real containerd pulls from a real registry.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod fair;
mod node;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use cri::{Cri, Images};
use fair::{Blob, Network};
use lab::{Lab, noise, ok, until};
use node::{IMAGE, Node, archive};
use oci::digest_of;
use serde_json::Value;
use testkit::layouts::{LayoutDir, gzip, layer, named};

/// Where containerd keeps what it has downloaded whole.
const BLOBS: &str = "io.containerd.content.v1.content/blobs/sha256";
/// Images that are pulled.
const PULLS: u64 = 15;

/// Numbers that are the same each time (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// An image whose layers have a file each.
struct Made {
    layers: Vec<Vec<u8>>,
    blobs: Vec<Blob>,
}

impl Made {
    /// Makes an image of two to seven layers, of sizes as registries have them (those of
    /// `cargo test -p tiering --test pulls`, by 256), and a network on which downloads differ by 30 %.
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 2 + random.below(6);
        let layers: Vec<_> = (0..count)
            .map(|index| {
                let magnitude = 2 + random.below(18);
                let len = (1 << magnitude) + random.below(1 << magnitude);
                noise(
                    u32::try_from(seed * 100 + index).unwrap(),
                    usize::try_from(len).unwrap(),
                )
            })
            .collect();
        Self::of(layers, |_| 700 + random.below(601))
    }

    fn of(layers: Vec<Vec<u8>>, mut cost: impl FnMut(usize) -> u64) -> Self {
        let blobs = layers.iter().enumerate().map(|(index, bytes)| Blob {
            hex: digest_of(&gzip(&tar(bytes))).hex(),
            layer: index,
            cost: cost(index),
        });
        Self {
            blobs: blobs.collect(),
            layers,
        }
    }

    fn push(&self, lab: &Lab, to: &str) {
        let dir = lab.make_dir("layout");
        let layout = LayoutDir(&dir);
        layout.start();
        let tars: Vec<_> = self.layers.iter().map(|bytes| tar(bytes)).collect();
        layout.index(&[named(layout.image(&tars, &serde_json::json!({})), "1")]);
        ok(Command::new("skopeo")
            .args(["copy", "--quiet", "--dest-tls-verify=false"])
            .arg(format!("oci:{}:1", dir.display()))
            .arg(format!("docker://{to}")));
        fs::remove_dir_all(dir).unwrap();
    }
}

fn tar(bytes: &[u8]) -> Vec<u8> {
    layer(&[("file", bytes)])
}

fn snapshots(node: &Node<'_>) -> BTreeSet<u64> {
    let entries = fs::read_dir(node.root().join("snapshots")).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.unwrap().file_name();
        name.to_str().unwrap().parse().unwrap()
    };
    entries.map(name).collect()
}

fn at(node: &Node<'_>, id: u64) -> PathBuf {
    node.root().join(format!("snapshots/{id}"))
}

fn fast(node: &Node<'_>) -> Value {
    node.status()["layers_fast"].clone()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {value}"))
}

/// Returns how many layers lie on the fast place.
fn count_fast(node: &Node<'_>) -> usize {
    let places = snapshots(node).into_iter();
    places.filter(|id| at(node, *id).is_symlink()).count()
}

#[test]
fn privileged_layers_go_where_the_last_download_says() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1000));
    let network = Network::before(images.port());
    let flags = ["--layers-fast", "tmpfs,max=64M", "--layers-stay", "3600"];
    let node = Node::start_with(&lab, &flags, "root", &images.config(&lab));
    let cri = Cri::of(&node);
    let mut before = snapshots(&node);
    let (mut on_disk, mut on_fast) = (0, 0);
    for seed in 0..PULLS {
        let made = Made::new(seed);
        let name = format!("image-{seed}:1");
        made.push(&lab, &format!("{}/{name}", images.host()));
        // The disk keeps up with this network: when the last layer comes, all others are there, and
        // those below it unpacked.
        let (dir, known) = (node.root().join("snapshots"), before.len());
        let (store, blobs) = (lab.path("node/containerd").join(BLOBS), made.blobs.clone());
        network.expect(made.blobs.clone(), move |last| {
            let mut others = blobs.iter().filter(|blob| blob.layer != last);
            others.all(|blob| store.join(&blob.hex).exists())
                && fs::read_dir(&dir).unwrap().count() > known + last
        });
        cri.pull(&format!("127.0.0.1:{}/{name}", network.port));
        let last = *network.arrived().last().unwrap();
        let after = snapshots(&node);
        let made_now: Vec<u64> = after.difference(&before).copied().collect();
        assert_eq!(made_now.len(), made.layers.len());
        for (index, id) in made_now.into_iter().enumerate() {
            let link = at(&node, id).is_symlink();
            assert_eq!(
                link,
                index >= last,
                "image {seed}, layer {index}, last {last}"
            );
            let file = fs::read(at(&node, id).join("fs/file")).unwrap();
            assert!(file == made.layers[index], "image {seed}, layer {index}");
        }
        on_disk += last as u64;
        on_fast += (made.layers.len() - last) as u64;
        before = after;
    }
    let fast = fast(&node);
    assert!(fast["seen"].as_bool().unwrap());
    assert_eq!(number(&fast, "disk"), on_disk);
    assert_eq!(number(&fast, "fast"), on_fast);
    assert_eq!(number(&fast, "layers"), on_fast);
    assert_eq!(number(&fast, "full") + number(&fast, "unknown"), 0);
    let foreseen = number(&fast, "foreseen");
    assert_eq!(foreseen + number(&fast, "not_foreseen"), PULLS);
    assert!(foreseen * 100 >= PULLS * 93, "{fast}");
    assert!(
        on_disk > PULLS && on_fast > PULLS,
        "both are put to use: {fast}"
    );
    for seed in 0..PULLS {
        cri.remove_image(&format!("127.0.0.1:{}/image-{seed}:1", network.port));
    }
    let places = ["snapshots", "layers/snapshots"].map(|name| node.root().join(name));
    until("all layers to go", || {
        let mut counts = places.iter().map(|dir| fs::read_dir(dir).unwrap().count());
        counts.all(|count| count == 0)
    });
    assert_eq!(number(&self::fast(&node), "used_bytes"), 0);
}

/// Where a layer is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Fast,
    Disk,
    /// On the disk, for want of room.
    Full,
}

#[test]
fn privileged_pulls_at_once_share_layers_and_the_room_there_is() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1000));
    let network = Network::before(images.port());
    let flags = ["--layers-fast", "tmpfs,max=400K", "--layers-stay", "3600"];
    let node = Node::start_with(&lab, &flags, "root", &images.config(&lab));
    let cri = Cri::of(&node);
    // Of each image the layers above the first, and which of all its layers comes last. They come to
    // their ends one after another, so it is known for which there is room.
    let shared = (noise(1, 40_000), Is::Disk);
    let above: [(usize, &[(usize, Is)]); 3] = [
        (
            2,
            &[(30_000, Is::Disk), (50_000, Is::Fast), (60_000, Is::Fast)],
        ),
        (
            1,
            &[(70_000, Is::Fast), (300_000, Is::Full), (20_000, Is::Fast)],
        ),
        (
            2,
            &[(10_000, Is::Disk), (90_000, Is::Fast), (200_000, Is::Full)],
        ),
    ];
    let (mut expected, mut others, mut last) = (vec![shared.clone()], Vec::new(), Vec::new());
    for (image, (last_one, above)) in above.iter().enumerate() {
        let mut layers = vec![shared.0.clone()];
        for (index, (len, is)) in above.iter().enumerate() {
            let bytes = noise(u32::try_from(image * 10 + index + 2).unwrap(), *len);
            expected.push((bytes.clone(), *is));
            layers.push(bytes);
        }
        let made = Made::of(layers, |_| 1000);
        made.push(&lab, &format!("{}/at-once-{image}:1", images.host()));
        let (held, rest): (Vec<_>, Vec<_>) = made
            .blobs
            .into_iter()
            .partition(|blob| blob.layer == *last_one);
        last.extend(held);
        others.extend(rest);
    }
    // Before the first goes on, all of them wait for their last layers: what is below these was
    // unpacked, and they are prepared.
    let below = expected.iter().filter(|(_, is)| *is == Is::Disk).count();
    let ended = Arc::new(AtomicUsize::new(0));
    for (image, blob) in last.into_iter().enumerate() {
        let (dir, ended, others) = (
            node.root().join("snapshots"),
            Arc::clone(&ended),
            others.clone(),
        );
        let store = lab.path("node/containerd").join(BLOBS);
        network.hold(blob.hex, move || match image {
            0 => {
                others.iter().all(|blob| store.join(&blob.hex).exists())
                    && fs::read_dir(&dir).unwrap().count() == below + 3
            }
            turn => ended.load(SeqCst) == turn,
        });
    }
    std::thread::scope(|scope| {
        for image in 0..above.len() {
            let (cri, ended, port) = (&cri, &ended, network.port);
            scope.spawn(move || {
                cri.pull(&format!("127.0.0.1:{port}/at-once-{image}:1"));
                ended.fetch_add(1, SeqCst);
            });
        }
    });
    let found = snapshots(&node);
    assert_eq!(
        found.len(),
        expected.len(),
        "a layer that is shared is there once"
    );
    for id in found {
        let file = fs::read(at(&node, id).join("fs/file")).unwrap();
        let is = expected.iter().find(|(bytes, _)| *bytes == file).unwrap().1;
        let len = file.len();
        assert_eq!(
            at(&node, id).is_symlink(),
            is == Is::Fast,
            "{id}, {len} bytes"
        );
    }
    let state = fast(&node);
    let count = |kind| expected.iter().filter(|(_, is)| *is == kind).count() as u64;
    for (name, kind) in [("fast", Is::Fast), ("disk", Is::Disk), ("full", Is::Full)] {
        assert_eq!(number(&state, name), count(kind), "{name} in {state}");
    }
    assert_eq!(number(&state, "unknown"), 0);
    assert_eq!(number(&state, "layers"), count(Is::Fast));
    let used = number(&state, "used_bytes");
    assert!((290_000..=400 << 10).contains(&used), "{state}");
    for image in 0..above.len() {
        cri.remove_image(&format!("127.0.0.1:{}/at-once-{image}:1", network.port));
    }
    until("all layers to go", || snapshots(&node).is_empty());
    until("the room to be free", || {
        number(&fast(&node), "used_bytes") == 0
    });
}

#[test]
fn privileged_what_has_no_room_goes_to_the_disk() {
    let lab = Lab::new();
    // The shell fits, and the noise does not.
    let node = Node::start(
        &lab,
        &["--layers-fast", "tmpfs,max=4M", "--layers-stay", "3600"],
    );
    let archive = archive(&lab, 8_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    assert_eq!(count_fast(&node), 1);
    let state = fast(&node);
    assert_eq!((number(&state, "fast"), number(&state, "full")), (1, 1));
    let used = number(&state, "used_bytes");
    assert!((500_000..4 << 20).contains(&used), "{state}");
    let sum = node.run(&[], "lass-both", "md5sum </srv/noise; cat /srv/greeting");
    assert!(sum.ends_with("hello"), "{sum}");
    node.forget_everything();
    assert_eq!(number(&fast(&node), "used_bytes"), 0);
}

#[test]
fn privileged_a_fast_place_that_is_lost_is_said_to_be_and_pulled_again() {
    let lab = Lab::new();
    let flags = ["--layers-fast", "tmpfs,max=64M", "--layers-stay", "3600"];
    let mut node = Node::start(&lab, &flags);
    let archive = archive(&lab, 100_000);
    let import = ["images", "import", archive.to_str().unwrap()];
    node.ctr(&import);
    assert_eq!(count_fast(&node), 2);
    // A restart of the snapshotter loses nothing.
    node.kill_snapshotter();
    node.start_snapshotter();
    assert_eq!(number(&fast(&node), "layers"), 2);
    assert_eq!(
        node.run(&[], "lass-restarted", "cat /srv/greeting"),
        "hello"
    );
    // A restart of the machine does.
    node.kill_snapshotter();
    ok(Command::new("umount")
        .arg("-l")
        .arg(node.root().join("layers")));
    node.start_snapshotter();
    let script = ["run", "--rm", IMAGE, "lass-lost", "/bin/sh", "-c", "true"];
    let failed = node.try_ctr(&script);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        !failed.status.success() && said.contains("is lost"),
        "{said}"
    );
    node.forget_everything();
    node.ctr(&import);
    assert_eq!(node.run(&[], "lass-again", "cat /srv/greeting"), "hello");
    // Without the option what is there stays in use, and goes with its image.
    node.forget_everything();
}

#[test]
fn privileged_sizes_alone_place_layers_where_nobody_may_wait() {
    let lab = Lab::new();
    let mut flags = vec!["--layers-fast", "tmpfs,max=64M", "--layers-stay", "3600"];
    flags.extend(["--layers-by", "foreseen"]);
    let node = Node::start(&lab, &flags);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    // All of an archive is there, so everything is waited for.
    assert_eq!(count_fast(&node), 2);
    assert_eq!(fast(&node)["seen"], false);
    assert_eq!(node.run(&[], "lass-one", "cat /srv/greeting"), "hello");
}

#[test]
fn privileged_layers_come_home_and_stay_whole() {
    let lab = Lab::new();
    let flags = ["--layers-fast", "tmpfs,max=64M", "--layers-stay", "3600"];
    let mut node = Node::start(&lab, &flags);
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let wait = "while :; do sleep 1; done";
    node.ctr(&["run", "-d", IMAGE, "lass-on", "/bin/sh", "-c", wait]);
    assert_eq!(count_fast(&node), 2);
    let used = number(&fast(&node), "used_bytes");
    node.set_flags(&["--layers-fast", "tmpfs,max=64M", "--layers-stay", "0"]);
    node.end_snapshotter();
    node.start_snapshotter();
    until("the layers to come home", || count_fast(&node) == 0);
    // The container that was there before has them mounted where they were.
    let mut expected = String::new();
    // As `Node::hear`.
    for exec in ["one", "two", "three", "four", "five"] {
        let exec = ["tasks", "exec", "--exec-id", exec, "lass-on"];
        expected = node.ctr(&[&exec[..], &["/bin/md5sum", "/srv/noise"]].concat());
        if !expected.is_empty() {
            break;
        }
    }
    assert_eq!(number(&fast(&node), "used_bytes"), used);
    let later = node.run(&[], "lass-later", "md5sum /srv/noise");
    assert_eq!(later, expected);
    node.ctr(&["tasks", "rm", "-f", "lass-on"]);
    node.ctr(&["containers", "rm", "lass-on"]);
    node.collect_garbage();
    until("nobody to need them there", || {
        number(&fast(&node), "used_bytes") == 0
    });
    let left = fs::read_dir(node.root().join("layers/snapshots")).unwrap();
    assert_eq!(left.count(), 0);
    // A restart of the machine loses nothing any more.
    node.kill_snapshotter();
    ok(Command::new("umount")
        .arg("-l")
        .arg(node.root().join("layers")));
    node.start_snapshotter();
    assert_eq!(node.run(&[], "lass-home", "md5sum /srv/noise"), expected);
    node.forget_everything();
}

#[test]
fn privileged_layers_that_are_served_come_home_too() {
    let lab = Lab::new();
    let record = ["--auto-record", "--until", "quiet:0.2"];
    let with = |stay| {
        [
            &record[..],
            &["--layers-fast", "tmpfs,max=64M", "--layers-stay", stay],
        ]
        .concat()
    };
    let mut node = Node::start(&lab, &with("3600"));
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let script = "cat /srv/greeting; md5sum /srv/noise";
    let expected = node.run(&[], "lass-first", script);
    // While the snapshotter answers: a container of which it does not hear that it is gone may have
    // its layers mounted.
    node.collect_garbage();
    until("both layers to be served", || node.served() == 2);
    assert_eq!(count_fast(&node), 2);
    node.set_flags(&with("0"));
    node.end_snapshotter();
    node.start_snapshotter();
    until("nobody to need them there", || {
        number(&fast(&node), "used_bytes") == 0
    });
    assert_eq!(count_fast(&node), 0);
    until("both layers to be served", || node.served() == 2);
    // What boot image and page cache do not have comes from the copies.
    assert_eq!(node.run(&[], "lass-second", script), expected);
    node.forget_everything();
    until("the layers to go", || node.served() == 0);
}
