//! Docker 29 as it comes, with its images in containerd's overlayfs snapshotter: layers are served in place.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::containerd::ContainerdRig;
use lab::docker_process::Saved;
use lab::docker29::Docker29;
use lab::service::{Service, signal_to};
use lab::{Lab, assert_confined_to, ok, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;

const MD5: &str = "cat /usr/lib/part* /data/* | md5sum";

/// A containerd of today and a Docker 29 on it, both as they come, and the image `app` of two layers with
/// a boot image.
struct Host<'a> {
    lab: &'a Lab,
    docker: Docker29,
    containerd: ContainerdRig,
}

impl<'a> Host<'a> {
    fn start(lab: &'a Lab) -> Self {
        let containerd = ContainerdRig::start_today(lab);
        let docker = Docker29::start(lab, &containerd.socket(), "overlayfs");
        docker.import_base(lab);
        docker.build(lab, "app", "base");
        let host = Self {
            lab,
            docker,
            containerd,
        };
        host.record("app");
        host
    }

    /// Records an image by the name that its user knows; where it is, is for the program to find.
    fn record(&self, image: &str) {
        let mut record = self.docker.with_host(self.lab.bootimg());
        record.args(["record", "--until", "exit", &format!("docker://{image}")]);
        ok(record.args([
            "--",
            "sh",
            "-c",
            "find /bin /etc /usr /data -type f -exec cat {} + > /dev/null",
        ]));
    }

    /// Builds an image on top of `app`, with layers that are merged; `sum` is what it has to read.
    fn build_on_top(&self, sum: &str) {
        let lines = format!("FROM app\nCOPY --link data /linked\nRUN {MD5} > /sum\n");
        self.docker.build_with(self.lab, "built", &lines);
        let run = ["run", "--rm", "--network=none", "built", "sh", "-c"];
        let built = self
            .docker
            .run(&[&run[..], &["cat /sum; ls /linked"]].concat());
        assert!(
            built.starts_with(sum) && built.contains("built0"),
            "{built}"
        );
    }

    fn yolofs(&self, args: &[&str]) -> String {
        ok(&mut self.docker.yolofs(self.lab, args))
    }

    fn md5(&self, image: &str) -> String {
        let run = ["run", "--rm", "--network=none", image, "sh", "-c", MD5];
        self.docker.run(&run)
    }

    /// Returns the lines of the mount table of what is mounted over layers.
    fn mounts(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = self.containerd.root();
        let ours = mounts.lines().filter(|line| line.contains(" fuse.yolofs "));
        let root = root.to_str().unwrap();
        ours.filter(|line| line.contains(root))
            .map(str::to_owned)
            .collect()
    }

    fn leases(&self) -> Vec<String> {
        let leases = self.containerd.ctr_in("moby", &["leases", "ls", "-q"]);
        let leases = leases.lines().filter(|id| id.starts_with("yolofs-"));
        leases.map(str::to_owned).collect()
    }

    /// Returns the directories of the snapshots.
    fn directories(&self) -> usize {
        let overlayfs = self
            .containerd
            .root()
            .join("io.containerd.snapshotter.v1.overlayfs");
        fs::read_dir(overlayfs.join("snapshots")).unwrap().count()
    }

    /// Reads in a container that runs, past the page cache.
    #[track_caller]
    fn reads_on(&self, sum: &str) {
        let pid = ["inspect", "--format", "{{.State.Pid}}", "reader"];
        let pid = self.docker.run(&pid);
        for dir in ["usr/lib", "data"] {
            for entry in fs::read_dir(format!("/proc/{pid}/root/{dir}")).unwrap() {
                let file = fs::File::open(entry.unwrap().path()).unwrap();
                posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
            }
        }
        assert_eq!(self.docker.run(&["exec", "reader", "sh", "-c", MD5]), sum);
    }

    fn until_served(&self, image: &str, layers: u64) {
        until("the layers to be served", || {
            self.docker.served_layers(self.lab, image) == layers
        });
    }

    /// Returns how many requests to read all served layers have had.
    fn reads(&self) -> u64 {
        let status = self.docker.status(self.lab);
        let layers = status["layers"].as_array().unwrap().iter();
        layers
            .map(|layer| layer["served"]["requests"]["read"].as_u64().unwrap_or(0))
            .sum()
    }

    fn is_warm(&self) -> bool {
        let status = self.docker.status(self.lab);
        let mut layers = status["layers"].as_array().unwrap().iter();
        layers.all(|layer| layer["boot"]["prewarm"] == "done")
    }

