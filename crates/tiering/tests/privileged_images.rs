//! What a start needs of the images that `scripts/images/set.sh` makes, compared with what their
//! own loaders say. Run with `cargo test -p tiering --features privileged`; without root, or
//! without the images, it fails.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tiering::hif::{Class, HotFile, Layers, MadeLayer, Need, Start, Step, classify, start_files};
use tiering::lass::Placement;

/// An image of the set.
struct Image {
    /// Where its layers are unpacked, the lowest first.
    layers: Vec<PathBuf>,
    command: Vec<String>,
    env: Vec<String>,
    working_dir: String,
    /// Commands, and whether they made a layer.
    history: Vec<(String, bool)>,
}

fn images() -> PathBuf {
    std::env::var_os("YOLOFS_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/images"),
        PathBuf::from,
    )
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

impl Image {
    fn open(name: &str) -> Self {
        let images = images();
        let mut unpacked = HashMap::new();
        for entry in fs::read_dir(images.join("layers")).unwrap() {
            let dir = entry.unwrap().path();
            if let Ok(text) = fs::read(dir.join("layer.json")) {
                let layer: Value = serde_json::from_slice(&text).unwrap();
                unpacked.insert(
                    layer["diff_id"].as_str().unwrap().to_owned(),
                    dir.join("root"),
                );
            }
        }
        let blob = |digest: &Value| {
            let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
            json(&images.join("oci/blobs/sha256").join(hex))
        };
        let index = json(&images.join("oci/index.json"));
        let is_it = |manifest: &&Value| {
            manifest["annotations"]["org.opencontainers.image.ref.name"] == name
        };
        let found = index["manifests"].as_array().unwrap().iter().find(is_it);
        let config = blob(&blob(&found.unwrap()["digest"])["config"]["digest"]);
        let layer = |id: &String| unpacked[id.strip_prefix("sha256:").unwrap()].clone();
        let step = |step: &Value| {
            let by = step["created_by"].as_str().unwrap_or_default().to_owned();
            (by, step["empty_layer"] != true)
        };
        let run = &config["config"];
        Self {
            layers: texts(&config["rootfs"]["diff_ids"])
                .iter()
                .map(layer)
                .collect(),
            command: [texts(&run["Entrypoint"]), texts(&run["Cmd"])].concat(),
            env: texts(&run["Env"]),
            working_dir: run["WorkingDir"].as_str().unwrap_or_default().to_owned(),
            history: config["history"]
                .as_array()
                .unwrap()
                .iter()
                .map(step)
                .collect(),
        }
    }

    fn classes(&self) -> Vec<Class> {
        let steps: Vec<Step> = self
            .history
            .iter()
            .map(|(created_by, made)| Step {
                created_by,
                layer: if *made { MadeLayer::Yes } else { MadeLayer::No },
            })
            .collect();
        classify(&steps, self.layers.len(), &self.command)
    }

    fn hot(&self) -> Vec<HotFile> {
        let start = Start {
            command: &self.command,
            env: &self.env,
            working_dir: &self.working_dir,
        };
        start_files(&Layers::new(&self.layers), &start)
    }

    /// Bytes of all files, those that higher layers hide too.
    fn bytes(&self) -> u64 {
        fn of(dir: &Path) -> u64 {
            let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
            let bytes = entries.map(|entry| {
                let meta = entry.metadata().unwrap();
                if meta.is_dir() {
                    of(&entry.path())
                } else {
                    meta.len()
                }
            });
            bytes.sum()
        }
        self.layers.iter().map(|layer| of(layer)).sum()
    }

    /// What the image's own loader says that it would load for `program`.
    fn listed(&self, program: &str) -> BTreeSet<String> {
        let layers: Vec<&str> = self
            .layers
            .iter()
            .rev()
            .map(|layer| layer.to_str().unwrap())
            .collect();
        let root = tempfile::tempdir().unwrap();
        // In a mount namespace of its own, so that nothing stays mounted.
        let script = "mount -t overlay overlay -o \"lowerdir=$0\" \"$1\" && exec chroot \"$1\" \
                      /lib64/ld-linux-x86-64.so.2 --list \"$2\"";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script, &layers.join(":")])
            .arg(root.path())
            .arg(program)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let path = |line: &str| {
            let place = line.split("=> ").last()?.trim();
            let path = place.split(" (").next()?;
            path.starts_with('/')
                .then(|| path.rsplit('/').next().unwrap().to_owned())
        };
        said.lines().filter_map(path).collect()
    }
}

/// Compares what was found of an image with what its loader says of each program, and returns
/// what part of the image it is.
fn check(name: &str, image: &Image, program: &str) -> f64 {
    let hot = image.hot();
    let found: BTreeSet<&str> = hot.iter().map(|file| file.path.as_str()).collect();
    assert!(found.contains(program), "{name}: {found:?}");
    let listed = image.listed(program);
    assert!(listed.contains("libc.so.6"), "{name}: {listed:?}");
    // By names without versions: the loader names links, and what was found is behind them.
    let libraries = hot
        .iter()
        .filter(|file| matches!(file.need, Need::Library | Need::Interpreter));
    let libraries: BTreeSet<String> = libraries.map(|file| stem(&file.path)).collect();
    let missing: Vec<&String> = listed
        .iter()
        .filter(|library| !libraries.contains(&stem(library)))
        .collect();
    assert!(
        missing.is_empty(),
        "{name}: {missing:?} not in {libraries:?}"
    );
    let bytes: u64 = hot.iter().map(|file| file.len).sum();
    let part = bytes as f64 / image.bytes() as f64;
    println!(
        "{name}: {} files, {bytes} bytes, {:.1} % of the image",
        hot.len(),
        part * 100.0
    );
    part
}

/// `libx` of `/usr/lib/libx.so.1.2` and of `libx.so.1`, the name that the loader is asked for.
fn stem(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap();
    name.split(".so").next().unwrap().to_owned()
}

#[test]
fn privileged_all_that_the_images_own_loaders_load_is_found() {
    for (name, program) in [
        ("nginx", "/usr/sbin/nginx"),
        ("redis", "/usr/bin/redis-check-rdb"),
        ("python", "/usr/bin/python3.11"),
    ] {
        let image = Image::open(name);
        let part = check(name, &image, program);
        assert!(part < 0.25, "{name}: {part}: it is to be the small part");
    }
}

#[test]
fn privileged_the_layers_of_the_images_are_what_was_put_into_them() {
    for name in ["nginx", "redis", "python"] {
        let image = Image::open(name);
        let classes = image.classes();
        println!("{name}: {classes:?}");
        assert_eq!(classes[0], Class::Base, "{name}");
        assert_eq!(classes[0].place(), Placement::Slow);
        assert!(classes.contains(&Class::Application), "{name}: {classes:?}");
        assert!(!classes.contains(&Class::Unknown), "{name}: {classes:?}");
    }
    let python = Image::open("python").classes();
    assert!(python.contains(&Class::Engine) && python.contains(&Class::SystemDependency));
}
