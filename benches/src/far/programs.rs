//! What is started from far away: four programs of a Debian root, one after the other.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::mount::MsFlags;

use crate::boots::milliseconds;
use crate::container::Container;
use crate::namespace::Mounted;
use crate::process::run_ok;

/// The programs, each with what it is called.
pub const PROGRAMS: [(&str, &[&str]); 4] = [
    ("sh", &["/bin/sh", "-c", "ls -l /etc | sort | wc -l"]),
    (
        "python3",
        &[
            "/usr/bin/python3",
            "-c",
            "import json, ssl, asyncio, sqlite3, http.client",
        ],
    ),
    (
        "node",
        &["/usr/bin/node", "-e", "require('http'); require('crypto')"],
    ),
    ("nginx", &["/usr/sbin/nginx", "-t"]),
];

/// On a line of 25 Mbit/s and 80 ms, without any plan, by the block service of 2026-11-20: a minute.
const DEADLINE: Duration = Duration::from_secs(300);

/// How long the programs took.
#[derive(Clone, Debug)]
pub struct Times {
    /// From the start of the first to the end of the last.
    pub all: Duration,
    /// Milliseconds of each.
    pub each_ms: Vec<f64>,
    /// When the last one had ended.
    pub ended: Instant,
}

/// Runs the programs in a container on the root `lower`, whose writes go to memory.
///
/// # Errors
/// If one fails.
pub fn run_all(lower: &Path, scratch: &Path) -> anyhow::Result<Times> {
    let container = Container::prepare(lower, scratch)?;
    let dev = container.root().join("dev");
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    let _devices = Mounted::new("/dev", &dev, "none", bind, "")?;
    let began = Instant::now();
    let mut each_ms = Vec::with_capacity(PROGRAMS.len());
    for (name, words) in PROGRAMS {
        let mut command = Command::new("chroot");
        command.arg(container.root()).args(words).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let done = run_ok(command, DEADLINE).with_context(|| format!("running {name}"))?;
        each_ms.push(milliseconds(done.elapsed));
    }
    let ended = Instant::now();
    Ok(Times {
        all: ended - began,
        each_ms,
        ended,
    })
}
