//! A dockerd of a test: started with its directories in the lab, asked by Docker's client, and ended.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::engines::Engines;
use super::{Lab, busybox_root, json, noise, ok, output, until};

/// Debian's client: another one may come before it in the path. It speaks an API that Docker 29 still
/// understands, and has BuildKit's client in it.
const CLIENT: &str = "/usr/bin/docker";

/// A running dockerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub struct DockerProcess {
    dir: PathBuf,
    engines: Engines,
    /// How it keeps images.
    storage: Vec<String>,
    flags: Vec<String>,
    child: Option<Child>,
}

impl DockerProcess {
    /// Starts one in a directory, and waits until it answers.
    pub fn start(dir: PathBuf, engines: Engines, storage: &[&str], flags: &[&str]) -> Self {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut docker = Self {
            dir,
            engines,
            storage: owned(storage),
            flags: owned(flags),
            child: None,
        };
        docker.start_again();
        docker
    }

    /// Starts it after it was stopped or killed.
    pub fn start_again(&mut self) {
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
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .args(&self.storage)
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

    /// Has it started with these flags from now on.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Has it started with one more flag from now on.
    pub fn add_flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Ends it as systemd does.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        ok(Command::new("kill").arg(child.id().to_string()));
        until("dockerd to end", || child.try_wait().unwrap().is_some());
    }

    /// Ends it as a crash does, with the containerd that it has started, if it has.
    pub fn kill(&mut self) {
        let containerd = fs::read_to_string(self.dir.join("exec/containerd/containerd.pid"));
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).unwrap();
        }
        // It dies with dockerd, a moment later; a new dockerd would take it for its own.
        if let Ok(containerd) = containerd {
            let process = Path::new("/proc").join(containerd.trim());
            until("dockerd's containerd to end", || !process.exists());
        }
    }

    /// Returns where it listens, as its client takes it.
    pub fn host(&self) -> String {
        format!("unix://{}", self.dir.join("sock").display())
    }

    /// Returns where it keeps what outlives it.
    pub fn data_root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Returns Docker's client.
    pub fn docker(&self) -> Command {
        let mut command = Command::new(CLIENT);
        command.args(["--host", &self.host()]);
        command
    }

    /// Runs Docker's client, which must succeed.
    pub fn run(&self, args: &[&str]) -> String {
        ok(self.docker().args(args)).trim_end().to_owned()
    }

    /// Runs Docker's client, which may fail.
    pub fn try_run(&self, args: &[&str]) -> Output {
        output(self.docker().args(args))
    }

    /// Runs Docker's client in the background.
    pub fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.docker();
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Returns a command of `yolofs` or `bootimg` that finds this Docker as its user would: its client is not
    /// always the first in the path.
    pub fn with_host(&self, mut command: Command) -> Command {
        let path = match self.engines {
            Engines::Debian => {
                let mut path = std::ffi::OsString::from("/usr/bin:");
                path.push(self.engines.path());
                path
            }
            Engines::Today => self.engines.path(),
        };
        command.env("PATH", path).env("DOCKER_HOST", self.host());
        command
    }

    /// Returns a command of `yolofs docker` for this Docker.
    pub fn yolofs(&self, lab: &Lab, args: &[&str]) -> Command {
        let command = match args.first() {
            Some(&"serve") => lab.yolofs_of("docker/yolofs-docker.service"),
            _ => lab.yolofs(),
        };
        let mut command = self.with_host(command);
        command.arg("docker").args(args);
        command
    }

    /// Returns what `yolofs docker status --json` says.
    pub fn status(&self, lab: &Lab) -> Value {
        json(&mut self.yolofs(lab, &["status", "--json"]))
    }

    /// Returns how many layers of an image are served.
    pub fn served_layers(&self, lab: &Lab, image: &str) -> u64 {
        let id = self.run(&["image", "inspect", "--format", "{{.Id}}", image]);
        let status = self.status(lab);
        let mut images = status["images"].as_array().unwrap().iter();
        let image = images.find(|image| image["image"] == id.as_str());
        image.map_or(0, |image| image["served_layers"].as_u64().unwrap())
    }

    /// Returns what `docker save` writes of an image.
    pub fn saved(&self, lab: &Lab, image: &str) -> Saved {
        let tar = lab.path("saved.tar");
        self.run(&["save", "-o", tar.to_str().unwrap(), image]);
        saved(lab, &tar)
    }

    /// Makes `base`, one layer with busybox.
    pub fn import_base(&self, lab: &Lab) {
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

    /// Makes a directory to build an image from: a Dockerfile of these lines, and files in `data`, different
    /// for each name.
    pub fn context(lab: &Lab, name: &str, dockerfile: &str) -> PathBuf {
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
        context
    }
}

/// What `docker save` wrote, file by file: the times of its directories are when it was written.
pub type Saved = BTreeMap<PathBuf, Vec<u8>>;

/// Unpacks what `docker save` wrote at `tar`.
pub fn saved(lab: &Lab, tar: &Path) -> Saved {
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

impl Drop for DockerProcess {
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
            eprintln!("dockerd said:\n{}", self.log());
        }
    }
}
