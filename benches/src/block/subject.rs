//! A container image that was converted and pushed, and the program in it that is started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use blocks::Digest;
use nix::mount::MsFlags;
use oci::{Descriptor, Index, Manifest};

use crate::container::Container;
use crate::lab_args::Places;
use crate::namespace::Mounted;
use crate::nic::registry::Registry;
use crate::process::run_ok;
use crate::programs::Programs;

/// What is started: the imports of a web application behind gunicorn.
const PROGRAM: [&str; 3] = [
    "/usr/bin/python3",
    "-c",
    "import sys; sys.path.insert(0, '/app'); import app, gunicorn.app.wsgiapp, ssl, asyncio, sqlite3",
];
/// On a line of 25 Mbit/s, all of the image is there after 20 s.
const DEADLINE: Duration = Duration::from_secs(300);

/// The image of scripts/images/set.sh that is started.
pub const TAG: &str = "python";

/// The repository that has a boot image beside it.
pub const BOOTED: &str = "python-booted";

/// Everything that is made once.
#[derive(Debug)]
pub struct Subject {
    /// The programs.
    pub programs: Programs,
    /// A registry that has the block image.
    pub registry: Registry,
    /// The converted image.
    pub image: PathBuf,
    /// The layers of the container image, each unpacked, the lowest first.
    pub unpacked: Vec<PathBuf>,
    /// Of all that.
    pub home: tempfile::TempDir,
}

impl Subject {
    /// Converts the image, pushes it, and unpacks its layers.
    ///
    /// # Errors
    /// If the image or a program is missing, or something fails.
    pub fn new(places: &Places) -> anyhow::Result<Self> {
        let home = tempfile::tempdir_in(places.images.parent().unwrap_or(&places.images))
            .context("making a directory beside the images")?;
        let programs = Programs::new(&places.bin, home.path())?;
        let registry = Registry::start_anywhere(&home.path().join("registry"))?;
        let images = home.path().join("images");
        for repository in [TAG, BOOTED] {
            let mut convert = programs.yolofs();
            convert
                .args(["block", "convert", &source(places)])
                .arg(&images);
            convert.args(["--name", TAG, "--push"]);
            convert.arg(format!("{}/{repository}:block", registry.address()));
            let converted = run_ok(convert, DEADLINE);
            converted.context("run scripts/images/set.sh if the image is missing")?;
        }
        let mut unpacked = Vec::new();
        for (number, layer) in layers(places)?.iter().enumerate() {
            let dir = home.path().join("unpacked").join(number.to_string());
            fs::create_dir_all(&dir).context("making a directory")?;
            run_ok(untar(layer, &dir), DEADLINE)?;
            unpacked.push(dir);
        }
        Ok(Self {
            programs,
            registry,
            image: images.join(TAG),
            unpacked,
            home,
        })
    }

    /// Starts the program on the root `lower`: `overlay` says how it is written in the options of overlayfs.
    ///
    /// # Errors
    /// If it fails.
    pub fn start(&self, lower: &Path) -> anyhow::Result<Duration> {
        let scratch = self.home.path().join("scratch");
        fs::create_dir_all(&scratch).context("making a directory")?;
        let container = Container::prepare(lower, &scratch)?;
        let dev = container.root().join("dev");
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        let _devices = Mounted::new("/dev", &dev, "none", bind, "")?;
        let mut command = Command::new("chroot");
        command.arg(container.root()).args(PROGRAM).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let began = Instant::now();
        run_ok(command, DEADLINE).context("running the program")?;
        Ok(began.elapsed())
    }
}

/// Returns what programs call the image.
#[must_use]
pub fn source(places: &Places) -> String {
    format!("oci:{}:{TAG}", places.images.join("oci").display())
}

/// Returns the blobs of its layers, the lowest first.
///
/// # Errors
/// If the image is missing.
pub fn layers(places: &Places) -> anyhow::Result<Vec<PathBuf>> {
    let layout = places.images.join("oci");
    let read = |path: PathBuf| {
        fs::read(&path)
            .with_context(|| format!("reading {}: run scripts/images/set.sh", path.display()))
    };
    let blob = |digest: &Digest| layout.join("blobs/sha256").join(digest.hex());
    let index = Index::decode(&read(layout.join("index.json"))?)?;
    let named = |entry: &&Descriptor| {
        let name = entry.annotations.get("org.opencontainers.image.ref.name");
        name.is_some_and(|name| name == TAG)
    };
    let found = index.manifests.iter().find(named);
    let found = found.context("the image is missing: run scripts/images/set.sh")?;
    let manifest = Manifest::decode(&read(blob(&found.digest))?)?;
    Ok(manifest
        .layers
        .iter()
        .map(|layer| blob(&layer.digest))
        .collect())
}

/// Returns the command that unpacks a layer.
#[must_use]
pub fn untar(layer: &Path, dir: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpzf"]);
    tar.arg(layer).arg("-C").arg(dir);
    tar
}

/// Returns how overlayfs is told of directories, given from the bottom.
///
/// # Errors
/// If there is none, or a path is not text.
pub fn lowers(dirs: &[PathBuf]) -> anyhow::Result<PathBuf> {
    ensure!(!dirs.is_empty(), "an image without layers");
    let texts = dirs.iter().rev().map(|dir| dir.to_str());
    let texts = texts.collect::<Option<Vec<_>>>();
    Ok(texts.context("a path that is not text")?.join(":").into())
}
