//! A containerd of today with the configuration of `packaging`: pods, and layers that are unpacked at once.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod node;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use cri::api::ImageFsInfo;
use cri::{Cri, Images, Pod, until_pods_are_possible};
use lab::service::{Service, signal_to};
use lab::{Lab, busybox_root, noise, ok, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;
use node::{IMAGE, Node, archive, pack};
use testkit::registries::{Kind, Proxy, Registry};

const READ: &str = "cat /srv/greeting; md5sum </srv/noise";

#[test]
fn privileged_pods_run_with_the_packaged_configuration_and_the_second_reads_nothing() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let places = cri.call(ImageFsInfo {}).file_systems;
    let place = places[0].id.as_ref().map(|id| id.mountpoint.as_str());
    assert_eq!(
        place,
        node.root().to_str(),
        "a kubelet looks at another disk"
    );
    cri.pull(&app);
    let first = cri.pod("first", &app);
    let said = first.exec(READ);
    assert!(said.starts_with("hello"), "{said}");
    node.until_recorded(&first.container);
    first.remove();
    // Those of the image, and that of the pause image.
    node.until_warm(3);
    lab::until_boot_reads_nothing(
        &lab,
        || node.reads(),
        |number| {
            let pod = cri.pod(&format!("second-{number}"), &app);
            assert_eq!(pod.exec(READ), said);
            pod.remove();
        },
    );
    // overlayfs is there beside it.
    let pull = ["--namespace", "k8s.io", "images", "pull", "--plain-http"];
    node.ctr(&[&pull[..], &["--snapshotter", "overlayfs", &app]].concat());
    let list = [
        "--namespace",
        "k8s.io",
        "snapshots",
        "--snapshotter",
        "overlayfs",
        "ls",
    ];
    assert_eq!(node.ctr(&list).matches("Committed").count(), 2);
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
}

/// Makes `docker save`'s archive of an image whose layers change what is below: each replaces a file, takes
/// one away and makes one.
fn stacked_layers(lab: &Lab, layers: u32) -> std::path::PathBuf {
    let dir = lab.make_dir("stacked");
    busybox_root(&dir.join("layer0"));
    fs::write(dir.join("layer0/made0"), "").unwrap();
    let mut names = vec!["layer0".to_owned()];
    for number in 1..layers {
        let name = format!("layer{number}");
        let root = lab.make_dir(&format!("stacked/{name}"));
        fs::write(root.join("latest"), format!("{number}\n")).unwrap();
        fs::write(root.join(format!("made{number}")), noise(number, 300_000)).unwrap();
        fs::write(root.join(format!(".wh.made{}", number - 1)), "").unwrap();
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    pack(&dir, IMAGE, &["/bin/sh"], &names)
}

fn push(archive: &Path, to: &str) {
    ok(Command::new("skopeo")
        .args(["copy", "--quiet", "--dest-tls-verify=false"])
        .arg(format!("docker-archive:{}", archive.display()))
        .arg(format!("docker://{to}")));
}

/// Returns what a container of such an image says of what is stacked, and of a command.
fn run_stacked(lab: &Lab, node: &Node<'_>, namespace: &str, image: &str, command: &str) -> String {
    let out = lab.path("said");
    let uri = format!("file://{}", out.display());
    let script = format!("cat /latest; ls / | grep made; {command}");
    let run = ["--namespace", namespace, "run", "--rm", "--log-uri", &uri];
    let _of_the_run_before = fs::remove_file(&out);
    // runc has one list of containers for all containerds of the machine.
    let id = image.replace([':', '/'], "-");
    node.ctr(&[&run[..], &[image, &id, "/bin/sh", "-c", &script]].concat());
    fs::read_to_string(&out).unwrap()
}

#[test]
fn privileged_layers_that_are_unpacked_at_once_are_stacked_as_they_should() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let image = format!("{}/stacked:1", registry.host());
    push(&stacked_layers(&lab, 12), &image);
    let node = Node::start_today(&lab, &[]);
    node.ctr(&[
        "images",
        "pull",
        "--plain-http",
        "--snapshotter",
        "yolofs",
        &image,
    ]);
    let said = node.containerd_said();
    assert!(!said.contains("unpacking will be sequential"), "{said}");
    let list = node.ctr(&["snapshots", "ls"]);
    let rows: Vec<Vec<&str>> = list
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 12, "{list}");
    assert_eq!(
        rows.iter().filter(|row| row.len() == 2).count(),
        1,
        "{list}"
    );
    let file = lab.path("made11");
    fs::write(&file, noise(11, 300_000)).unwrap();
    let sum = ok(Command::new("md5sum").stdin(fs::File::open(&file).unwrap()));
    assert_eq!(
        run_stacked(&lab, &node, "default", &image, "md5sum </made11"),
        format!("11\nmade11\n{sum}")
    );
    node.ctr(&["images", "rm", "--sync", &image]);
    until("all snapshots to go", || node.directories() == 0);
}

