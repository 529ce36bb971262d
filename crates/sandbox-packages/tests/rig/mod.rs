//! What the tests share: a store of their own, and wheels for it.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of the rig")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use sandbox::{BaseSpec, Config, ExitStatus, Packages, Python, Request, Sandboxes, Stdio};
use sandbox_packages::{Installer, PackageError, Source, Store};

pub(crate) const PYTHON: &str = "/usr/bin/python3";
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a wheel: `wheel.py DIR NAME VERSION REQUIRES FILE=TEXT...`. A file may be called anything.
pub(crate) const WHEEL: &str = r#"
import sys, zipfile
directory, name, version, requires, *files = sys.argv[1:]
info = f"{name}-{version}.dist-info"
meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
meta += "".join(f"Requires-Dist: {one}\n" for one in requires.split(",") if one)
with zipfile.ZipFile(f"{directory}/{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    names = []
    def put(name, text):
        wheel.writestr(name, text)
        names.append(name)
    for file in files:
        path, _, text = file.partition("=")
        put(path, b"\0" * int(text[6:]) if text.startswith("zeros:") else text)
    put(f"{info}/METADATA", meta)
    put(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    names.append(f"{info}/RECORD")
    wheel.writestr(f"{info}/RECORD", "".join(f"{one},,\n" for one in names))
"#;

pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) store: Store,
    pub(crate) installer: Installer,
}

impl Rig {
    pub(crate) fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (number, pid) = (NEXT.fetch_add(1, Relaxed), std::process::id());
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(
            dir.path().join("run"),
            &format!("sandbox-packages-test/{pid}-{number}"),
        );
        config.first_uid += 0x400_0000 + (pid % 30_000) * 0x400 + number * 0x40;
        config.sandboxes_max = 0x20;
        let sandboxes = Sandboxes::open(config).unwrap();
        let base = BaseSpec {
            name: "host".to_owned(),
            root: "/".into(),
            hide: vec!["work".to_owned()],
        };
        sandboxes.add_base(&base).unwrap();
        fs::create_dir(dir.path().join("links")).unwrap();
        let store = Store::open(dir.path().join("store")).unwrap();
        Self {
            store,
            sandboxes,
            installer: Installer::new("host", PYTHON),
            dir,
        }
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.dir.path().join("links")
    }

    pub(crate) fn wheel(&self, name: &str, version: &str, requires: &str, files: &[&str]) {
        let links = self.links();
        let arguments = [
            "-c",
            WHEEL,
            links.to_str().unwrap(),
            name,
            version,
            requires,
        ];
        let made = Command::new(PYTHON)
            .args(arguments)
            .args(files)
            .status()
            .unwrap();
        assert!(made.success());
    }

    pub(crate) fn add(&self, requirements: &[&str]) -> Result<Packages, PackageError> {
        let requirements: Vec<_> = requirements.iter().map(|&one| one.to_owned()).collect();
        let source = Source::Directory(self.links());
        self.store
            .add(&self.sandboxes, &self.installer, &requirements, &source)
    }

    pub(crate) fn python(&self, packages: &Packages, text: &str) -> String {
        let mut request = Request::new("host", &["-c", text]);
        request.python = Some(Python {
            interpreter: PYTHON.to_owned(),
            packages: packages.clone(),
        });
        request.packages = Some(self.store.dir_of("host"));
        let sandbox = self.sandboxes.create(request, Stdio::Captured).unwrap();
        let exit = sandbox.wait(PATIENCE).unwrap();
        let [out, err] = sandbox.written().unwrap();
        let said = String::from_utf8_lossy(&[out.bytes, err.bytes].concat()).into_owned();
        assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
        said
    }

    /// Nothing is under way, and nothing but these packages is there.
    pub(crate) fn has_only(&self, packages: &[&str]) {
        let list = self.store.list().unwrap();
        let names: Vec<_> = list.iter().map(|one| one.package.as_str()).collect();
        assert_eq!(names, packages);
        let there: Vec<_> = names_in(&self.store.dir_of("host"));
        assert_eq!(there, packages);
        assert_eq!(names_in(&self.dir.path().join("store/incoming")), [""; 0]);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.sandboxes.end_all(PATIENCE).unwrap();
    }
}

pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
