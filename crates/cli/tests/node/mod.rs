//! A containerd of its own, served by a `yolofs snapshotter` of its own.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use lab::engines::Engines;
use lab::{Lab, busybox_root, json, noise, ok, output, until};

/// What an image of a test is called.
pub(crate) const IMAGE: &str = "test.local/small:1";

/// Its defaults are the machine's directories.
const WITHOUT_CRI: &str = r#"disabled_plugins = ["io.containerd.grpc.v1.cri"]"#;
/// The same of containerd 2. NRI has a socket that all would share.
const WITHOUT_CRI_2: &str = r#"disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]"#;
/// What users of containerd 2 have in its configuration.
const PACKAGED: &str = include_str!("../../../../packaging/containerd/config-v3.toml");

/// Where containers are: those of `ctr`, those of pods, and those of Docker.
const NAMESPACES: [&str; 3] = ["default", "k8s.io", "moby"];

/// crun 1.8 refuses a machine that has both versions of cgroups, so it is not shown the second.
const CRUN: &str = r#"#!/bin/sh
exec unshare -m --propagation slave sh -c 'umount -l /sys/fs/cgroup/unified 2>/dev/null
exec crun --cgroup-manager=disabled "$@"' crun "$@"
"#;

/// Both daemons; ended, with their containers, when it is dropped.
pub(crate) struct Node<'a> {
    lab: &'a Lab,
    engines: Engines,
    dir: PathBuf,
    root: PathBuf,
    flags: Vec<String>,
    snapshotter: Option<Child>,
    /// Those that were asked to end and still serve someone.
    former: Vec<Child>,
    containerd: Option<Child>,
}

impl<'a> Node<'a> {
    pub(crate) fn start(lab: &'a Lab, flags: &[&str]) -> Self {
        Self::start_with(lab, flags, "root", WITHOUT_CRI)
    }

    /// Starts a containerd of today, with the configuration of `packaging`.
    pub(crate) fn start_today(lab: &'a Lab, flags: &[&str]) -> Self {
        Self::start_packaged(PACKAGED, lab, flags, WITHOUT_CRI_2, "")
    }

