//! What engines read before they run anything, by the name of their program or library.

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

/// A file that an engine reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A file, by the directory that it is looked for in and its path there.
    File(String, String),
    /// A library, with all that it is linked with.
    Library(String),
}

/// Returns the files that a program or library reads by itself if it is an engine; else none.
pub(super) fn reads(path: &str) -> Vec<Read> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let prefix = directory.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    if let Some(version) = python_version(name) {
        let prefixes = [prefix, "/usr", "/usr/local"].into_iter();
        prefixes
            .flat_map(|prefix| python(&format!("{prefix}/lib/python{version}"), &version))
            .collect()
    } else if name == "java" {
        java(prefix)
    } else {
        Vec::new()
    }
}

/// Returns `3.11` of `python3.11`, `libpython3.11.so.1.0`.
fn python_version(name: &str) -> Option<String> {
    let name = name.strip_prefix("lib").unwrap_or(name);
    let version = name.strip_prefix("python3.")?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    (!digits.is_empty()).then(|| format!("3.{digits}"))
}

fn python(library: &str, version: &str) -> Vec<Read> {
    let tag = version.replace('.', "");
    let encodings = format!("{library}/encodings");
    let modules = PYTHON_MODULES.iter().map(|name| (library, name));
    let of_encodings = ["__init__", "aliases", "utf_8", "ascii", "latin_1"];
    let of_encodings = of_encodings.iter().map(|name| (&*encodings, name));
    let files = modules.chain(of_encodings).flat_map(|(directory, name)| {
        // The source is looked at (its time), the compiled one is read.
        let paths = [
            format!("{name}.py"),
            format!("__pycache__/{name}.cpython-{tag}.pyc"),
        ];
        paths.map(|path| Read::File(directory.to_owned(), path))
    });
    files.collect()
}

fn java(home: &str) -> Vec<Read> {
    let files = JAVA_FILES.iter();
    let files = files.map(|file| Read::File(home.to_owned(), (*file).to_owned()));
    let machine = Read::Library(format!("{home}/lib/server/libjvm.so"));
    let libraries = JAVA_LIBRARIES.iter();
    let libraries = libraries.map(|library| Read::Library(format!("{home}/lib/lib{library}.so")));
    files.chain([machine]).chain(libraries).collect()
}
