//! A Docker daemon of its own for a test, and images to run on it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::engines::Engines;
use super::{Lab, busybox_root, json, noise, ok, output, until};

/// Debian's client: another one may come before it in the path.
const CLIENT: &str = "/usr/bin/docker";

/// A running dockerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub(crate) struct Dockerd {
    dir: PathBuf,
    engines: Engines,
    flags: Vec<String>,
    child: Option<Child>,
}

impl Dockerd {
    /// Starts one with its directories in the lab, and waits until it answers.
    pub(crate) fn start(lab: &Lab, flags: &[&str]) -> Self {
        Self::start_engines(lab, Engines::Debian, flags)
    }

    /// Starts a Docker 29 with the storage driver overlay2, as one that was updated has it.
    pub(crate) fn start_today(lab: &Lab) -> Self {
        let flags = ["--feature", "containerd-snapshotter=false"];
        Self::start_engines(lab, Engines::Today, &flags)
    }

    fn start_engines(lab: &Lab, engines: Engines, flags: &[&str]) -> Self {
        let mut docker = Self {
            dir: lab.make_dir("docker"),
            engines,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
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
        let child = Command::new(self.engines.program("dockerd"))
            .env("PATH", self.engines.path())
            .arg("--data-root")
            .arg(self.data_root())
            .arg("--exec-root")
            .arg(self.dir.join("exec"))
            .arg("--pidfile")
            .arg(self.dir.join("pid"))
            .args(["-H", &self.host()])
            .args(["--storage-driver=overlay2", "--iptables=false"])
            .args(["--ip6tables=false", "--bridge=none"])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd is not installed: apt-get install docker.io");
        self.child = Some(child);
        until("dockerd to answer", || {
            let status = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "dockerd ended: {}", self.log());
            output(self.docker().arg("info")).status.success()
        });
    }

    /// Has it started with one more flag from now on.
    pub(crate) fn add_flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Returns what `docker save` writes of an image, file by file.
    pub(crate) fn saved(&self, lab: &Lab, image: &str) -> super::docker29::Saved {
        let tar = lab.path("saved.tar");
        self.run(&["save", "-o", tar.to_str().unwrap(), image]);
        super::docker29::saved(lab, &tar)
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
        let containerd = fs::read_to_string(self.dir.join("exec/containerd/containerd.pid"));
        let containerd = containerd.unwrap().trim().to_owned();
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).unwrap();
        }
        // It dies with dockerd, a moment later; a new dockerd would take it for its own.
        let process = Path::new("/proc").join(containerd);
        until("dockerd's containerd to end", || !process.exists());
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.dir.join("sock").display())
    }

    pub(crate) fn data_root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Returns Docker's client.
    pub(crate) fn docker(&self) -> Command {
        let mut command = Command::new(CLIENT);
        command.args(["--host", &self.host()]);
        command
    }

    /// Runs Docker's client, which must succeed.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        ok(self.docker().args(args)).trim_end().to_owned()
    }

    /// Returns a command of `yolofs docker` for this Docker.
    pub(crate) fn yolofs(&self, lab: &Lab, args: &[&str]) -> Command {
        let mut command = match args.first() {
            Some(&"serve") => lab.yolofs_of("docker/yolofs-docker.service"),
            _ => lab.yolofs(),
        };
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("/usr/bin:{path}"))
            .env("DOCKER_HOST", self.host())
            .arg("docker")
            .args(args);
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
        let images = status["images"].as_array().unwrap();
        let image = images.iter().find(|image| image["image"] == id.as_str());
        image.map_or(0, |image| image["served_layers"].as_u64().unwrap())
    }

    /// Returns whether all layers that are served are in the page cache.
    pub(crate) fn is_warm(&self, lab: &Lab) -> bool {
        let status = self.status(lab);
        let mut layers = status["layers"].as_array().unwrap().iter();
        layers.all(|layer| layer["boot"]["prewarm"] == "done")
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
        self.run(&[
            "import",
            "--change",
            "CMD [\"sh\"]",
            tar.to_str().unwrap(),
            "base",
        ]);
    }

    /// Builds an image with one layer more than `from`: files of `/data`, different for each name.
    pub(crate) fn build(&self, lab: &Lab, name: &str, from: &str) {
        let context = lab.make_dir(&format!("context-{name}"));
        fs::create_dir_all(context.join("data")).unwrap();
        let seed = name
            .bytes()
            .fold(7_u32, |seed, byte| seed * 31 + u32::from(byte));
        for index in 0..5 {
            let path = context.join(format!("data/{name}{index}"));
            fs::write(path, noise(seed + index, 20_000)).unwrap();
        }
        fs::write(
            context.join("Dockerfile"),
            format!("FROM {from}\nCOPY data /data\n"),
        )
        .unwrap();
        self.build_in(&context, name);
    }

    /// Builds what a directory's Dockerfile says.
    pub(crate) fn build_in(&self, context: &Path, name: &str) {
        let mut build = self.docker();
        // There is no plug-in for BuildKit here, and no network for its images.
        build.env("DOCKER_BUILDKIT", "0");
        ok(build
            .args(["build", "--network=none", "-q", "-t", name])
            .arg(context));
    }

    /// Returns the diff IDs of an image's layers with their directories, the lowest first.
    pub(crate) fn layers(&self, image: &str) -> Vec<(String, PathBuf)> {
        let inspect: Value = serde_json::from_str(&self.run(&["image", "inspect", image])).unwrap();
        let inspect = &inspect[0];
        let data = &inspect["GraphDriver"]["Data"];
        let lower = data["LowerDir"].as_str().unwrap_or_default();
        let mut dirs: Vec<PathBuf> = lower
            .split(':')
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from)
            .collect();
        dirs.insert(0, PathBuf::from(data["UpperDir"].as_str().unwrap()));
        dirs.reverse();
        let ids = inspect["RootFS"]["Layers"].as_array().unwrap().iter();
        ids.map(|id| id.as_str().unwrap().to_owned())
            .zip(dirs)
            .collect()
    }

    /// Gives every layer of an image a boot image with all of its content.
    pub(crate) fn record(&self, lab: &Lab, image: &str) {
        for (diff_id, dir) in self.layers(image) {
            let mut record = lab.bootimg();
            record
                .args(["record", "--no-chroot", "--name", &diff_id])
                .arg(&dir);
            ok(record.args([
                "--",
                "sh",
                "-c",
                "find $YOLOFS_MNT -type f -exec cat {} + > /dev/null",
            ]));
        }
    }

    /// Returns the places where yolofs has mounted something over a layer.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = self.data_root();
        let ours = mounts.lines().filter(|line| line.contains(" fuse.yolofs "));
        let points = ours.filter_map(|line| line.split(' ').nth(1));
        points
            .filter(|point| Path::new(point).starts_with(&root))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Dockerd {
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
    }
}
