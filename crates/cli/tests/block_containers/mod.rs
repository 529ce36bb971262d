//! A registry with a block image, and containers of containerd on it.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::fs;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use blockimages::plan::StartPlan;
use blockimages::{Trace, TraceDialect, TraceRead};
use blocks::Digest;
use oci::registry::{Access, RegistryConfig, Repository, Target, Transport};
use oci::{Descriptor, Manifest, Platform, Reference, digest_of};
use serde_json::{Value, json};
use testkit::registries::{Kind, Proxy, Registry, USER};

use super::node::{Node, archive};
use lab::{Lab, noise, ok, until};

/// What plans are called in registries.
const PLAN: &str = "application/vnd.yolofs.blockplan.v1";
/// Bytes of the one large file of the image. They do not compress.
pub(crate) const NOISE: usize = 8_000_000;
/// More than the manifest, the configuration and all headers take.
pub(crate) const DOCUMENTS: u64 = 20_000;
/// A registry with a block image of two layers.
pub(crate) struct Source {
    pub(crate) proxy: Proxy,
    pub(crate) registry: Registry,
}

impl Source {
    /// Makes an image, converts it, and pushes it.
    pub(crate) fn new(lab: &Lab) -> Self {
        Self::of(lab, &archive(lab, NOISE))
    }

    /// Converts what `docker save` wrote, and pushes it.
    pub(crate) fn of(lab: &Lab, archive: &Path) -> Self {
        Self::at(lab, archive, Registry::start(Kind::Docker))
    }

    /// Makes an image with an ext4, which can be written to.
    pub(crate) fn with_ext4(lab: &Lab) -> Self {
        let archive = archive(lab, NOISE);
        Self::converted(lab, &archive, Registry::start(Kind::Docker), "ext4")
    }

    /// Converts what `docker save` wrote to an image with an ext4, and pushes it under the same name as others do.
    pub(crate) fn ext4_of(lab: &Lab, archive: &Path) -> Self {
        Self::converted(lab, archive, Registry::start(Kind::Docker), "ext4")
    }

    /// Does the same with a registry of any kind.
    pub(crate) fn at(lab: &Lab, archive: &Path, registry: Registry) -> Self {
        Self::converted(lab, archive, registry, "erofs")
    }

    fn converted(lab: &Lab, archive: &Path, registry: Registry, file_system: &str) -> Self {
        convert(lab, archive, &registry, (file_system, "block"));
        Self {
            proxy: Proxy::before(&registry),
            registry,
        }
    }

    /// Puts the same image with an ext4 beside it, and returns its name.
    pub(crate) fn add_ext4(&self, lab: &Lab, archive: &Path) -> String {
        convert(lab, archive, &self.registry, ("ext4", "ext4"));
        format!("{}/small:ext4", self.proxy.host())
    }

    /// Returns the digests of the image's layers, the lowest first.
    pub(crate) fn layers(&self, lab: &Lab) -> Vec<Digest> {
        let config = fs::read(lab.path("converted/small/config.v1.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let lowers = config["lowers"].as_array().unwrap().iter();
        let digests = lowers.map(|lower| lower["digest"].as_str().unwrap().parse());
        digests.collect::<Result<_, _>>().unwrap()
    }

    /// Pushes a plan that refers to the image: the first 8 MiB of these layers are read.
    pub(crate) fn push_plan(&self, layers: &[Digest], recorded_at: u64) {
        let reads = (0..).zip(layers).map(|(layer, _)| TraceRead {
            layer,
            offset: 0,
            len: 8 << 20,
        });
        let trace = Trace {
            dialect: TraceDialect::Overlaybd,
            reads: reads.collect(),
        };
        let layers: Vec<_> = layers.iter().copied().map(Some).collect();
        let plan = StartPlan::of_trace(&trace, &layers, recorded_at).encode();
        let to = format!("{}/small:block", self.registry.host());
        let to: Reference = to.parse().unwrap();
        let config = RegistryConfig {
            transport: Transport::Plain,
            ..RegistryConfig::default()
        };
        let repository = Repository::open(&to, Access::Push, &config).unwrap();
        let mut watch = |_| ControlFlow::Continue(());
        let mut push = |media_type: &str, bytes: &[u8]| {
            let (digest, len) = (digest_of(bytes), bytes.len() as u64);
            repository
                .push_blob(digest, len, Cursor::new(bytes.to_vec()), &mut watch)
                .unwrap();
            Descriptor::new(media_type, digest, len)
        };
        let blob = push(PLAN, &plan);
        let config = push("application/vnd.oci.empty.v1+json", b"{}");
        let image = repository.image(&Target::of(&to), &Platform::host(), &mut watch);
        let subject = image.unwrap().unwrap().0.descriptor();
        let mut artifact = Manifest::of_artifact(PLAN, config, vec![blob], subject);
        let note = ("org.yolofs.recorded-at".to_owned(), recorded_at.to_string());
        artifact.annotations.extend([note]);
        repository.push_artifact(&artifact, &mut watch).unwrap();
    }

    /// Returns the name of the image, whose bytes are counted.
    pub(crate) fn image(&self) -> String {
        format!("{}/small:block", self.proxy.host())
    }
}

/// Converts what `docker save` wrote to a kind of file system, and pushes it with a tag.
fn convert(lab: &Lab, archive: &Path, registry: &Registry, (kind, tag): (&str, &str)) {
    let image = format!("docker-archive:{}", archive.display());
    let to = format!("{}/small:{tag}", registry.host());
    let (name, password) = USER;
    let login = json!({"auths": {registry.host(): {"auth": auth(name, password)}}});
    let docker = lab.make_dir("docker");
    fs::write(docker.join("config.json"), login.to_string()).unwrap();
    let mut convert = lab.yolofs();
    convert.env("DOCKER_CONFIG", docker);
    convert.args(["block", "convert", "--fs", kind, &image]);
    let dir = match kind {
        "erofs" => "converted",
        _ => "converted-ext4",
    };
    let convert = convert.arg(lab.path(dir));
    ok(convert.args(["--name", "small", "--push", &to]));
}

/// Returns a login as `docker login` writes it.
pub(crate) fn auth(name: &str, password: &str) -> String {
    let script = r#"printf %s "$1:$2" | base64 -w0"#;
    ok(Command::new("sh").args(["-c", script, "sh", name, password]))
}

/// Returns what a container says that reads the image.
pub(crate) fn expected(lab: &Lab) -> String {
    let file = lab.path("noise");
    fs::write(&file, noise(7, NOISE)).unwrap();
    let sum = ok(Command::new("md5sum").stdin(fs::File::open(&file).unwrap()));
    format!("hello\n{sum}")
}

pub(crate) fn pull(node: &Node<'_>, image: &str) {
    node.ctr(&[
        "images",
        "pull",
        "--plain-http",
        "--snapshotter",
        "yolofs",
        image,
    ]);
}

/// A container that runs, and its files as it sees them.
pub(crate) struct Running<'a> {
    node: &'a Node<'a>,
    id: &'static str,
    pub(crate) root: PathBuf,
}

impl<'a> Running<'a> {
    /// Starts one with these labels of its snapshot.
    pub(crate) fn start(
        node: &'a Node<'_>,
        image: &str,
        id: &'static str,
        labels: &[(&str, &str)],
    ) -> Self {
        let labels = labels
            .iter()
            .map(|(label, value)| format!("{label}={value}"));
        let labels: Vec<_> = labels.collect();
        let labels = labels
            .iter()
            .flat_map(|label| ["--snapshotter-label", label]);
        let run = ["run", "-d"].into_iter().chain(labels);
        let run: Vec<_> = run.chain([image, id, "/bin/sleep", "1000000"]).collect();
        node.ctr(&run);
        Self::of(node, id)
    }