    fn saved(&self, image: &str) -> Saved {
        self.docker.saved(self.lab, image)
    }
}

#[track_caller]
fn assert_same(before: &Saved, after: &Saved) {
    let names = |files: &Saved| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(before), names(after));
    for (name, bytes) in before {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(bytes), text(&after[name]), "{}", name.display());
    }
}

#[test]
fn privileged_docker_29_works_on_layers_that_are_served_in_place() {
    let lab = Lab::new();
    let host = Host::start(&lab);
    let docker = &host.docker;
    let (sum, saved) = (host.md5("app"), host.saved("app"));
    host.yolofs(&["attach", "app"]);
    let mounts = host.mounts();
    assert_eq!(mounts.len(), 2, "{mounts:?}");
    for mount in &mounts {
        let options = mount.split(' ').nth(3).unwrap();
        assert!(options.split(',').any(|option| option == "ro"), "{mount}");
    }
    assert_eq!(host.leases().len(), 2);
    // They are no mounts of their own, and yet somebody's.
    let text = ok(lab.yolofs().arg("status"));
    let expected = "nothing is mounted\n2 layers of Docker's images: yolofs docker status\n";
    assert_eq!(text, expected);
    assert_confined_to(&docker.status(&lab)["pid"], 0x20_400e);
    let text = host.yolofs(&["status"]);
    assert!(
        text.contains("app") && text.contains("2 of 2 known"),
        "{text}"
    );
    until("the layers to be in the page cache", || host.is_warm());
    lab::until_boot_reads_nothing(&lab, || host.reads(), |_| assert_eq!(host.md5("app"), sum));
    // Changed, looked at, and kept as an image.
    let change = "echo 1 > /etc/config; rm /usr/lib/part07; chmod 700 /usr/lib/part00";
    docker.run(&[
        "run",
        "--name",
        "changed",
        "--network=none",
        "app",
        "sh",
        "-c",
        change,
    ]);
    let diff = docker.run(&["diff", "changed"]);
    for line in ["C /etc/config", "D /usr/lib/part07", "C /usr/lib/part00"] {
        assert!(diff.lines().any(|found| found == line), "{line}\n{diff}");
    }
    docker.run(&["commit", "changed", "kept"]);
    let cat = [
        "run",
        "--rm",
        "--network=none",
        "kept",
        "sh",
        "-c",
        "cat /etc/config; ls /usr/lib",
    ];
    let kept = docker.run(&cat);
    assert!(kept.starts_with('1') && !kept.contains("part07"), "{kept}");
    assert_same(&saved, &host.saved("app"));
    host.build_on_top(&sum);
    // Docker notes with an image that others were built of it, and saves that, too.
    let saved = host.saved("app");
    // Nobody uses them any more, and what was removed is gone.
    docker.run(&["rm", "changed"]);
    docker.run(&["rmi", "kept", "built"]);
    host.yolofs(&["detach", "app"]);
    assert_eq!((host.mounts(), host.leases()), (Vec::new(), Vec::new()));
    assert_eq!(host.md5("app"), sum);
    assert!(
        host.saved("app") == saved,
        "docker save differs after detaching"
    );
}

#[test]
fn privileged_docker_29_removes_what_was_served_in_place() {
    let lab = Lab::new();
    let host = Host::start(&lab);
    let docker = &host.docker;
    let sum = host.md5("app");
    let tar = lab.path("app.tar");
    docker.run(&["save", "-o", tar.to_str().unwrap(), "app"]);
    let before = host.directories();
    host.yolofs(&["attach", "--all"]);
    host.until_served("app", 2);
    assert_eq!(host.md5("app"), sum);
    docker.run(&["rmi", "-f", "app"]);
    // The layer of its own goes, with its lease; the one below is of another image.
    until("the mount to go", || host.mounts().len() == 1);
    until("the lease to go", || host.leases().len() == 1);
    // It comes back to another directory, and is served with no one asking.
    docker.run(&["load", "-i", tar.to_str().unwrap()]);
    host.until_served("app", 2);
    assert_eq!(host.md5("app"), sum);
    docker.run(&["rmi", "-f", "app", "base"]);
    docker.run(&["builder", "prune", "-af"]);
    docker.run(&["system", "prune", "-af"]);
    until("all mounts to go", || host.mounts().is_empty());
    until("all leases to go", || host.leases().is_empty());
    until("the directories to go", || {
        // containerd collects when it sees fit.
        let lease = host.containerd.ctr_in("moby", &["leases", "create"]);
        host.containerd
            .ctr_in("moby", &["leases", "rm", "--sync", &lease]);
        host.directories() == 0
    });
    assert!(before > 0);
    host.yolofs(&["detach", "--all"]);
}

