//! Packages, Zygotes and programs of Python, for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sandbox::{Packages, Python, Request, ZygoteSpec, ZygoteView};

use super::Rig;

pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// A directory of packages, each with one module.
pub(crate) fn store(packages: &[(&str, &str)]) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (package, text) in packages {
        let name = package.split("==").next().unwrap();
        fs::create_dir(store.path().join(package)).unwrap();
        fs::write(store.path().join(package).join(format!("{name}.py")), text).unwrap();
    }
    store
}

pub(crate) fn set(packages: &[&str]) -> Packages {
    packages.iter().map(|&package| package.to_owned()).collect()
}

pub(crate) fn script(text: &str, packages: &[&str], store: Option<&Path>) -> Request {
    let mut request = Request::new("host", &["-c", text]);
    request.python = Some(Python {
        interpreter: PYTHON.to_owned(),
        packages: set(packages),
    });
    request.packages = store.map(Path::to_owned);
    request
}

pub(crate) fn zygote(rig: &Rig, packages: &[&str], store: &Path) -> ZygoteView {
    let mut spec = ZygoteSpec::new("host", PYTHON, &["json", "random", "logging", "ssl"]);
    spec.packages = set(packages);
    spec.store = Some(store.to_owned());
    rig.sandboxes().add_zygote(spec).unwrap()
}