    /// Returns one that runs already.
    pub(crate) fn of(node: &'a Node<'_>, id: &'static str) -> Self {
        Self {
            root: PathBuf::from(format!("/proc/{}/root", pid(node, id))),
            node,
            id,
        }
    }

    /// Returns the type of its root, and the device that has it.
    pub(crate) fn mounted(&self) -> (String, String) {
        let pid = pid(self.node, self.id);
        let table = fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
        let root: Vec<_> = table.lines().next().unwrap().split(' ').collect();
        assert_eq!(root[1], "/", "{table}");
        // Programs with set-user-id bits are what they are in any container.
        assert!(!root[3].contains("nosuid"), "{table}");
        (root[2].to_owned(), root[0].to_owned())
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.root.join(name), content).unwrap();
    }

    /// Makes durable what was written.
    pub(crate) fn sync(&self) {
        let root = fs::File::open(&self.root).unwrap();
        nix::unistd::syncfs(&root).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.root.join(name)).unwrap()
    }

    /// Runs a shell in it.
    pub(crate) fn sh(&self, script: &str) -> String {
        let exec = ["tasks", "exec", "--exec-id", "sh", self.id];
        self.node
            .ctr(&[&exec[..], &["/bin/sh", "-c", script]].concat())
    }

    pub(crate) fn end(&self) {
        self.node.ctr(&["tasks", "rm", "-f", self.id]);
    }
}

fn pid(node: &Node<'_>, id: &str) -> String {
    let tasks = node.ctr(&["tasks", "ls"]);
    let line = tasks.lines().find(|line| line.starts_with(id)).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// Mounts a snapshot as containerd would.
pub(crate) fn mounted(lab: &Lab, node: &Node<'_>, key: &str) -> PathBuf {
    let at = lab.make_dir(&format!("mounted-{key}"));
    let mount = node.ctr(&["snapshots", "mounts", at.to_str().unwrap(), key]);
    ok(Command::new("sh").args(["-ec", &mount]));
    at
}

/// Runs a shell in a container of an image, and returns what it said.
pub(crate) fn run(lab: &Lab, node: &Node<'_>, image: &str, id: &str, script: &str) -> String {
    let out = lab.path(&format!("{id}.said"));
    let uri = format!("file://{}", out.display());
    let run = ["run", "--rm", "--log-uri", &uri, image, id];
    node.ctr(&[&run[..], &["/bin/sh", "-c", script]].concat());
    fs::read_to_string(&out).unwrap()
}

/// Returns the files that layers were unpacked to.
pub(crate) fn unpacked(node: &Node<'_>) -> Vec<PathBuf> {
    let dirs = fs::read_dir(node.root().join("snapshots")).unwrap();
    let roots = dirs.map(|dir| dir.unwrap().path().join("fs"));
    let files = roots.flat_map(|root| fs::read_dir(root).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

pub(crate) fn devices(lab: &Lab) -> Vec<Value> {
    // It fails while a device that is about to go is served by nobody.
    let status = lab.yolofs().args(["block", "status", "--json"]).output();
    serde_json::from_slice(&status.unwrap().stdout).unwrap()
}

pub(crate) fn is_removed(lab: &Lab, node: &Node<'_>, image: &str) {
    node.ctr(&["images", "rm", "--sync", image]);
    until("all snapshots to go", || node.directories() == 0);
    until("the device to go", || devices(lab).is_empty());
    let at = node.root().join("devices");
    until("its directory to go", || {
        fs::read_dir(&at).unwrap().count() == 0
    });
}
