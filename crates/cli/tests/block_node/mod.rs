//! A machine that starts block images of a registry.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::block_export::{arg, export_of, succeeds, yolofs};

/// A machine: its directory has its store, its image, and its cache.
pub(crate) struct Node {
    pub(crate) dir: PathBuf,
}

impl Node {
    /// Makes an image of one in a registry.
    pub(crate) fn new(dir: PathBuf, reference: &str) -> Self {
        fs::create_dir_all(dir.join("export")).unwrap();
        fs::create_dir(dir.join("mounted")).unwrap();
        let node = Self { dir };
        let (image, lower) = (node.image(), format!("docker://{reference}"));
        let create = [
            "block", "create", &image, "--lower", &lower, "--kind", "sealed",
        ];
        succeeds(node.yolofs().args(create));
        node
    }

    pub(crate) fn yolofs(&self) -> Command {
        let mut command = yolofs();
        command.env("YOLOFS_STORE", self.dir.join("store"));
        command
    }

    pub(crate) fn image(&self) -> String {
        arg(&self.dir.join("image")).to_owned()
    }

    pub(crate) fn plans(&self) -> serde_json::Value {
        let ls = self
            .yolofs()
            .args(["block", "plan", "ls", "--json"])
            .output();
        serde_json::from_slice(&ls.unwrap().stdout).unwrap()
    }

    /// Mounts the image, and reads some files of it as a start would.
    pub(crate) fn start(&self, flags: &[&str]) {
        let [at, cache, mounted] = ["export", "cache", "mounted"].map(|name| self.dir.join(name));
        let image = self.image();
        let mut args = vec![image.as_str(), "--mount", arg(&at), "--erofs"];
        args.extend([arg(&mounted), "--cache", arg(&cache)]);
        args.extend(flags);
        let mut server = export_of(self.yolofs(), &args);
        // What an image brings is not for the users of this machine.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(arg(&mounted)));
        assert!(line.unwrap().contains(" ro,nosuid,nodev"), "{line:?}");
        for name in [
            "etc/replaced",
            "usr/many/name-that-takes-some-room-77",
            "new/file",
        ] {
            assert!(!fs::read(mounted.join(name)).unwrap().is_empty());
        }
        let pid = nix::unistd::Pid::from_raw(server.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        assert!(server.0.wait().unwrap().code().is_some());
        assert!(!mounted.join("etc").exists(), "it is mounted still");
    }
}
