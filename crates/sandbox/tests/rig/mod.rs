//! What the tests share: sandboxes of their own, over the machine's own programs.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of the rig")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub(crate) mod calls;
pub(crate) mod python;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sandbox::{
    BaseSpec, BridgeConfig, Config, Exit, ExitStatus, Neighbours, Request, Sandbox, Sandboxes,
    Stdio,
};

/// Long enough for the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Sandboxes that end with their test.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: Config,
    open: Option<Sandboxes>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_bridge(None)
    }

    /// With a bridge of its own, which has 29 addresses for sandboxes.
    pub(crate) fn on_bridge(neighbours: Neighbours) -> Self {
        Self::with_bridge(Some(neighbours))
    }

    fn with_bridge(neighbours: Option<Neighbours>) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let mut config = Config::new(
            dir.path().join("run"),
            &format!("sandbox-test/{pid}-{number}"),
        );
        // Not those of another test's sandboxes.
        config.first_uid += (pid % 30_000) * 0x4000 + number * 0x200;
        config.sandboxes_max = 0x200;
        config.bridge = neighbours.map(|neighbours| {
            let (block, rest) = (pid >> 8 & 127, pid & 255);
            let subnet = format!("10.{}.{rest}.{}/27", 64 + block, number % 8 * 32);
            BridgeConfig {
                name: format!("t{:x}x{number}", pid & 0x7fff),
                subnet: subnet.parse().unwrap(),
                neighbours,
            }
        });
        let mut rig = Self {
            dir,
            config,
            open: None,
        };
        rig.reopen();
        rig
    }

    /// Has nobody own the sandboxes for a moment, as when a program ends.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    pub(crate) fn reopen(&mut self) {
        let sandboxes = Sandboxes::open(self.config.clone()).unwrap();
        sandboxes.add_base(&host_base()).unwrap();
        self.open = Some(sandboxes);
    }

    pub(crate) fn sandboxes(&self) -> &Sandboxes {
        self.open.as_ref().unwrap()
    }

    pub(crate) fn start(&self, request: Request) -> Arc<Sandbox> {
        self.sandboxes().create(request, Stdio::Captured).unwrap()
    }

    /// Runs a program to its end, and returns how it ended and what it said.
    pub(crate) fn run(&self, request: Request) -> (Exit, String) {
        let sandbox = self.start(request);
        let exit = sandbox.wait(PATIENCE).expect("it ends");
        let [out, err] = sandbox.written().unwrap();
        let said = [out.bytes, err.bytes].concat();
        (exit, String::from_utf8_lossy(&said).into_owned())
    }

    /// Runs a script of Python, which must end well, and returns what it said.
    pub(crate) fn python(&self, script: &str) -> String {
        let (exit, said) = self.run(python(script));
        assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
        said
    }

    /// Waits until something holds.
    pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !holds() {
            assert!(std::time::Instant::now() < deadline, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the network devices of the rig that the machine has: the bridge and its ports.
    pub(crate) fn devices(&self) -> Vec<String> {
        let Some(bridge) = &self.config.bridge else {
            return Vec::new();
        };
        let all = std::fs::read_dir("/sys/class/net").unwrap();
        let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let is_its = |name: &String| {
            let rest = name.strip_prefix(&bridge.name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        names.filter(is_its).collect()
    }

    /// Returns the control groups of the rig that are there.
    pub(crate) fn groups(&self) -> Vec<std::path::PathBuf> {
        let hierarchies = ["unified", "memory", "cpu", ""];
        let mut found = Vec::new();
        for hierarchy in hierarchies {
            let dir = Path::new("/sys/fs/cgroup")
                .join(hierarchy)
                .join(&self.config.cgroup);
            let Ok(entries) = std::fs::read_dir(dir) else {
                continue;
            };
            let paths = entries.map(|entry| entry.unwrap().path());
            found.extend(paths.filter(|path| path.is_dir()));
        }
        found
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(sandboxes) = &self.open {
            sandboxes.end_all(PATIENCE).unwrap();
        }
        self.open = None;
        for hierarchy in ["unified", "memory", "cpu", ""] {
            let dir = Path::new("/sys/fs/cgroup")
                .join(hierarchy)
                .join(&self.config.cgroup);
            let _others = std::fs::remove_dir(dir);
        }
    }
}

/// The machine's own programs as a base. The directory of the project is none of its business.
pub(crate) fn host_base() -> BaseSpec {
    BaseSpec {
        name: "host".to_owned(),
        root: "/".into(),
        hide: vec!["work".to_owned()],
    }
}

pub(crate) fn shell(script: &str) -> Request {
    Request::new("host", &["/bin/sh", "-c", script])
}

pub(crate) fn python(script: &str) -> Request {
    Request::new("host", &["/usr/bin/python3", "-I", "-c", script])
}
