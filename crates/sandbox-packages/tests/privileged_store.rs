//! Packages from wheels that the tests make: good ones, and such that try to get out.

#![cfg(feature = "privileged")]

mod rig;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rig::{PATIENCE, PYTHON, Rig, names_in};
use sandbox::{Packages, Python, Request, Stdio, ZygoteSpec};
use sandbox_packages::{PackageError, Source, Store};

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
            .unwrap()
            .0,
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
