//! Packages from wheels that the tests make: good ones, and such that try to get out.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use sandbox::{
    BaseSpec, Config, ExitStatus, Packages, Python, Request, Sandboxes, Stdio, ZygoteSpec,
};
use sandbox_packages::{Installer, PackageError, Source, Store};

const PYTHON: &str = "/usr/bin/python3";
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a wheel: `wheel.py DIR NAME VERSION REQUIRES FILE=TEXT...`. A file may be called anything.
const WHEEL: &str = r#"
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

struct Rig {
    dir: tempfile::TempDir,
    sandboxes: Sandboxes,
    store: Store,
    installer: Installer,
}

impl Rig {
    fn new() -> Self {
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

    fn links(&self) -> PathBuf {
        self.dir.path().join("links")
    }

    fn wheel(&self, name: &str, version: &str, requires: &str, files: &[&str]) {
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

    fn add(&self, requirements: &[&str]) -> Result<Packages, PackageError> {
        let requirements: Vec<_> = requirements.iter().map(|&one| one.to_owned()).collect();
        let source = Source::Directory(self.links());
        self.store
            .add(&self.sandboxes, &self.installer, &requirements, &source)
    }

    fn python(&self, packages: &Packages, text: &str) -> String {
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
    fn has_only(&self, packages: &[&str]) {
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

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn requirements_become_packages_that_python_imports() {
    let rig = Rig::new();
    rig.wheel(
        "Top_Level",
        "1.0",
        "under>=1",
        &["top_level/__init__.py=import under; V = under.V"],
    );
    rig.wheel("under", "1.5", "", &["under.py=V = 15"]);
    rig.wheel("under", "0.9", "", &["under.py=V = 9"]);
    let packages = rig.add(&["top-level"]).unwrap();
    assert_eq!(
        packages,
        Packages::from(["top-level==1.0".into(), "under==1.5".into()])
    );
    assert_eq!(
        rig.python(&packages, "import top_level; print(top_level.V)"),
        "15\n"
    );
    // Two versions side by side, and what is there is not installed again.
    let before = rig.sandboxes.counts().started;
    let old = rig.add(&["under<1"]).unwrap();
    assert_eq!(rig.python(&old, "import under; print(under.V)"), "9\n");
    assert_eq!(rig.sandboxes.counts().started, before + 3);
    rig.has_only(&["top-level==1.0", "under==0.9", "under==1.5"]);
    // Resolved once: with nothing to take it from, and without a sandbox.
    fs::remove_dir_all(rig.links()).unwrap();
    assert_eq!(rig.add(&["top-level"]).unwrap(), packages);
    assert_eq!(
        rig.store
            .packages_of("host", &["top-level".into()])
            .unwrap(),
        packages
    );
    assert_eq!(rig.sandboxes.counts().started, before + 3);
    let unknown = rig
        .store
        .packages_of("host", &["other".into()])
        .unwrap_err()
        .to_string();
    assert!(
        unknown.contains("sandbox package add --base host other"),
        "{unknown}"
    );

    // A Zygote has it, and goes with it. What a sandbox has stays.
    let mut spec = ZygoteSpec::new("host", PYTHON, &[]);
    spec.packages = packages.clone();
    spec.store = Some(rig.store.dir_of("host"));
    rig.sandboxes.add_zygote(spec).unwrap();
    assert_eq!(
        rig.python(&packages, "import sys; print('under' in sys.modules)"),
        "True\n"
    );
    let mut request = Request::new("host", &["-c", "import time; time.sleep(1000)"]);
    request.python = Some(Python {
        interpreter: PYTHON.to_owned(),
        packages,
    });
    request.packages = Some(rig.store.dir_of("host"));
    let user = rig.sandboxes.create(request, Stdio::Null).unwrap();
    let remove = || rig.store.remove(&rig.sandboxes, "host", "under==1.5");
    assert!(matches!(remove(), Err(PackageError::InUse { .. })));
    user.kill().unwrap();
    user.wait(PATIENCE).unwrap();
    remove().unwrap();
    assert!(matches!(remove(), Err(PackageError::Unknown(_))));
    assert_eq!(rig.sandboxes.zygotes().len(), 0);
    rig.has_only(&["top-level==1.0", "under==0.9"]);
    assert!(rig.add(&["top-level"]).is_err());
}

/// Names that lead out, modules in the place of others, metadata of another package, more than there is room.
#[test]
fn a_hostile_wheel_spoils_itself_only() {
    let mut rig = Rig::new();
    rig.wheel(
        "good",
        "1",
        "",
        &["good.py=import json; print(json.dumps([1]))"],
    );
    let good = rig.add(&["good"]).unwrap();
    rig.wheel(
        "climber",
        "1",
        "",
        &[
            "../../../../../../../scratch/../etc/climbed=x",
            "../good.py=x",
        ],
    );
    let error = rig.add(&["climber"]).unwrap_err();
    assert!(matches!(error, PackageError::Installer { .. }), "{error}");
    rig.wheel(
        "shadow",
        "1",
        "",
        &[
            "json.py=raise SystemExit(9)",
            "good.py=raise SystemExit(9)",
            "shadow.pth=import os; os._exit(9)",
        ],
    );
    rig.add(&["shadow"]).unwrap();
    rig.wheel(
        "liar",
        "1",
        "",
        &[
            "liar-1.dist-info/METADATA=Name: good\nVersion: 1\n",
            "other-1.dist-info/METADATA=Name: good\nVersion: 1\n",
        ],
    );
    assert!(rig.add(&["liar"]).is_err());
    rig.wheel("bomb", "1", "", &["bomb.bin=zeros:300000000"]);
    rig.installer.bytes_max = 64 << 20;
    let error = rig.add(&["bomb"]).unwrap_err().to_string();
    assert!(error.contains("it has written more than"), "{error}");
    assert_eq!(rig.python(&good, "import good"), "[1]\n");
    rig.has_only(&["good==1", "shadow==1"]);
    assert!(!Path::new("/etc/climbed").exists());
}

/// Makes a source distribution whose build runs a script: `sdist.py DIR NAME VERSION SCRIPT`.
const SDIST: &str = r#"
import io, sys, tarfile
directory, name, version, script = sys.argv[1:]
backend = f'''
import os, zipfile
NAME, VERSION = {name!r}, {version!r}
def build_wheel(directory, config_settings=None, metadata_directory=None):
    made = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    with zipfile.ZipFile(os.path.join(directory, made), "w") as wheel:
        wheel.writestr(f"{{NAME}}.py", "V = 'built'")
        wheel.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n")
        wheel.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{{info}}/RECORD", "")
    return made
'''
files = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": script + "\n" + backend,
    "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
}
with tarfile.open(f"{directory}/{name}-{version}.tar.gz", "w:gz") as made:
    for path, text in files.items():
        entry = tarfile.TarInfo(f"{name}-{version}/{path}")
        entry.size = len(text.encode())
        made.addfile(entry, io.BytesIO(text.encode()))
"#;

#[test]
fn a_source_distribution_is_built_only_if_it_is_named_and_stays_inside() {
    let rig = Rig::new();
    let sdist = |name: &str, script: &str| {
        let links = rig.links();
        let arguments = ["-c", SDIST, links.to_str().unwrap(), name, "1", script];
        assert!(
            Command::new(PYTHON)
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    };
    let source = Source::Directory(rig.links());
    let build = |package: &str| {
        rig.store
            .build(&rig.sandboxes, &rig.installer, package, &source)
    };
    let escape = "
import os, socket
def tries(what):
    try: what()
    except OSError: return
    os._exit(77)
tries(lambda: open('/etc/written-by-a-package', 'w'))
tries(lambda: open('/code/written-by-a-package', 'w'))
tries(lambda: os.kill(1, 0) if os.getpid() != 1 and os.getuid() == 0 else open('/nowhere'))
tries(lambda: socket.create_connection(('127.0.0.1', 22), 1))
tries(lambda: os.listdir('/work/main'))
";
    sdist("plain", escape);
    let error = rig.add(&["plain"]).unwrap_err();
    assert!(
        matches!(
            error,
            PackageError::Installer {
                doing: "resolving",
                ..
            }
        ),
        "{error}"
    );
    build("plain==1").unwrap();
    let packages = rig.add(&["plain"]).unwrap();
    assert_eq!(
        rig.python(&packages, "import plain; print(plain.V)"),
        "built\n"
    );
    sdist("posing", "");
    sdist("endless", "while True: pass");
    let text = fs::read(rig.links().join("posing-1.tar.gz")).unwrap();
    fs::write(rig.links().join("posed-1.tar.gz"), text).unwrap();
    assert!(build("posed==1").is_err());
    let mut installer = rig.installer.clone();
    installer.patience = Duration::from_secs(3);
    let error = rig
        .store
        .build(&rig.sandboxes, &installer, "endless==1", &source)
        .unwrap_err();
    assert!(error.to_string().contains("Timeout"), "{error}");
    // Deeper than any path may be.
    sdist(
        "deep",
        "
import os
os.chdir('/scratch/tmp')
for _ in range(20000):
    os.mkdir('d'); os.chdir('d')
os.chdir('/')
",
    );
    assert!(build("deep==1").is_err());
    rig.has_only(&["plain==1"]);
}

#[test]
fn what_was_under_way_is_gone_after_a_crash() {
    let rig = Rig::new();
    let root = rig.dir.path().join("other");
    fs::create_dir_all(root.join("incoming/3/files/a")).unwrap();
    fs::write(root.join("incoming/3/files/a/b.py"), "").unwrap();
    let store = Store::open(&root).unwrap();
    assert_eq!(names_in(&root.join("incoming")), [""; 0]);
    let second = Store::open(&root).unwrap_err().to_string();
    assert!(
        second.contains("another program has its packages"),
        "{second}"
    );
    drop(store);
    Store::open(&root).unwrap();
}
