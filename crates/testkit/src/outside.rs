//! A network of its own with addresses that everybody could have, and names that mean what a test says.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Where a registry of somebody else's is: an address for documents, which nobody has.
pub const REGISTRY: &str = "203.0.113.7";
/// Where its storage is.
pub const STORAGE: &str = "203.0.113.8";
/// A machine of our own network.
pub const PRIVATE: &str = "10.9.8.7";
/// What tells machines about themselves.
pub const METADATA: &str = "169.254.169.254";

/// What names mean there.
#[derive(Debug)]
pub struct Names(PathBuf);

impl Names {
    /// Has names mean other addresses from now on: lines of `/etc/hosts`.
    pub fn mean(&self, lines: &str) {
        fs::write(&self.0, format!("127.0.0.1 localhost\n{lines}\n")).unwrap();
    }
}

/// Does something in such a network: threads and processes that are started by it are in it, too.
pub fn outside(work: impl FnOnce(&Names) + Send) {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
                .expect("this test needs root");
            let (none, all) = (None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
            mount(none, "/", none, all, none).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let names = Names(dir.path().join("hosts"));
            names.mean("");
            mount(Some(&names.0), "/etc/hosts", none, MsFlags::MS_BIND, none).unwrap();
            ip(&["link", "set", "lo", "up"]);
            for address in [REGISTRY, STORAGE, PRIVATE, METADATA] {
                ip(&["address", "add", address, "dev", "lo"]);
            }
            work(&names);
        });
        if let Err(panic) = worker.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status();
    assert!(status.expect("ip is not installed").success(), "{args:?}");
}
