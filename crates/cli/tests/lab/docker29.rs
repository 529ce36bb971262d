//! A Docker 29 of its own for a test, with its images in a containerd.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::engines::Engines;
use super::{Lab, busybox_root, json, noise, ok, output, until};

/// Debian's client: it speaks an API that Docker 29 still understands, and has BuildKit's client in it.
const CLIENT: &str = "/usr/bin/docker";

/// A running dockerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub(crate) struct Docker29 {
    dir: PathBuf,
    containerd: PathBuf,
    snapshotter: String,
    flags: Vec<String>,
    child: Option<Child>,
}

impl Docker29 {
    /// Starts one on a containerd that runs, with its images in a snapshotter of that: `overlayfs` is the
    /// default, for which nothing is configured.
    pub(crate) fn start(lab: &Lab, containerd: &Path, snapshotter: &str) -> Self {
        let mut docker = Self {
            dir: lab.make_dir("docker29"),
            containerd: containerd.to_owned(),
            snapshotter: snapshotter.to_owned(),
            flags: Vec::new(),
            child: None,
        };
        docker.start_again();
        docker
    }

    /// Starts it after it was stopped or killed.
    pub(crate) fn start_again(&mut self) {
        // What a killed one leaves behind keeps the next from starting.
        let _none = fs::remove_file(self.dir.join("pid"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .unwrap();
        let mut command = Command::new(Engines::Today.program("dockerd"));
        command
            .env("PATH", Engines::Today.path())
            .arg("--data-root")
            .arg(self.data_root())
            .arg("--exec-root")
            .arg(self.dir.join("exec"))
            .arg("--pidfile")
            .arg(self.dir.join("pid"))
            .arg("--containerd")
            .arg(&self.containerd)
            .args(["-H", &self.host()])
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .args(&self.flags);
        if self.snapshotter != "overlayfs" {
            command
                .args(["--storage-driver", &self.snapshotter])
                .args(["--feature", "containerd-snapshotter=true"]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        until("dockerd to answer", || {
            let status = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "dockerd ended: {}", self.said());
            output(self.docker().arg("info")).status.success()
        });
    }

    /// Has it started with these flags from now on.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Ends it as systemd does.
    pub(crate) fn stop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        ok(Command::new("kill").arg(child.id().to_string()));
        until("dockerd to end", || child.try_wait().unwrap().is_some());
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).unwrap();
        }
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.dir.join("sock").display())
    }

    pub(crate) fn data_root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn docker(&self) -> Command {
        let mut command = Command::new(CLIENT);
        command.args(["--host", &self.host()]);
        command
    }

    /// Runs Docker's client, which must succeed.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        ok(self.docker().args(args)).trim_end().to_owned()
    }

    /// Runs Docker's client, which may fail.
    pub(crate) fn try_run(&self, args: &[&str]) -> Output {
        output(self.docker().args(args))
    }

    /// Runs Docker's client in the background.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.docker();
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Returns a command of `yolofs` or `bootimg` that finds this Docker as its user would.
    pub(crate) fn with_host(&self, mut command: Command) -> Command {
        let path = Engines::Today.path();
        command.env("PATH", path).env("DOCKER_HOST", self.host());
        command
    }

    /// Returns a command of `yolofs docker` for this Docker.
    pub(crate) fn yolofs(&self, lab: &Lab, args: &[&str]) -> Command {
        let command = match args.first() {
            Some(&"serve") => lab.yolofs_of("docker/yolofs-docker.service"),
            _ => lab.yolofs(),
        };
        let mut command = self.with_host(command);
        command.arg("docker").args(args);
        command
    }

    /// Returns what `yolofs docker status --json` says.
    pub(crate) fn status(&self, lab: &Lab) -> Value {
        json(&mut self.yolofs(lab, &["status", "--json"]))
    }

    /// Returns how many layers of an image are served.
    pub(crate) fn served_layers(&self, lab: &Lab, image: &str) -> u64 {
        let id = self.run(&["image", "inspect", "--format", "{{.Id}}", image]);
        let status = self.status(lab);
        let mut images = status["images"].as_array().unwrap().iter();
        let image = images.find(|image| image["image"] == id.as_str());
        image.map_or(0, |image| image["served_layers"].as_u64().unwrap())
    }

    /// Returns what `docker save` writes of an image.
    pub(crate) fn saved(&self, lab: &Lab, image: &str) -> Saved {
        let tar = lab.path("saved.tar");
        self.run(&["save", "-o", tar.to_str().unwrap(), image]);
        saved(lab, &tar)
    }

    /// Makes `base`, one layer with busybox.
    pub(crate) fn import_base(&self, lab: &Lab) {
        let root = lab.path("base");
        busybox_root(&root);
        let tar = lab.path("base.tar");
        ok(Command::new("tar")
            .arg("-cf")
            .arg(&tar)
            .arg("-C")
            .arg(&root)
            .arg("."));
        let import = ["import", "--change", "CMD [\"sh\"]"];
        self.run(&[&import[..], &[tar.to_str().unwrap(), "base"]].concat());
    }

    /// Builds an image with one layer more than `from`: files of `/data`, different for each name.
    pub(crate) fn build(&self, lab: &Lab, name: &str, from: &str) {
        let lines = format!("FROM {from}\nCOPY data /data\n");
        self.build_with(lab, name, &lines);
    }

    /// Builds an image by BuildKit from a Dockerfile's lines, with files in `data`.
    pub(crate) fn build_with(&self, lab: &Lab, name: &str, dockerfile: &str) {
        let context = lab.make_dir(&format!("context-{name}"));
        fs::create_dir_all(context.join("data")).unwrap();
        let seed = name
            .bytes()
            .fold(7_u32, |seed, byte| seed * 31 + u32::from(byte));
        for index in 0..5 {
            let path = context.join(format!("data/{name}{index}"));
            fs::write(path, noise(seed + index, 20_000)).unwrap();
        }
        fs::write(context.join("Dockerfile"), dockerfile).unwrap();
        let mut build = self.docker();
        build.env("DOCKER_BUILDKIT", "1");
        ok(build
            .args(["build", "--network=none", "-q", "-t", name])
            .arg(&context));
    }
}

/// What `docker save` wrote, file by file: the times of its directories are when it was written.
pub(crate) type Saved = BTreeMap<PathBuf, Vec<u8>>;

/// Unpacks what `docker save` wrote at `tar`.
pub(crate) fn saved(lab: &Lab, tar: &Path) -> Saved {
    let dir = lab.make_dir("saved");
    ok(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(&dir));
    let mut files = BTreeMap::new();
    collect(&dir, &mut files);
    fs::remove_dir_all(&dir).unwrap();
    files
}

fn collect(dir: &Path, files: &mut Saved) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.insert(path.clone(), fs::read(path).unwrap());
        }
    }
}

impl Drop for Docker29 {
    fn drop(&mut self) {
        let ps = self.docker().args(["ps", "-aq"]).output();
        let ids = ps.map(|ps| String::from_utf8_lossy(&ps.stdout).into_owned());
        for id in ids.unwrap_or_default().split_whitespace() {
            let _gone = self.docker().args(["rm", "-f", id]).output();
        }
        if let Some(mut child) = self.child.take() {
            let _asked = Command::new("kill").arg(child.id().to_string()).status();
            let patience = std::time::Duration::from_secs(30);
            let start = std::time::Instant::now();
            while matches!(child.try_wait(), Ok(None)) && start.elapsed() < patience {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let _ended = child.kill().and_then(|()| child.wait());
        }
        if std::thread::panicking() {
            eprintln!("dockerd said:\n{}", self.said());
        }
    }
}
