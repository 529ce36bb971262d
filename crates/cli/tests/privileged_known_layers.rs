//! An image of many layers that the store knows, pulled by a containerd of today: what mounting them takes, and a start on them.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, busybox_root, noise, ok, until};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use node::{IMAGE, Node, pack};
use testkit::registries::{Kind, Registry};

const LAYERS: u32 = 24;
/// Files that are opened in the store for each of them: the recording, its segment, the image that is made of it and its
/// temporary file, and both images to note their use.
const OPENS: usize = 6;

/// Makes `docker save`'s archive of an image whose layers have a file each that nobody can compress.
fn many_layers(lab: &Lab) -> PathBuf {
    let dir = lab.make_dir("many");
    busybox_root(&dir.join("part0"));
    let mut names = Vec::new();
    for number in 0..LAYERS {
        let name = format!("part{number}");
        let root = lab.make_dir(&format!("many/{name}/layer{number}"));
        fs::write(root.join("file"), noise(number, 100_000)).unwrap();
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    pack(&dir, IMAGE, &["/bin/sh"], &names)
}

/// Counts what anybody opens in the parts of a store.
struct Opens(Inotify);

impl Opens {
    fn of(store: &Path) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
        for part in ["images", "segments", "names", "tmp"] {
            let part = store.join(part);
            inotify.add_watch(&part, AddWatchFlags::IN_OPEN).unwrap();
        }
        Self(inotify)
    }

    fn count(&self) -> usize {
        let mut opens = 0;
        loop {
            let events = match self.0.read_events() {
                Err(Errno::EAGAIN) => return opens,
                events => events.unwrap(),
            };
            let overflow = AddWatchFlags::IN_Q_OVERFLOW;
            assert!(!events.iter().any(|event| event.mask.contains(overflow)));
            opens += events.len();
        }
    }
}

fn names_in(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    names
}

#[test]
fn privileged_many_known_layers_are_mounted_without_copies_of_what_the_store_has() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let image = format!("{}/many:1", registry.host());
    ok(Command::new("skopeo")
        .args(["copy", "--quiet", "--dest-tls-verify=false"])
        .arg(format!("docker-archive:{}", many_layers(&lab).display()))
        .arg(format!("docker://{image}")));
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today(&lab, &flags);
    let pull = ["images", "pull", "--plain-http", "--snapshotter", "yolofs"];
    let pull = || node.ctr(&[&pull[..], &[&image]].concat());
    // runc has one list of containers for all containerds of the machine.
    let id = |number: u32| format!("many-{}-{number}", std::process::id());
    let read = "cat /layer*/file >/dev/null";
    let run = |number: u32| {
        let run = ["run", "--rm", "--null-io", &image];
        node.ctr(&[&run[..], &[&id(number), "/bin/sh", "-c", read]].concat());
    };
    let layers = usize::try_from(LAYERS).unwrap();

    pull();
    run(0);
    node.until_recorded(&id(0));
    node.until_warm(layers);
    node.ctr(&["images", "rm", "--sync", &image]);
    until("all layers to go", || {
        node.directories() == 0 && node.served() == 0
    });

    let segments = lab.store().join("segments");
    let blocks = names_in(&segments);
    let opens = Opens::of(&lab.store());
    pull();
    node.until_warm(layers);
    let opened = opens.count();
    assert!(
        opened <= OPENS * layers + layers / 2,
        "{opened} were opened"
    );
    assert_eq!(names_in(&segments), blocks, "blocks were written again");
    lab::until_boot_reads_nothing(&lab, || node.reads(), |number| run(number + 1));
}