#[test]
fn privileged_docker_29_and_what_serves_its_layers_in_place_may_die() {
    let lab = Lab::new();
    let mut host = Host::start(&lab);
    let sum = host.md5("app");
    host.yolofs(&["attach", "app"]);
    host.docker.stop();
    host.docker.start_again();
    host.until_served("app", 2);
    assert_eq!(host.md5("app"), sum);
    host.docker.kill();
    host.docker.start_again();
    host.until_served("app", 2);
    assert_eq!(host.md5("app"), sum);
    host.containerd.kill_and_start_again();
    assert_eq!(
        host.mounts().len(),
        2,
        "containerd's end is no reason to unmount"
    );
    until("Docker to find containerd again", || {
        host.docker
            .try_run(&["run", "--rm", "--network=none", "app", "true"])
            .status
            .success()
    });
    assert_eq!(host.md5("app"), sum);
    // The process that serves is killed: its mounts go at once, and another attaches.
    let pid = host.docker.status(&lab)["pid"].as_u64().unwrap();
    ok(Command::new("kill").args(["-9", &pid.to_string()]));
    until("another to serve", || {
        let status = host.docker.status(&lab);
        status["pid"].as_u64().is_some_and(|other| other != pid)
    });
    host.until_served("app", 2);
    assert_eq!(host.leases().len(), 2);
    assert_eq!(host.md5("app"), sum);
    // An image that is removed now is followed, too: the events of before are no more.
    host.docker.run(&["rmi", "-f", "app"]);
    until("its own layer to go", || {
        host.leases().len() < 2 && host.mounts().len() < 2
    });
    host.yolofs(&["detach", "--all"]);
    assert_eq!((host.mounts(), host.leases()), (Vec::new(), Vec::new()));
}

#[test]
fn privileged_docker_29_reads_layers_of_the_node_in_place_whoever_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut host = Host::start(&lab);
    let sum = host.md5("app");
    host.yolofs(&["attach", "app"]);
    let mounts = host.mounts();
    assert_eq!(mounts.len(), 2, "{mounts:?}");
    assert_eq!(host.docker.status(&lab)["served_by"], "node");
    host.docker.stop();
    host.docker.set_flags(&["--live-restore"]);
    host.docker.start_again();
    let run = ["run", "-d", "--name", "reader", "--network=none", "app"];
    host.docker.run(&[&run[..], &["sleep", "1000000"]].concat());
    host.reads_on(&sum);
    host.docker.kill();
    host.docker.start_again();
    host.reads_on(&sum);
    // Who serves, who owns, who decides, and the last two at once.
    let place = mounts[0].split(' ').nth(1).unwrap();
    service.kill_worker(Path::new(place), Signal::SIGKILL);
    host.reads_on(&sum);
    service.kill_node();
    host.reads_on(&sum);
    // A worker that finds no store serves without a boot image. Whoever decides next must not take its mount for one of
    // another directory.
    let (store, aside) = (lab.store(), lab.path("store-aside"));
    fs::rename(&store, &aside).unwrap();
    service.kill_worker(Path::new(place), Signal::SIGKILL);
    host.reads_on(&sum);
    fs::rename(&aside, &store).unwrap();
    let without = service.listed(Path::new(place)).unwrap();
    assert!(without["boot"].is_null(), "{without}");
    for with_node in [false, true] {
        let status = host.docker.status(&lab);
        let worker = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
        if with_node {
            signal_to(service.pid(), Signal::SIGKILL);
        }
        signal_to(worker, Signal::SIGKILL);
        until("another worker", || {
            let status = host.docker.status(&lab);
            status["pid"]
                .as_u64()
                .is_some_and(|pid| pid != u64::from(worker))
        });
        host.reads_on(&sum);
        host.until_served("app", 2);
    }
    until("the boot image to be used again", || {
        !service.listed(Path::new(place)).unwrap()["boot"].is_null()
    });
    assert_eq!(host.mounts(), mounts, "all that time these were the same");
    assert_eq!(host.md5("app"), sum);
    host.docker.run(&["rm", "-f", "reader"]);
    host.yolofs(&["detach", "--all"]);
    assert_eq!((host.mounts(), host.leases()), (Vec::new(), Vec::new()));
}
