//! Pods of containerd 2.4 whose images have volumes, and pods in user namespaces.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod node;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cri::api::Status;
use cri::{Cri, Images, Pod, until_pods_are_possible};
use lab::engines::runc_that_maps;
use lab::service::{Service, signal_to};
use lab::{Lab, busybox_root, noise, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;
use node::{IMAGE, Node, pack_to_run};

/// What a pod says of the volume, of itself, and of what it writes there.
const SAID: &str = "md5sum </srv/noise; cat /srv/greeting; grep -c ' /srv ' /proc/mounts";

#[test]
fn privileged_pods_get_copies_of_the_volumes_of_their_image() {
    let lab = Lab::new();
    let dir = lab.make_dir("image");
    busybox_root(&dir.join("base"));
    let top = lab.make_dir("image/top/srv");
    fs::write(top.join("greeting"), "hello\n").unwrap();
    fs::write(top.join("noise"), noise(7, 1_000_000)).unwrap();
    let run =
        serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "Volumes": {"/srv": {}}});
    let archive = pack_to_run(&dir, IMAGE, &run, &["base", "top"]);
    let images = Images::new(&lab, &archive);
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    cri.pull(&app);
    let first = cri.pod("first", &app);
    let said = first.exec(SAID);
    assert!(said.ends_with("hello\n1"), "{said}");
    // What it writes is the pod's alone.
    first.exec("echo changed >/srv/greeting");
    node.until_recorded(&first.container);
    first.remove();
    node.until_warm(3);
    // The second has a copy that is made of the layers as they are served.
    let second = cri.pod("second", &app);
    assert_eq!(second.exec(SAID), said);
    assert!(second.lowers().contains("served/"), "{}", second.lowers());
    second.remove();
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
}

#[test]
fn privileged_a_kubelet_is_told_that_debians_runtimes_map_no_mounts() {
    let lab = Lab::new();
    let images = Images::new(&lab, &node::archive(&lab, 10_000));
    let node = Node::start_today_for_pods(&lab, &[], &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let handlers = cri.call(Status {}).handlers;
    assert!(!handlers.is_empty());
    // The others are in the next test.
    for handler in handlers {
        let maps = handler.features.is_some_and(|it| it.user_namespaces);
        assert!(!maps, "runtime {:?} has user namespaces", handler.name);
    }
}

/// Returns `docker save`'s archive of an image with a volume, and with files of several users in it and beside it.
fn of_several_users(lab: &Lab) -> PathBuf {
    let dir = lab.make_dir("image");
    busybox_root(&dir.join("base"));
    for place in ["home", "srv"] {
        let place = lab.make_dir(&format!("image/top/{place}"));
        for (name, uid) in [("last", 65_535), ("root", 0), ("user", 1000)] {
            let file = place.join(name);
            fs::write(&file, format!("{name}\n")).unwrap();
            chown(&file, Some(uid), Some(uid)).unwrap();
        }
    }
    fs::write(dir.join("top/home/root"), noise(7, 1_000_000)).unwrap();
    let run =
        serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "Volumes": {"/srv": {}}});
    pack_to_run(&dir, IMAGE, &run, &["base", "top"])
}

/// What a pod says of its IDs and of files, and what it writes.
const IDS: &str = "cat /proc/self/uid_map; cd /; stat -c '%u:%g %n' . bin home/* srv srv/*; md5sum <home/root; \
                   for place in home srv; do echo mine >$place/.new; stat -c '%u:%g %n' $place/.new; \
                   cat $place/user $place/.new; done";

/// What it should say in a user namespace in which 0 is `base`, if a file has this sum.
fn ids_of(base: u32, sum: &str) -> String {
    let own = |place: &str| format!("0:0 {place}/.new\nuser\nmine");
    let files =
        |place: &str| format!("65535:65535 {place}/last\n0:0 {place}/root\n1000:1000 {place}/user");
    let map = format!("{:>10} {base:>10} {:>10}", 0, 65_536);
    let (home, srv) = (files("home"), files("srv"));
    let (in_home, in_srv) = (own("home"), own("srv"));
    format!("{map}\n0:0 .\n0:0 bin\n{home}\n0:0 srv\n{srv}\n{sum}\n{in_home}\n{in_srv}")
}