/// A containerd of today with a node that serves the layers, and a pod that reads of them.
struct Cluster<'a> {
    service: Service<'a>,
    node: Node<'a>,
    images: Images,
    said: String,
}

impl<'a> Cluster<'a> {
    fn start(lab: &'a Lab) -> Self {
        let images = Images::new(lab, &archive(lab, 1_000_000));
        let service = Service::start(lab);
        let flags = ["--auto-record", "--until", "quiet:0.3"];
        let node = Node::start_today_for_pods(lab, &flags, &images.config_of_today(lab));
        Self {
            service,
            node,
            images,
            said: String::new(),
        }
    }

    /// Has the image recorded and served.
    fn record(&mut self, cri: &Cri) {
        until_pods_are_possible(cri);
        cri.pull(&self.images.app());
        let first = cri.pod("first", &self.images.app());
        self.said = first.exec(READ);
        // Those of the image, and that of the pause image.
        self.node.until_warm(3);
        first.remove();
        assert_eq!(self.node.status()["served_by"], "node");
    }

    /// Reads in a pod that runs, past the page cache.
    #[track_caller]
    fn reads_on(&self, pod: &Pod<'_>) {
        let tasks = self.node.ctr(&["--namespace", "k8s.io", "tasks", "ls"]);
        let line = tasks.lines().find(|line| line.starts_with(&pod.container));
        let pid = line.unwrap().split_whitespace().nth(1).unwrap();
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let noise = fs::File::open(root.join("srv/noise")).unwrap();
        posix_fadvise(&noise, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        assert_eq!(pod.exec(READ), self.said);
    }

    /// Kills the snapshotter while containerd works on a request, once it has begun a snapshot, and starts
    /// another.
    fn kill_snapshotter_under(&mut self, mut client: Child) {
        let before = self.node.directories();
        until("a snapshot to be made", || {
            self.node.directories() > before || client.try_wait().unwrap().is_some()
        });
        self.node.kill_snapshotter();
        self.node.start_snapshotter();
        // Whether it got through or was refused, it has an end.
        until("the request to end", || {
            client.try_wait().unwrap().is_some()
        });
    }
}

#[test]
fn privileged_pods_of_containerd_24_read_on_whoever_dies() {
    let lab = Lab::new();
    let mut cluster = Cluster::start(&lab);
    let cri = Cri::of(&cluster.node);
    cluster.record(&cri);
    let app = cluster.images.app();
    let pod = cri.pod("reader", &app);
    assert_eq!(pod.lowers().matches("/served/").count(), 2);
    // The snapshotter is killed while an image is pulled, and again at the next attempt.
    let stacked = format!("{}/stacked:1", cluster.images.host());
    push(&stacked_layers(&lab, 20), &stacked);
    let pull = ["--namespace", "k8s.io", "images", "pull", "--plain-http"];
    let pull = [&pull[..], &["--snapshotter", "yolofs", &stacked]].concat();
    for _ in 0..2 {
        let pulling = cluster.node.spawn_ctr(&pull);
        cluster.kill_snapshotter_under(pulling);
        cluster.reads_on(&pod);
    }
    // While a container starts, twice.
    let run = ["--namespace", "k8s.io", "run", "--snapshotter", "yolofs"];
    for id in ["torn-1", "torn-2"] {
        let run = [&run[..], &["-d", &app, id, "/bin/sleep", "1000000"]].concat();
        let starting = cluster.node.spawn_ctr(&run);
        cluster.kill_snapshotter_under(starting);
        cluster.reads_on(&pod);
    }
    // Everything is whole: the image can be had, and run.
    cri.pull(&stacked);
    let said = cluster.node.containerd_said();
    assert!(!said.contains("unpacking will be sequential"), "{said}");
    let said = run_stacked(&lab, &cluster.node, "k8s.io", &stacked, "true");
    assert_eq!(said, "19\nmade19\n");
    // containerd, and who serves the layers.
    cluster.node.kill_containerd();
    cluster.node.start_containerd();
    until_pods_are_possible(&cri);
    cluster.reads_on(&pod);
    let mut mounts = cluster.node.mounts().into_iter();
    let served = mounts.find(|mount| mount.contains("/served/")).unwrap();
    cluster
        .service
        .kill_worker(Path::new(&served), Signal::SIGKILL);
    cluster.reads_on(&pod);
    let process = cluster.service.pid();
    signal_to(process, Signal::SIGKILL);
    cluster.node.kill_snapshotter();
    cluster.service.until_another(process);
    cluster.node.start_snapshotter();
    cluster.reads_on(&pod);
    pod.remove();
    let last = cri.pod("last", &app);
    assert_eq!(last.exec(READ), cluster.said);
    last.remove();
    for id in ["torn-1", "torn-2"] {
        // One that was not made is not there.
        let ctr = |args: &[&str]| {
            let args = [&["--namespace", "k8s.io"], args].concat();
            cluster.node.try_ctr(&args)
        };
        let _gone = ctr(&["tasks", "rm", "-f", id]);
        let _gone = ctr(&["containers", "rm", id]);
    }
    for image in [&app, &cluster.images.pause(), &stacked] {
        cri.remove_image(image);
    }
    until("all snapshots to go", || {
        cluster
            .node
            .ctr(&["--namespace", "k8s.io", "leases", "ls", "-q"])
            .split_whitespace()
            .for_each(|lease| {
                let rm = ["--namespace", "k8s.io", "leases", "rm", "--sync", lease];
                cluster.node.ctr(&rm);
            });
        cluster.node.directories() == 0
    });
}

/// Returns `docker save`'s archive of an image with files of several users.
fn of_several_users(lab: &Lab) -> PathBuf {
    let dir = lab.make_dir("users");
    busybox_root(&dir.join("base"));
    let home = lab.make_dir("users/top/home");
    for (name, uid) in [("root", 0), ("user", 1000), ("last", 65_535)] {
        fs::write(home.join(name), format!("{name}\n")).unwrap();
        std::os::unix::fs::chown(home.join(name), Some(uid), Some(uid)).unwrap();
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(home.join(name), private).unwrap();
    }
    pack(&dir, IMAGE, &["/bin/sh"], &["base", "top"])
}

/// What a container in a user namespace says of its IDs and of files, and writes.
const IDS: &str = "cat /proc/self/uid_map; stat -c '%u:%g %n' / /bin /home/*; cat /home/root /home/user; \
                   echo mine >/home/new; stat -c '%u:%g %n' /home/new";

/// Runs it in a user namespace in which 0 is `base`.
fn run_mapped(node: &Node<'_>, id: &str, base: u32) -> String {
    let map = format!("0:{base}:65536");
    let flags = ["--uidmap", &map, "--gidmap", &map, "--remap-labels"];
    // The client of 1.6 makes a copy unless told otherwise.
    let flags = &flags[..if node.is_of_today() { 5 } else { 4 }];
    node.run(flags, id, IDS)
}

/// What it should say there.
fn ids_of(base: u32) -> String {
    let map = format!("{:>10} {base:>10} {:>10}\n", 0, 65_536);
    map + "0:0 /\n0:0 /bin\n65535:65535 /home/last\n0:0 /home/root\n1000:1000 /home/user\n\
           root\nuser\n0:0 /home/new"
}

/// Returns the digests of the layers' blobs in a namespace, which are all but the documents.
fn blobs(node: &Node<'_>, namespace: &str) -> Vec<String> {
    let list = node.ctr(&["--namespace", namespace, "content", "ls"]);
    let lines = list.lines().skip(1);
    let blobs = lines.filter(|line| !line.contains("gc.ref") && !line.contains("config"));
    blobs
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

#[test]
fn privileged_layers_that_are_there_are_neither_downloaded_nor_unpacked_again() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let line = Proxy::before(&registry);
    push(
        &stacked_layers(&lab, 12),
        &format!("{}/stacked:1", registry.host()),
    );
    let image = format!("{}/stacked:1", line.host());
    let node = Node::start_today(&lab, &[]);
    let pull = |namespace: &str| {
        let pull = ["--namespace", namespace, "images", "pull", "--plain-http"];
        node.ctr(&[&pull[..], &["--snapshotter", "yolofs", &image]].concat());
    };
    pull("default");
    assert_eq!(blobs(&node, "default").len(), 12);
    let said = run_stacked(&lab, &node, "default", &image, "md5sum </made11");
    // Nobody has the blobs any more, so that they would have to be downloaded.
    for blob in blobs(&node, "default") {
        node.ctr(&["content", "rm", &blob]);
    }
    node.collect_garbage();
    let before = line.bytes();
    pull("k8s.io");
    // The manifest and the configuration; each of the layers has 300 000 bytes of noise.
    let downloaded = line.bytes() - before;
    assert!(downloaded < 100_000, "{downloaded} bytes were downloaded");
    assert!(blobs(&node, "k8s.io").is_empty());
    let snapshots = node.root().join("snapshots");
    let own = || {
        let entries = fs::read_dir(&snapshots)
            .unwrap()
            .map(|entry| entry.unwrap());
        let own = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        own.count()
    };
    assert_eq!(own(), 12, "a layer was unpacked again");
    assert_eq!(
        run_stacked(&lab, &node, "k8s.io", &image, "md5sum </made11"),
        said
    );
    // Whoever unpacked them removes them: the others keep theirs.
    node.ctr(&["images", "rm", "--sync", &image]);
    node.collect_garbage();
    assert_eq!(
        run_stacked(&lab, &node, "k8s.io", &image, "md5sum </made11"),
        said
    );
    let remove = ["--namespace", "k8s.io", "images", "rm", "--sync", &image];
    node.ctr(&remove);
    until("all snapshots to go", || node.directories() == 0);
}

#[test]
fn privileged_containers_in_user_namespaces_see_their_own_ids() {
    let lab = Lab::new();
    let node = Node::start_today(&lab, &["--auto-record", "--until", "exit"]);
    let archive = of_several_users(&lab);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let run = |id: &str, base: u32| run_mapped(&node, id, base);
    assert_eq!(run("first", 100_000), ids_of(100_000));
    until("the boot to be kept", || {
        node.first_boot("first").0 == "recorded"
    });
    until("both layers to be served", || {
        node.served() == 2 && node.is_warm()
    });
    // Whoever they are, they share the pages.
    lab::until_boot_reads_nothing(
        &lab,
        || node.reads(),
        |number| {
            let base = 100_000 + 65_536 * number;
            assert_eq!(run(&format!("again-{number}"), base), ids_of(base));
        },
    );
    // No copy of a layer was made.
    let list = node.ctr(&["snapshots", "ls"]);
    assert_eq!(list.matches("Committed").count(), 2, "{list}");
    // And one without a namespace of its own.
    let plain = node.run(&[], "plain", "stat -c '%u:%g %n' / /home/user");
    assert_eq!(plain, "0:0 /\n1000:1000 /home/user");
}

#[test]
fn privileged_containers_in_user_namespaces_have_copies_where_nobody_maps_ids() {
    let (lab, other) = (Lab::new(), Lab::new());
    let archive = of_several_users(&lab);
    // A containerd that was not told of the capability, and Debian's, which knows of none.
    for node in [
        Node::start_today_without_mapping(&lab),
        Node::start(&other, &[]),
    ] {
        node.ctr(&["images", "import", archive.to_str().unwrap()]);
        for (id, base) in [
            ("copied", 100_000),
            ("copied-again", 100_000),
            ("copied-for-others", 200_000),
        ] {
            assert_eq!(run_mapped(&node, id, base), ids_of(base));
        }
    }
}
