//! A lab with tiers: a directory for each, and the file that names them.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::{Lab, json, ok};

/// The lab, with its tiers.
#[derive(Debug)]
pub struct TierLab {
    lab: Lab,
    file: String,
}

impl TierLab {
    /// Makes one with tiers of these names and sizes, the fastest first.
    pub fn new(tiers: &[(&str, &str)]) -> Self {
        let lab = Lab::new();
        let named = tiers.iter().map(|(name, size)| {
            let dir = lab.make_dir(name);
            format!("[[tier]]\nname = \"{name}\"\ndir = {dir:?}\nsize = \"{size}\"\n")
        });
        let text: String = named.collect();
        let file = lab.path("tiers.toml");
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        Self { lab, file }
    }

    /// Returns the path of the file that names the tiers.
    pub fn tiers(&self) -> &str {
        &self.file
    }

    /// Returns the directory of a tier.
    pub fn tier_dir(&self, name: &str) -> PathBuf {
        self.path(name)
    }

    /// Mounts memory of so many MiB on the directory of a tier.
    pub fn mount_memory(&self, name: &str, mib: u32) {
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        ok(mount
            .args(["-t", "tmpfs", "-o", &size, "yolofs-test"])
            .arg(self.tier_dir(name)));
    }

    /// Returns `yolofs tier`, of these tiers.
    pub fn tier(&self, args: &[&str]) -> Command {
        let mut command = self.yolofs();
        command.arg("tier").args(args).args(["--tiers", &self.file]);
        command
    }

    /// Returns what `tier status` says of a tier, the fastest being 0.
    pub fn tier_status(&self, place: usize) -> Value {
        json(&mut self.tier(&["status", "--json"]))["tiers"][place].clone()
    }

    /// Returns the objects on a tier, by `tier status`.
    pub fn objects(&self, place: usize) -> Vec<Value> {
        let status = self.tier_status(place);
        status["objects"].as_array().unwrap().clone()
    }
}

impl Deref for TierLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}
