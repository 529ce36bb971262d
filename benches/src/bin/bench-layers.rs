//! Times `yolofs docker attach --all` of many layers, and weighs the process that serves them.
//!
//! Docker's directory is made up: images and layers in the layout that Docker writes, each layer
//! with files and a boot image of its own. Docker itself has no part in attaching.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use blocks::{BlockRange, Digest, Extent, NodeKind, ReplayPlan, Touch};
use bootimg::{
    Image, SourceInfo, Store, StoreConfig, Variant, WriteRequest, layer_name, place_name,
    unwatched, write_image,
};
use clap::Parser;
use localfs::{DirSource, SourceRoot, scan};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// How long attaching, and warming what was attached, may take.
const DEADLINE: Duration = Duration::from_secs(300);

/// Time the attaching of many layers, and weigh what serves them.
#[derive(Debug, Parser)]
struct Args {
    /// Directory of the program `yolofs`
    #[arg(long, default_value = "target/release")]
    bin: PathBuf,
    /// Layers in all
    #[arg(long, default_value_t = 300)]
    layers: u32,
    /// Images that stack them, the same number each
    #[arg(long, default_value_t = 100)]
    images: u32,
    /// Files in each layer, of 4 to 16 KiB
    #[arg(long, default_value_t = 100)]
    files: u32,
    /// How often to attach and detach
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Have a node service serve the layers; its processes are weighed, too
    #[arg(long)]
    node: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(
        args.images > 0 && args.layers >= args.images,
        "an image needs a layer"
    );
    let home = tempfile::tempdir().context("making a directory")?;
    let rig = Rig {
        yolofs: args
            .bin
            .join("yolofs")
            .canonicalize()
            .context("finding yolofs")?,
        home: home.path().canonicalize()?,
    };
    rig.make(&args).context("making images and layers")?;
    let _node = args.node.then(|| rig.start_node()).transpose()?;
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        let sample = rig
            .sample(&args)
            .with_context(|| format!("round {round}"))?;
        eprintln!("{sample}");
        samples.push(sample);
    }
    let median = |field: &str| {
        let mut all: Vec<u64> = samples.iter().filter_map(|s| s[field].as_u64()).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let report = json!({
        "layers": args.layers,
        "images": args.images,
        "files_per_layer": args.files,
        "node": args.node,
        "attach_ms_median": median("attach_ms"),
        "private_kib_median": median("private_kib"),
        "samples": samples,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// Where everything is.
struct Rig {
    yolofs: PathBuf,
    home: PathBuf,
}

impl Rig {
    fn data_root(&self) -> PathBuf {
        self.home.join("docker")
    }

    fn store(&self) -> PathBuf {
        self.home.join("store")
    }

    fn make(&self, args: &Args) -> anyhow::Result<()> {
        let root = self.data_root();
        fs::create_dir_all(&root)?;
        // As Docker does where mounts are private: yolofs attaches nothing before.
        let none = None::<&str>;
        mount(Some(&root), &root, none, MsFlags::MS_BIND, none)
            .context("mounting Docker's directory over itself (which needs root)")?;
        let store = Store::open(self.store(), StoreConfig::default())?;
        let per_image = args.layers / args.images;
        for image in 0..args.images {
            let mut chain: Option<Digest> = None;
            let mut diff_ids = Vec::new();
            for number in 0..per_image {
                let layer = image * per_image + number;
                let diff_id = digest(layer, 1);
                let dir = self.layer(layer, args.files)?;
                keep(&store, &dir, &diff_id, &self.home.join("image"))?;
                let top = chain.map_or(diff_id, |below| {
                    oci::digest_of(format!("{below} {diff_id}").as_bytes())
                });
                let chain_dir = format!("image/overlay2/layerdb/sha256/{}", top.hex());
                self.write(&format!("{chain_dir}/cache-id"), &name_of(layer))?;
                diff_ids.push(diff_id);
                chain = Some(top);
            }
            let config = json!({"rootfs": {"type": "layers", "diff_ids": diff_ids}});
            let id = digest(image, 2).hex();
            let path = format!("image/overlay2/imagedb/content/sha256/{id}");
            self.write(&path, &config.to_string())?;
        }
        Ok(())
    }

    fn write(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let path = self.data_root().join(path);
        let parent = path.parent().context("a file has a directory")?;
        fs::create_dir_all(parent)?;
        Ok(fs::write(path, text)?)
    }

    /// Makes the directory of a layer.
    fn layer(&self, layer: u32, files: u32) -> anyhow::Result<PathBuf> {
        let dir = self
            .data_root()
            .join("overlay2")
            .join(name_of(layer))
            .join("diff");
        for file in 0..files {
            let place = dir.join(format!("usr/lib/part{}", file % 10));
            fs::create_dir_all(&place)?;
            let len = 4096 * (1 + usize::try_from(file % 4)?);
            let seed = u64::from(layer) << 32 | u64::from(file);
            let words =
                (0..len / 8).map(|word| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ word as u64);
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            fs::write(place.join(format!("file{file}")), bytes)?;
        }
        Ok(dir)
    }

    fn yolofs(&self) -> Command {
        let mut command = Command::new(&self.yolofs);
        command
            .env("YOLOFS_STORE", self.store())
            .env("YOLOFS_RUN_DIR", self.home.join("run"));
        command
    }

    fn docker(&self, args: &[&str]) -> Command {
        let mut command = self.yolofs();
        command
            .arg("docker")
            .args(args)
            .arg("--data-root")
            .arg(self.data_root());
        command
    }

    fn ask(&self, args: &[&str]) -> anyhow::Result<Value> {
        answer(self.docker(args).arg("--json"))
    }

    /// Starts a node service, and waits until it answers.
    fn start_node(&self) -> anyhow::Result<Node<'_>> {
        let mut command = self.yolofs();
        let state = self.home.join("state");
        command.arg("node").arg("--state-dir").arg(state);
        let keeper = command
            .env_remove("NOTIFY_SOCKET")
            .spawn()
            .context("starting the node")?;
        let node = Node { rig: self, keeper };
        let start = Instant::now();
        while self.node_status().is_err() {
            ensure!(start.elapsed() < DEADLINE, "the node does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(node)
    }

    fn node_status(&self) -> anyhow::Result<Value> {
        answer(self.yolofs().args(["node", "status", "--json"]))
    }

    /// The processes that take part: the daemon for Docker, and those of the node.
    fn processes(&self, daemon: u64, args: &Args) -> anyhow::Result<Vec<u64>> {
        let mut processes = vec![daemon];
        if args.node {
            let node = self.node_status()?;
            let workers = node["workers"].as_array().into_iter().flatten();
            processes.extend(workers.filter_map(|worker| worker["pid"].as_u64()));
            processes.extend(node["pid"].as_u64());
        }
        Ok(processes)
    }

    /// Attaches everything, waits until it is warm, weighs the process, and detaches.
    fn sample(&self, args: &Args) -> anyhow::Result<Value> {
        let start = Instant::now();
        let status = self.ask(&["attach", "--all"])?;
        let attach_ms = start.elapsed().as_millis();
        let served = |status: &Value| status["layers"].as_array().map_or(0, Vec::len);
        let wanted = usize::try_from(args.layers / args.images * args.images)?;
        ensure!(
            served(&status) == wanted,
            "{} layers are served",
            served(&status)
        );
        let pid = status["pid"].as_u64().context("the daemon has a pid")?;
        let weigh = || -> anyhow::Result<u64> {
            let processes = self.processes(pid, args)?;
            processes.into_iter().map(private_kib).sum()
        };
        let first_kib = weigh()?;
        let warm = |status: &Value| {
            let layers = status["layers"].as_array().into_iter().flatten();
            layers
                .filter(|layer| layer["boot"]["prewarm"] != "done")
                .count()
                == 0
        };
        while !warm(&self.ask(&["status"])?) {
            ensure!(start.elapsed() < DEADLINE, "warming takes too long");
            std::thread::sleep(Duration::from_millis(50));
        }
        let sample = json!({
            "attach_ms": attach_ms,
            "warm_ms": start.elapsed().as_millis(),
            "private_kib_when_attached": first_kib,
            "private_kib": weigh()?,
        });
        self.ask(&["detach", "--all"])?;
        let process = PathBuf::from(format!("/proc/{pid}"));
        while process.exists() {
            ensure!(start.elapsed() < DEADLINE, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(sample)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // After a failure; otherwise nothing is attached.
        let _detached = self.docker(&["detach", "--all"]).output();
        let _unmounted = umount2(&self.data_root(), MntFlags::MNT_DETACH);
    }
}

/// A running node service; ended with its workers when it is dropped.
struct Node<'a> {
    rig: &'a Rig,
    keeper: Child,
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        let _drained = self.rig.yolofs().args(["node", "drain"]).output();
        let workers = self.rig.node_status().unwrap_or_default();
        // Its workers would end by themselves some time later.
        let workers = workers["workers"].as_array().into_iter().flatten();
        let pids = workers.filter_map(|worker| i32::try_from(worker["pid"].as_u64()?).ok());
        if let Ok(keeper) = i32::try_from(self.keeper.id()) {
            let _asked = kill(Pid::from_raw(keeper), Signal::SIGTERM);
            let _ended = self.keeper.wait();
        }
        for pid in pids {
            let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Runs a command of yolofs, and returns what it printed.
fn answer(command: &mut Command) -> anyhow::Result<Value> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Gives a layer a boot image with all that is in it, at its place.
fn keep(store: &Store, dir: &Path, diff_id: &Digest, aside: &Path) -> anyhow::Result<()> {
    let root = Arc::new(SourceRoot::open(dir)?);
    let tree = Arc::new(scan(&root, |_| {})?.tree);
    let mut plan = ReplayPlan {
        runs: 1,
        bin_ms: 100,
        ..ReplayPlan::default()
    };
    for (file, inode) in tree.files() {
        match inode.attr.kind {
            NodeKind::Dir => plan.touches.push(Touch::List { dir: file }),
            NodeKind::File => plan.extents.push(Extent {
                file,
                range: BlockRange::covering(0, inode.attr.size),
                bin: 0,
                seen: 1,
            }),
            _ => {}
        }
    }
    let info = SourceInfo {
        label: root.label().to_string_lossy().into_owned(),
        id: root.id(),
        recorded_at: 1_700_000_000,
        command: Vec::new(),
        tool: "bench-layers".to_owned(),
        ready_ms: vec![1000],
        similarity_ppm: None,
        source_bytes: plan.block_count() * 4096,
    };
    let reader = DirSource::new(Arc::clone(&root), Arc::clone(&tree) as _);
    let request = WriteRequest {
        tree: &tree,
        info: &info,
        plan: &plan,
        blocks: &reader,
        variant: Variant::Mapped,
    };
    write_image(aside, &request, &mut unwatched)?;
    let image = Image::open(aside)?;
    let name = place_name(diff_id, root.id());
    let added = store.add(&image, Some(&name), &mut unwatched)?;
    store.name(&added.id, &layer_name(diff_id))?;
    Ok(fs::remove_file(aside)?)
}

fn digest(number: u32, kind: u8) -> Digest {
    let mut bytes = [kind; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    Digest(bytes)
}

/// The name of a layer's directory, as long as Docker's.
fn name_of(layer: u32) -> String {
    format!("{layer:064x}")
}

/// Memory of a process that nobody shares with it (proc_pid_smaps_rollup(5)).
fn private_kib(pid: u64) -> anyhow::Result<u64> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = smaps
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.context("reading smaps_rollup")?
        .parse()
        .context("reading smaps_rollup")
}
