//! Layers of containerd's images that the node serves: whoever dies, containers read on.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::fs::{self, File};
use std::path::PathBuf;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;

use lab::service::{Service, signal_to};
use lab::{Lab, ok, until};
use node::{IMAGE, Node, archive};

/// A container that reads a file of its image again and again, and counts.
struct Reader<'a> {
    node: &'a Node<'a>,
    root: PathBuf,
}

impl<'a> Reader<'a> {
    fn start(node: &'a Node<'a>, sum: &str) -> Self {
        let script = format!(
            "n=0; while [ \"$(md5sum </srv/noise)\" = '{sum}' ]; do \
             n=$((n+1)); echo $n >/new; mv /new /reads; sleep 0.02; done; echo failed >/reads; \
             sleep 1000"
        );
        node.ctr(&["run", "-d", IMAGE, "reader", "/bin/sh", "-c", &script]);
        let tasks = node.ctr(&["tasks", "ls"]);
        let line = tasks.lines().find(|line| line.starts_with("reader"));
        let pid = line.unwrap().split_whitespace().nth(1).unwrap();
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let reader = Self { node, root };
        reader.goes_on();
        reader
    }

    fn reads(&self) -> u64 {
        let said = fs::read_to_string(self.root.join("reads")).unwrap_or_else(|_| "0".to_owned());
        let reads = said.trim_end().parse();
        reads.unwrap_or_else(|_| panic!("a read {said}"))
    }

    /// Takes the file out of the page cache, and waits until it was read again, whole.
    fn goes_on(&self) {
        let before = self.reads();
        let file = File::open(self.root.join("srv/noise")).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        until("the container to read on", || self.reads() >= before + 2);
    }

    fn stop(self) {
        self.goes_on();
        self.node.ctr(&["tasks", "rm", "-f", "reader"]);
        self.node.ctr(&["containers", "rm", "reader"]);
    }
}

#[test]
fn privileged_containers_on_layers_of_the_node_read_on_whoever_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 300_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let sum = node.run(&[], "first", "md5sum </srv/noise; cat /srv/greeting");
    let sum = sum.lines().next().unwrap().to_owned();
    until("both layers to be served", || node.served() == 2);
    assert_eq!(node.status()["served_by"], "node");
    until("the layers to be in the page cache", || node.is_warm());
    until("the recorder to go", || node.mounts().len() == 2);
    let mounts = node.mounts();
    // As long as these are open, no other mount gets their device numbers.
    let roots: Vec<_> = mounts.iter().map(|at| File::open(at).unwrap()).collect();
    let devices = || {
        let device = |at: &String| std::os::unix::fs::MetadataExt::dev(&fs::metadata(at).unwrap());
        mounts.iter().map(device).collect::<Vec<_>>()
    };
    let before = devices();
    let served = PathBuf::from(&mounts[0]);
    // Asked to end, or killed: its successor finds the layers.
    for kill in [false, true] {
        let reader = Reader::start(&node, &sum);
        reader.goes_on();
        let root = reader.root.clone();
        if kill {
            node.kill_snapshotter();
        } else {
            node.end_snapshotter();
        }
        assert_eq!(node.served(), 2);
        service.kill_worker(&served, Signal::SIGKILL);
        node.start_snapshotter();
        until("the layers to be known again", || {
            let status = node.status();
            status["layers"].as_array().unwrap().len() == 2 && status["plain_layers"] == 0
        });
        let reader = Reader { node: &node, root };
        reader.goes_on();
        // The node, with and without its worker.
        service.kill_node();
        reader.goes_on();
        let process = service.pid();
        signal_to(process, Signal::SIGKILL);
        service.kill_worker(&served, Signal::SIGKILL);
        reader.goes_on();
        reader.stop();
    }
    let process = service.pid();
    ok(lab
        .yolofs()
        .args(["upgrade", "--program", env!("CARGO_BIN_EXE_yolofs")]));
    service.until_another(process);
    // All that time these were the same mounts, and new containers stand on them.
    assert_eq!(devices(), before);
    drop(roots);
    assert_eq!(node.run(&[], "last", "cat /srv/greeting"), "hello");
    node.forget_everything();
    until("the node to let go", || service.node()["mounts"] == 0);
}
