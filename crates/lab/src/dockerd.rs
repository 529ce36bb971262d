//! A Docker daemon of its own for a test, with the storage driver overlay2, and images to run on it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::docker_process::DockerProcess;
use super::engines::Engines;
use super::{Lab, ok};

/// A running dockerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub struct Dockerd(DockerProcess);

impl Dockerd {
    /// Starts one with its directories in the lab, and waits until it answers.
    pub fn start(lab: &Lab, flags: &[&str]) -> Self {
        Self::start_engines(lab, Engines::Debian, flags)
    }

    /// Starts a Docker 29 with the storage driver overlay2, as one that was updated has it.
    pub fn start_today(lab: &Lab) -> Self {
        let flags = ["--feature", "containerd-snapshotter=false"];
        Self::start_engines(lab, Engines::Today, &flags)
    }

    fn start_engines(lab: &Lab, engines: Engines, flags: &[&str]) -> Self {
        let storage = ["--storage-driver=overlay2"];
        let dir = lab.make_dir("docker");
        Self(DockerProcess::start(dir, engines, &storage, flags))
    }

    /// Returns whether all layers that are served are in the page cache.
    pub fn is_warm(&self, lab: &Lab) -> bool {
        let status = self.status(lab);
        let mut layers = status["layers"].as_array().unwrap().iter();
        layers.all(|layer| layer["boot"]["prewarm"] == "done")
    }

    /// Builds an image with one layer more than `from`: files of `/data`, different for each name.
    pub fn build(&self, lab: &Lab, name: &str, from: &str) {
        let lines = format!("FROM {from}\nCOPY data /data\n");
        self.build_in(&DockerProcess::context(lab, name, &lines), name);
    }

    /// Builds what a directory's Dockerfile says.
    pub fn build_in(&self, context: &Path, name: &str) {
        let mut build = self.docker();
        // There is no plug-in for BuildKit here, and no network for its images.
        build.env("DOCKER_BUILDKIT", "0");
        ok(build
            .args(["build", "--network=none", "-q", "-t", name])
            .arg(context));
    }

    /// Returns the diff IDs of an image's layers with their directories, the lowest first.
    pub fn layers(&self, image: &str) -> Vec<(String, PathBuf)> {
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
    pub fn record(&self, lab: &Lab, image: &str) {
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
    pub fn mounts(&self) -> Vec<String> {
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

impl Deref for Dockerd {
    type Target = DockerProcess;

    fn deref(&self) -> &DockerProcess {
        &self.0
    }
}

impl DerefMut for Dockerd {
    fn deref_mut(&mut self) -> &mut DockerProcess {
        &mut self.0
    }
}
