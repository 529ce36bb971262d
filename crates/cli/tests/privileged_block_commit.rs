//! What a container changed on a block image is committed and pushed by Docker, and another host has the same files:
//! on a usual layer above the block layers, and on the block layer that this one was converted to.

#![cfg(feature = "privileged")]

mod block_containers;
mod node;

use block_containers::{DOCUMENTS, NOISE, Source, devices, pull, run};
use lab::docker29::Docker29;
use lab::service::Service;
use lab::{Lab, ok, until};
use node::Node;

/// Adds, changes and deletes files of both layers, links some, and replaces a directory.
const CHANGE: &str = "echo new >/srv/new; rm /srv/greeting; echo more >>/etc/config; chmod 600 /etc/config; \
    rm -r /usr/lib; mkdir -p /usr/lib/deep; echo mine >/usr/lib/deep/part00; chmod 1777 /usr/lib/deep; \
    chown 5:6 /srv/new; ln /srv/new /srv/same; ln -s ../etc/config /srv/link; rm /bin/nc";
/// Lists all files that the image has, with what is in them. The rest of `/etc` is the engine's.
const TREE: &str = "cd /; all='bin etc/config srv tmp usr'; { find $all -type d -exec stat -c '%n %a %u:%g %Y' {} +; \
    find $all ! -type d -exec stat -c '%N %F %a %u:%g %s %h %Y' {} +; find $all -type f -exec md5sum {} +; } | sort";

/// Returns a script of which busybox runs all commands: the image has links for a few.
fn script(lines: &str) -> String {
    let commands =
        "for c in rm chmod mkdir chown ln stat find sort md5sum; do alias $c=\"busybox $c\"; done";
    format!("{commands}\n{lines}")
}

/// Runs a script in a container of Docker, which stays.
fn docker_run(docker: &Docker29, image: &str, name: &str, lines: &str) -> String {
    let script = script(lines);
    let run = ["run", "--name", name, "--network=none", image];
    docker.run(&[&run[..], &["sh", "-c", &script]].concat())
}

#[test]
fn privileged_what_docker_commits_on_a_block_image_is_pushed_and_the_same_elsewhere() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let node = Node::start_today(&lab, &["--all-xattrs"]);
    let docker = Docker29::start(&lab, &node.containerd_socket(), "yolofs");
    let source = Source::new(&lab);
    let image = source.image();
    docker.run(&["pull", "--quiet", &image]);
    let tree = docker_run(&docker, &image, "writes", &format!("{CHANGE}\n{TREE}"));
    for there in ["srv/new", "srv/same", "usr/lib/deep/part00", "srv/noise"] {
        assert!(tree.contains(there), "{there}: {tree}");
    }
    for gone in ["greeting", "part01", "bin/nc"] {
        assert!(!tree.contains(gone), "{gone}: {tree}");
    }
    let repository = format!("{}/small", source.proxy.host());
    let changed = format!("{repository}:changed");
    docker.run(&["commit", "writes", &changed]);
    // Docker has none of the block layers, and no other repository has them before the image's own has the new image.
    let other = format!("{}/other:changed", source.proxy.host());
    docker.run(&["tag", &changed, &other]);
    let refused = docker.try_run(&["push", &other]);
    assert!(!refused.status.success());
    docker.run(&["push", &changed]);
    docker.run(&["push", &other]);
    // The changes become a block layer where the image was converted.
    let [from, block] =
        ["changed", "block2"].map(|tag| format!("{}/small:{tag}", source.registry.host()));
    let mut convert = lab.yolofs();
    convert.args(["block", "convert", &format!("docker://{from}")]);
    convert.arg(lab.path("converted"));
    ok(convert.args(["--name", "changed", "--push", &block]));
    docker.run(&["rm", "writes"]);
    docker.run(&["rmi", &changed, &other, &image]);
    until("all snapshots to go", || node.directories() == 0);
    until("the device to go", || devices(&lab).is_empty());
    drop((docker, node, service));

    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &["--all-xattrs", "--block-background", "plan"]);
    let docker = Docker29::start(&lab, &node.containerd_socket(), "yolofs");
    let pulled = |pull: &dyn Fn()| {
        let before = source.proxy.bytes();
        pull();
        source.proxy.bytes() - before
    };
    // The usual layer, which is unpacked on the device: the file system's metadata are read.
    let usual = pulled(&|| drop(docker.run(&["pull", "--quiet", &other])));
    assert!(usual < NOISE as u64 / 40, "{usual} bytes were pulled");
    let before = source.proxy.bytes();
    assert_eq!(docker_run(&docker, &other, "reads", TREE), tree);
    let read = source.proxy.bytes() - before;
    assert!(read > NOISE as u64, "it came from elsewhere");
    let block = format!("{repository}:block2");
    let documents = pulled(&|| pull(&node, &block));
    assert!(documents < DOCUMENTS, "{documents} bytes were pulled");
    let said = run(&lab, &node, &block, "block-changed", &script(TREE));
    assert_eq!(said.trim_end(), tree);
    // One of the block layers that the container ran on, and one with the new layer above them.
    assert_eq!(devices(&lab).len(), 2);
    docker.run(&["rm", "reads"]);
    docker.run(&["rmi", &other]);
    node.ctr(&["images", "rm", "--sync", &block]);
    until("all snapshots to go", || node.directories() == 0);
    until("the devices to go", || devices(&lab).is_empty());
}
