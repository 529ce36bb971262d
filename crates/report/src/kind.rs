//! What kind of file something is, by its name.

use serde::{Deserialize, Serialize};

/// The purpose of a file, by its name and its permissions: the metadata of a boot image
/// has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A shared library.
    Library,
    /// Something executable that is no script.
    Program,
    /// Source code that an interpreter reads.
    Script,
    /// Code compiled for a virtual machine.
    Bytecode,
    /// Configuration.
    Configuration,
    /// A disk image.
    Disk,
    /// Anything else.
    Data,
}

/// Whether anybody may execute a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execute {
    /// Some user may.
    Allowed,
    /// No user may.
    Denied,
}

const SCRIPTS: [&str; 9] = ["py", "sh", "js", "mjs", "cjs", "pl", "pm", "rb", "lua"];
const BYTECODE: [&str; 6] = ["pyc", "jar", "class", "jsa", "jmod", "wasm"];
const CONFIGURATION: [&str; 8] = ["conf", "cnf", "cfg", "ini", "toml", "yaml", "yml", "json"];
const DISKS: [&str; 4] = ["raw", "img", "qcow2", "vmdk"];

impl FileKind {
    /// Returns the kind of the file with this path.
    #[must_use]
    pub fn of(path: &str, execute: Execute) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path);
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let is = |list: &[&str]| list.contains(&extension);
        if extension == "so" || name.contains(".so.") {
            Self::Library
        } else if is(&BYTECODE) || name == "modules" && path.ends_with("lib/modules") {
            // The file lib/modules of a JVM holds its classes.
            Self::Bytecode
        } else if is(&SCRIPTS) {
            Self::Script
        } else if is(&DISKS) {
            Self::Disk
        } else if is(&CONFIGURATION) || path.starts_with("etc/") || path.starts_with("/etc/") {
            Self::Configuration
        } else if execute == Execute::Allowed {
            Self::Program
        } else {
            Self::Data
        }
    }

    /// Returns the name of files of this kind, in the plural.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Library => "shared libraries",
            Self::Program => "programs",
            Self::Script => "scripts",
            Self::Bytecode => "bytecode",
            Self::Configuration => "configuration",
            Self::Disk => "disk images",
            Self::Data => "other data",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_kinds() {
        use Execute::{Allowed, Denied};
        use FileKind::*;
        let cases = [
            ("usr/lib/libssl.so.3", Denied, Library),
            ("usr/lib/libc.so", Allowed, Library),
            ("usr/bin/python3.11", Allowed, Program),
            ("usr/lib/python3/ssl.py", Denied, Script),
            ("docker-entrypoint.sh", Allowed, Script),
            ("usr/lib/python3/ssl.cpython-311.pyc", Denied, Bytecode),
            ("usr/lib/jvm/java-17/lib/modules", Denied, Bytecode),
            ("etc/nginx/mime.types", Denied, Configuration),
            ("srv/app/package.json", Denied, Configuration),
            ("disk.raw", Denied, Disk),
            ("usr/share/zoneinfo/UTC", Denied, Data),
            ("", Denied, Data),
        ];
        for (path, execute, kind) in cases {
            assert_eq!(FileKind::of(path, execute), kind, "{path}");
        }
    }
}