    /// Starts one that was not told that the snapshotter has IDs mapped.
    pub(crate) fn start_today_without_mapping(lab: &'a Lab) -> Self {
        let packaged = PACKAGED.replace(r#"["rebase", "remap-ids"]"#, r#"["rebase"]"#);
        assert_ne!(packaged, PACKAGED);
        Self::start_packaged(&packaged, lab, &[], WITHOUT_CRI_2, "")
    }

    /// Starts a containerd of today for pods, with the configuration of `packaging` and these tables more.
    pub(crate) fn start_today_for_pods(lab: &'a Lab, flags: &[&str], more: &str) -> Self {
        let nri = "disabled_plugins = [\"io.containerd.nri.v1.nri\"]";
        Self::start_packaged(PACKAGED, lab, flags, nri, more)
    }

    /// The same, with settings of images: of the table that `packaging` has, which is there once only.
    pub(crate) fn start_today_with_images(
        lab: &'a Lab,
        flags: &[&str],
        images: &str,
        more: &str,
    ) -> Self {
        let nri = "disabled_plugins = [\"io.containerd.nri.v1.nri\"]";
        let table = "[plugins.'io.containerd.cri.v1.images']\n";
        assert_eq!(PACKAGED.matches(table).count(), 1);
        let packaged = PACKAGED.replace(table, &format!("{table}{images}"));
        Self::start_packaged(&packaged, lab, flags, nri, more)
    }

    /// The same, with NRI at [`nri_socket`](Self::nri_socket).
    pub(crate) fn start_today_with_nri(lab: &'a Lab, flags: &[&str], more: &str) -> Self {
        let at = lab.make_dir("node").display().to_string();
        let nri = format!(
            "[plugins.'io.containerd.nri.v1.nri']\nsocket_path = \"{at}/nri.sock\"\n\
             plugin_path = \"{at}/nri\"\nplugin_config_path = \"{at}/nri\"\n"
        );
        let socket = Self::nri_socket(lab);
        let flags = [flags, &["--nri", socket.to_str().unwrap()]].concat();
        Self::start_packaged(PACKAGED, lab, &flags, "", &format!("{more}{nri}"))
    }

    /// Returns where such a containerd listens for plugins.
    pub(crate) fn nri_socket(lab: &Lab) -> PathBuf {
        lab.make_dir("node").join("nri.sock")
    }

    fn start_packaged(packaged: &str, lab: &'a Lab, flags: &[&str], top: &str, more: &str) -> Self {
        let dir = lab.make_dir("node");
        let at = dir.display();
        let places =
            format!("version = 3\nroot = \"{at}/containerd\"\nstate = \"{at}/state\"\n{top}\n");
        let mut config = packaged.to_owned();
        for (packaged, here) in [
            ("version = 3\n", places),
            ("/run/yolofs/snapshotter.sock", format!("{at}/yolofs.sock")),
            ("/var/lib/yolofs/snapshotter", format!("{at}/root")),
        ] {
            assert_eq!(config.matches(packaged).count(), 1, "{packaged}");
            config = config.replace(packaged, &here);
        }
        config.push_str(&format!(
            "[grpc]\naddress = \"{at}/containerd.sock\"\n\
             [plugins.'io.containerd.gc.v1.scheduler']\ndeletion_threshold = 1\n{more}"
        ));
        Self::start_engines(Engines::Today, lab, flags, "root", &config)
    }

    /// Starts both, with the snapshotter's root at `root` in the node's directory, and with more
    /// lines in containerd's configuration.
    pub(crate) fn start_with(lab: &'a Lab, flags: &[&str], root: &str, more: &str) -> Self {
        let at = lab.make_dir("node");
        let config = format!(
            r#"version = 2
root = "{0}/containerd"
state = "{0}/state"
{more}
[grpc]
address = "{0}/containerd.sock"
[proxy_plugins.yolofs]
type = "snapshot"
address = "{0}/yolofs.sock"
# What is removed goes at once: on a busy machine containerd waits fifty times as long as the last
# collection took.
[plugins."io.containerd.gc.v1.scheduler"]
deletion_threshold = 1
"#,
            at.display()
        );
        Self::start_engines(Engines::Debian, lab, flags, root, &config)
    }

    fn start_engines(
        engines: Engines,
        lab: &'a Lab,
        flags: &[&str],
        root: &str,
        config: &str,
    ) -> Self {
        let dir = lab.make_dir("node");
        fs::write(dir.join("config.toml"), config).unwrap();
        let mut node = Self {
            lab,
            engines,
            root: dir.join(root),
            dir,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            snapshotter: None,
            former: Vec::new(),
            containerd: None,
        };
        node.start_snapshotter();
        node.start_containerd();
        node
    }

    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// Returns what `yolofs snapshotter status --json` says of the one that runs.
    pub(crate) fn status(&self) -> Value {
        let all = json(self.lab.yolofs().args(["snapshotter", "status", "--json"]));
        all[0].clone()
    }

    /// Returns whether all layers that are served are in the page cache.
    pub(crate) fn is_warm(&self) -> bool {
        let status = self.status();
        let mut layers = status["layers"].as_array().unwrap().iter();
        layers.all(|layer| layer["boot"]["prewarm"] == "done")
    }

    /// Returns how many requests to read all served layers have had.
    pub(crate) fn reads(&self) -> u64 {
        let status = self.status();
        let layers = status["layers"].as_array().unwrap().iter();
        layers
            .map(|layer| layer["served"]["requests"]["read"].as_u64().unwrap_or(0))
            .sum()
    }

    /// Returns what became of the first boot of a container: its state, and the rest of it.
    pub(crate) fn first_boot(&self, id: &str) -> (String, Value) {
        let status = self.status();
        let mut boots = status["first_boots"].as_array().unwrap().iter();
        let name = |boot: &&Value| {
            let key = boot["container"].as_str().unwrap();
            key.ends_with(&format!("/{id}"))
        };
        let boot = boots.rfind(name).cloned().unwrap_or_default();
        (boot["state"].as_str().unwrap_or_default().to_owned(), boot)
    }

    /// Waits until the first boot of a container is kept.
    pub(crate) fn until_recorded(&self, id: &str) {
        until("the first boot to be kept", || {
            let (state, why) = self.first_boot(id);
            assert_ne!(state, "failed", "{why}");
            state == "recorded"
        });
    }

    /// Waits until so many layers are served, and in memory.
    pub(crate) fn until_warm(&self, layers: usize) {
        until("all layers to be served", || {
            self.served() == layers && self.is_warm()
        });
    }

    /// Returns whether its engine is one of today.
    pub(crate) fn is_of_today(&self) -> bool {
        self.engines == Engines::Today
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.root.clone()
    }

    fn log(&self, name: &str) -> (Stdio, Stdio) {
        let path = self.dir.join(name);
        let log = File::options().create(true).append(true).open(path);
        let log = log.unwrap();
        (log.try_clone().unwrap().into(), log.into())
    }

    /// Returns what the snapshotter wrote.
    pub(crate) fn snapshotter_said(&self) -> String {
        self.said("yolofs.log")
    }

    /// Returns what containerd wrote.
    pub(crate) fn containerd_said(&self) -> String {
        self.said("containerd.log")
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    pub(crate) fn start_snapshotter(&mut self) {
        let socket = self.dir.join("yolofs.sock");
        let (out, err) = self.log("yolofs.log");
        let child = self
            .lab
            .yolofs_of("containerd/yolofs-snapshotter.service")
            .env(
                "YOLOFS_LOG",
                "info,containerd_service::snapshotter_service::pods=debug",
            )
            .arg("snapshotter")
            .arg("--root")
            .arg(self.root())
            .arg("--address")
            .arg(&socket)
            .arg("--containerd")
            .arg(self.dir.join("containerd.sock"))
            .arg("--containerd-root")
            .arg(self.dir.join("containerd"))
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn();
        let mut child = child.unwrap();
        until("the snapshotter to answer", || {
            let status = child.try_wait().unwrap();
            assert!(status.is_none(), "it ended: {}", self.said("yolofs.log"));
            UnixStream::connect(&socket).is_ok()
        });
        self.snapshotter = Some(child);
        // containerd waits longer and longer between two attempts to connect, and does not ask the
        // snapshotter for a namespace that has no snapshots.
        let lists = |namespace: &&str| {
            let list = ["--namespace", namespace, "snapshots", "ls"];
            self.try_ctr(&list).status.success()
        };
        until("containerd to find the snapshotter", || {
            self.containerd.is_none() || NAMESPACES.iter().all(lists)
        });
    }

    /// Has the next snapshotter started with other flags.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    pub(crate) fn start_containerd(&mut self) {
        let (out, err) = self.log("containerd.log");
        let child = Command::new(self.engines.program("containerd"))
            .env("PATH", self.engines.path())
            .arg("--config")
            .arg(self.dir.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn();
        let mut child = child.expect("containerd is not installed: apt-get install containerd");
        until("containerd to answer", || {
            let status = child.try_wait().unwrap();
            assert!(
                status.is_none(),
                "it ended: {}",
                self.said("containerd.log")
            );
            output(self.client().arg("version")).status.success()
        });
        self.containerd = Some(child);
    }

    /// Asks the snapshotter to end; it may still serve someone.
    pub(crate) fn stop_snapshotter(&mut self) {
        let mut child = self.snapshotter.take().unwrap();
        ok(Command::new("kill").arg(child.id().to_string()));
        let socket = self.dir.join("yolofs.sock");
        until("the snapshotter to leave", || {
            child.try_wait().unwrap().is_some()
                || !socket.exists() && !self.mounts().iter().any(|m| m.contains("/served/"))
        });
        self.former.push(child);
    }

    /// Asks the snapshotter to end, and waits until it has.
    pub(crate) fn end_snapshotter(&mut self) {
        let mut child = self.snapshotter.take().unwrap();
        ok(Command::new("kill").arg(child.id().to_string()));
        until("the snapshotter to end", || {
            child.try_wait().unwrap().is_some()
        });
    }

    pub(crate) fn kill_snapshotter(&mut self) {
        let mut child = self.snapshotter.take().unwrap();
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    pub(crate) fn kill_containerd(&mut self) {
        let mut child = self.containerd.take().unwrap();
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    /// Returns whether all snapshotters that were asked to end have ended.
    pub(crate) fn former_ended(&mut self) -> bool {
        self.former
            .iter_mut()
            .all(|child| child.try_wait().unwrap().is_some())
    }

    fn client(&self) -> Command {
        let mut command = Command::new(self.engines.program("ctr"));
        command
            .arg("--address")
            .arg(self.dir.join("containerd.sock"))
            .env("CONTAINERD_SNAPSHOTTER", "yolofs");
        command
    }

    /// Runs containerd's client, which must succeed.
    pub(crate) fn ctr(&self, args: &[&str]) -> String {
        ok(self.client().args(args)).trim_end().to_owned()
    }

    /// Runs containerd's client, which may fail.
    pub(crate) fn try_ctr(&self, args: &[&str]) -> Output {
        output(self.client().args(args))
    }

    /// Returns how a shell runs containerd's client.
    pub(crate) fn command(&self, args: &[&str]) -> String {
        let program = self.engines.program("ctr");
        let (program, socket) = (program.display(), self.containerd_socket());
        let said = args.join(" ");
        format!(
            "CONTAINERD_SNAPSHOTTER=yolofs {program} --address {} {said}",
            socket.display()
        )
    }

    /// Runs containerd's client in the background.
    pub(crate) fn spawn_ctr(&self, args: &[&str]) -> Child {
        let mut command = self.client();
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Runs a shell in a new container and returns what it said. runc has one list of containers for all
    /// containerds of the machine: tests of one program use different IDs. Not by way of `ctr`, which loses what a
    /// container says that ends before `ctr` has opened its end of the pipes.
    pub(crate) fn run(&self, flags: &[&str], id: &str, script: &str) -> String {
        let said = self.dir.join(format!("{id}.said"));
        let uri = format!("file://{}", said.display());
        let args = [
            &["run", "--rm", "--log-uri", &uri],
            flags,
            &[IMAGE, id, "/bin/sh", "-c", script],
        ];
        self.ctr(&args.concat());
        let said = fs::read(said).unwrap();
        String::from_utf8_lossy(&said).trim_end().to_owned()
    }

    pub(crate) fn crun(&self) -> String {
        let path = self.dir.join("crun");
        fs::write(&path, CRUN).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns the processes that record first boots.
    pub(crate) fn recorders(&self) -> Vec<u32> {
        let words = [
            b"recorder".as_slice(),
            self.root.as_os_str().as_encoded_bytes(),
        ];
        let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name();
            name.to_str()?.parse::<u32>().ok()
        });
        let records = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let said: Vec<_> = line.split(|byte| *byte == 0).collect();
            words.iter().all(|word| said.contains(word))
        };
        numbers.filter(records).collect()
    }

    /// Returns the mount points in the root.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let root = self.root();
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(1));
        points
            .filter(|point| point.starts_with(root.to_str().unwrap()))
            .map(str::to_owned)
            .collect()
    }

    /// Returns how many layers are served from boot images.
    pub(crate) fn served(&self) -> usize {
        self.mounts()
            .iter()
            .filter(|m| m.contains("/served/"))
            .count()
    }

    /// Returns how many snapshots have a directory.
    pub(crate) fn directories(&self) -> usize {
        fs::read_dir(self.root().join("snapshots")).unwrap().count()
    }

    /// Has containerd bring away what it has removed from its own records: it tells the snapshotter of
    /// that when it sees fit, later on a busy machine, and never again if nobody answers then.
    pub(crate) fn collect_garbage(&self) {
        let lease = self.ctr(&["leases", "create"]);
        self.ctr(&["leases", "rm", "--sync", &lease]);
    }

    /// Removes what keeps images and snapshots alive, and waits until the disk is empty.
    pub(crate) fn forget_everything(&self) {
        for lease in self.ctr(&["leases", "ls", "-q"]).split_whitespace() {
            self.ctr(&["leases", "rm", "--sync", lease]);
        }
        for image in self.ctr(&["images", "ls", "-q"]).split_whitespace() {
            self.ctr(&["images", "rm", "--sync", image]);
        }
        until("all snapshots to go", || self.directories() == 0);
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        for namespace in NAMESPACES {
            let ctr = |args: &[&str]| {
                let args = [&["--namespace", namespace], args].concat();
                self.client().args(args).output()
            };
            let ids = ctr(&["containers", "ls", "-q"]);
            let ids = ids.map(|ids| String::from_utf8_lossy(&ids.stdout).into_owned());
            for id in ids.unwrap_or_default().split_whitespace() {
                let _gone = ctr(&["tasks", "rm", "-f", id]);
                let _gone = ctr(&["containers", "rm", id]);
            }
        }
        let running = [self.containerd.take(), self.snapshotter.take()];
        for mut child in running.into_iter().flatten().chain(self.former.drain(..)) {
            let _asked = Command::new("kill").arg(child.id().to_string()).output();
            let start = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(20)
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ended = child.kill().and_then(|()| child.wait());
        }
        // Nobody needs it any more; after a failure, somebody may seem to.
        let start = Instant::now();
        while !self.recorders().is_empty() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        for pid in self.recorders() {
            let _killed = Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
        if std::thread::panicking() {
            eprintln!("the snapshotter said:\n{}", self.said("yolofs.log"));
            let said = self.said("containerd.log");
            let bad = ["level=warning", "level=error"];
            let said = said
                .lines()
                .filter(|line| bad.iter().any(|word| line.contains(word)));
            eprintln!("containerd said:\n{}", said.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Makes what `docker save` would of an image of two layers: a shell, and `bytes` of noise.
pub(crate) fn archive(lab: &Lab, bytes: usize) -> PathBuf {
    let dir = lab.make_dir("image");
    busybox_root(&dir.join("base"));
    let top = lab.make_dir("image/top/srv");
    fs::write(top.join("greeting"), "hello\n").unwrap();
    fs::write(top.join("noise"), noise(7, bytes)).unwrap();
    pack(&dir, IMAGE, &["/bin/sh"], &["base", "top"])
}

/// Makes what `docker save` would of an image whose layers are directories in `dir`.
pub(crate) fn pack(dir: &Path, image: &str, command: &[&str], layers: &[&str]) -> PathBuf {
    let run = serde_json::json!({"Env": ["PATH=/bin"], "Cmd": command});
    pack_to_run(dir, image, &run, layers)
}

/// The same, of an image that says more of how it is run.
pub(crate) fn pack_to_run(dir: &Path, image: &str, run: &Value, layers: &[&str]) -> PathBuf {
    let tars: Vec<_> = layers.iter().map(|name| format!("{name}.tar")).collect();
    for (name, tar) in layers.iter().zip(&tars) {
        ok(Command::new("tar")
            .current_dir(dir)
            .args(["-cf", tar, "-C", name, "."]));
    }
    let digests: Vec<_> = tars.iter().map(|tar| digest(&dir.join(tar))).collect();
    let config = serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let manifest = serde_json::json!([{
        "Config": "config.json",
        "RepoTags": [image],
        "Layers": tars,
    }]);
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    ok(Command::new("tar")
        .current_dir(dir)
        .args(["-cf", "image.tar", "config.json", "manifest.json"])
        .args(&tars));
    dir.join("image.tar")
}

fn digest(file: &Path) -> String {
    let sum = ok(Command::new("sha256sum").arg(file));
    format!("sha256:{}", sum.split(' ').next().unwrap())
}
