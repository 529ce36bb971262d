//! What engines read before they run anything, by the name of their program or library.

use super::start::{Need, Search};

/// Modules that every Python 3 loads, and those that it loads without `-I -S`.
const PYTHON_MODULES: &[&str] = &[
    "_collections_abc",
    "_sitebuiltins",
    "_weakrefset",
    "abc",
    "codecs",
    "contextlib",
    "genericpath",
    "io",
    "os",
    "posixpath",
    "site",
    "stat",
    "types",
    "warnings",
];
/// Files of a Java virtual machine, below its home.
const JAVA_FILES: &[&str] = &[
    "conf/security/java.security",
    "lib/jvm.cfg",
    "lib/modules",
    "lib/server/classes.jsa",
    "lib/tzdb.dat",
    "release",
];
/// Libraries that a Java virtual machine opens by itself.
const JAVA_LIBRARIES: &[&str] = &["jimage", "java", "jli", "net", "nio", "zip"];

/// Adds what the engine reads that a program or library is; nothing if it is none.
pub(super) fn add(search: &mut Search, path: &str) {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let prefix = directory.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    if let Some(version) = python_version(name) {
        for prefix in [prefix, "/usr", "/usr/local"] {
            python(search, &format!("{prefix}/lib/python{version}"), &version);
        }
    } else if name == "java" {
        java(search, prefix);
    }
}

/// Returns `3.11` of `python3.11`, `libpython3.11.so.1.0`.
fn python_version(name: &str) -> Option<String> {
    let name = name.strip_prefix("lib").unwrap_or(name);
    let version = name.strip_prefix("python3.")?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    (!digits.is_empty()).then(|| format!("3.{digits}"))
}

fn python(search: &mut Search, library: &str, version: &str) {
    let tag = version.replace('.', "");
    let module = |search: &mut Search, directory: &str, name: &str| {
        // The source is looked at (its time), the compiled one is read.
        search.add(directory, &format!("{name}.py"), Need::Engine);
        let compiled = format!("__pycache__/{name}.cpython-{tag}.pyc");
        search.add(directory, &compiled, Need::Engine);
    };
    for name in PYTHON_MODULES {
        module(search, library, name);
    }
    let encodings = format!("{library}/encodings");
    for name in ["__init__", "aliases", "utf_8", "ascii", "latin_1"] {
        module(search, &encodings, name);
    }
}

fn java(search: &mut Search, home: &str) {
    for file in JAVA_FILES {
        search.add(home, file, Need::Engine);
    }
    search.program(&format!("{home}/lib/server/libjvm.so"), Need::Engine);
    for library in JAVA_LIBRARIES {
        search.program(&format!("{home}/lib/lib{library}.so"), Need::Engine);
    }
}
