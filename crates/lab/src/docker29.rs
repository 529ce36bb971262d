//! A Docker 29 of its own for a test, with its images in a containerd.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use super::docker_process::DockerProcess;
use super::engines::Engines;
use super::{Lab, ok};

/// A running dockerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub struct Docker29(DockerProcess);

impl Docker29 {
    /// Starts one on a containerd that runs, with its images in a snapshotter of that: `overlayfs` is the
    /// default, for which nothing is configured.
    pub fn start(lab: &Lab, containerd: &Path, snapshotter: &str) -> Self {
        let mut storage = vec!["--containerd", containerd.to_str().unwrap()];
        if snapshotter != "overlayfs" {
            storage.extend(["--storage-driver", snapshotter]);
            storage.extend(["--feature", "containerd-snapshotter=true"]);
        }
        let dir = lab.make_dir("docker29");
        Self(DockerProcess::start(dir, Engines::Today, &storage, &[]))
    }

    /// Builds an image with one layer more than `from`: files of `/data`, different for each name.
    pub fn build(&self, lab: &Lab, name: &str, from: &str) {
        let lines = format!("FROM {from}\nCOPY data /data\n");
        self.build_with(lab, name, &lines);
    }

    /// Builds an image by BuildKit from a Dockerfile's lines, with files in `data`.
    pub fn build_with(&self, lab: &Lab, name: &str, dockerfile: &str) {
        let context = DockerProcess::context(lab, name, dockerfile);
        let mut build = self.docker();
        build.env("DOCKER_BUILDKIT", "1");
        ok(build
            .args(["build", "--network=none", "-q", "-t", name])
            .arg(&context));
    }
}

impl Deref for Docker29 {
    type Target = DockerProcess;

    fn deref(&self) -> &DockerProcess {
        &self.0
    }
}

impl DerefMut for Docker29 {
    fn deref_mut(&mut self) -> &mut DockerProcess {
        &mut self.0
    }
}