/// Has the kernel forget what it has read of a file that a pod sees.
fn drop_from_memory(node: &Node<'_>, pod: &Pod<'_>, file: &str) {
    let tasks = node.ctr(&["--namespace", "k8s.io", "tasks", "ls"]);
    let line = tasks.lines().find(|line| line.starts_with(&pod.container));
    let pid = line.unwrap().split_whitespace().nth(1).unwrap();
    let file = fs::File::open(format!("/proc/{pid}/root/{file}")).unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

/// Names a network of pods, which has no link to another: a plugin that makes nothing.
const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "none"}]}"#;
const PLUGIN: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}],
            "ips": [{"interface": 0, "address": "10.0.0.2/24"}]}' ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"#;

/// Has containerd run pods by a runtime that makes idmapped mounts, in networks of their own.
fn with_a_runtime_that_maps(lab: &Lab, config: &str) -> String {
    let network = lab.make_dir("cni");
    fs::write(network.join("none.conflist"), NETWORK).unwrap();
    fs::write(network.join("none"), PLUGIN).unwrap();
    fs::set_permissions(network.join("none"), Permissions::from_mode(0o755)).unwrap();
    let here = "restrict_oom_score_adj = true\n";
    assert_eq!(config.matches(here).count(), 1);
    let config = config.replace(
        here,
        &format!("{here}netns_mounts_under_state_dir = true\n"),
    );
    let runc = runc_that_maps();
    format!(
        "{config}use_internal_loopback = true\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
         BinaryName = {runc:?}\n"
    )
}

#[test]
fn privileged_pods_in_user_namespaces_own_their_files_and_read_on_whoever_dies() {
    let lab = Lab::new();
    let images = Images::new(&lab, &of_several_users(&lab));
    let app = images.app();
    let service = Service::start(&lab);
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let config = with_a_runtime_that_maps(&lab, &images.config_of_today(&lab));
    let mut node = Node::start_today_for_pods(&lab, &flags, &config);
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let mut handlers = cri.call(Status {}).handlers.into_iter();
    let maps = handlers.any(|it| it.features.is_some_and(|it| it.user_namespaces));
    assert!(maps, "a kubelet would start no such pod");
    cri.pull(&app);
    let first = cri.mapped_pod("first", &app, 100_000);
    let sum = first.exec("md5sum </home/root");
    assert_eq!(first.exec(IDS), ids_of(100_000, &sum));
    node.until_recorded(&first.container);
    first.remove();
    // Those of the image, and that of the pause image.
    node.until_warm(3);
    // Whoever they are, they share the pages: the volume is a copy of what is served.
    lab::until_boot_reads_nothing(
        &lab,
        || node.reads(),
        |number| {
            let base = 200_000 + 65_536 * number;
            let pod = cri.mapped_pod(&format!("again-{number}"), &app, base);
            assert_eq!(pod.exec(IDS), ids_of(base, &sum));
            pod.remove();
        },
    );
    let list = node.ctr(&["--namespace", "k8s.io", "snapshots", "ls"]);
    assert_eq!(
        list.matches("Committed").count(),
        3,
        "a layer was copied: {list}"
    );

    let pod = cri.mapped_pod("reader", &app, 300_000);
    let reads_on = |pod: &Pod<'_>| assert_eq!(pod.exec(IDS), ids_of(300_000, &sum));
    reads_on(&pod);
    // What is not in memory any more comes from the mounts, not from the directories that they show.
    let before = node.reads();
    drop_from_memory(&node, &pod, "home/root");
    reads_on(&pod);
    assert!(node.reads() > before);
    let mut mounts = node.mounts().into_iter();
    let served = mounts.find(|mount| mount.contains("/served/")).unwrap();
    service.kill_worker(Path::new(&served), Signal::SIGKILL);
    reads_on(&pod);
    let process = service.pid();
    signal_to(process, Signal::SIGKILL);
    node.kill_snapshotter();
    service.until_another(process);
    node.start_snapshotter();
    reads_on(&pod);
    pod.remove();
    // Pods with IDs of their own and those without have the same layers.
    let last = cri.mapped_pod("last", &app, 400_000);
    assert_eq!(last.exec(IDS), ids_of(400_000, &sum));
    let plain = cri.pod("plain", &app);
    let said = plain.exec("stat -c '%u:%g %n' /home/root /home/user /srv/user");
    assert_eq!(
        said,
        "0:0 /home/root\n1000:1000 /home/user\n1000:1000 /srv/user"
    );
    assert!(plain.lowers().contains("served/"), "{}", plain.lowers());
    last.remove();
    plain.remove();
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
}
