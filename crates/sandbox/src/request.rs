//! The specification of a sandbox.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cgroup::Limits;
use crate::error::{Result, SandboxError};
use crate::network::Network;
use crate::packages::{Packages, check_packages, paths_of};

/// Arguments and variables of a program together: what the kernel takes, with room to spare.
const STRINGS_MAX_BYTES: usize = 1 << 20;

/// A program of Python, which may be forked from a Zygote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Python {
    /// The interpreter, by its path in the base.
    pub interpreter: String,
    /// The packages that it may import, each `name==version` and a directory in the request's
    /// `packages`.
    #[serde(default)]
    pub packages: Packages,
}

/// A program, and its resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The base that is its root.
    pub base: String,
    /// The program and its arguments; its path is one in the sandbox. With `python`, the arguments behind
    /// the interpreter: a script and its arguments, or `-c` and a text.
    pub command: Vec<String>,
    /// Whether it is a program of Python.
    #[serde(default)]
    pub python: Option<Python>,
    /// Its variables; it inherits none.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// A directory that it reads at `/code`.
    #[serde(default)]
    pub code: Option<PathBuf>,
    /// A directory that it reads at `/packages`.
    #[serde(default)]
    pub packages: Option<PathBuf>,
    /// A directory that it may write to at `/scratch`, as far as the modes of its files let it.
    #[serde(default)]
    pub scratch: Option<PathBuf>,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// Its limits.
    #[serde(default)]
    pub limits: Limits,
    /// When it is killed; `None` for no timeout.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

impl Request {
    /// Returns a request for a program in a base, with everything else as usual.
    pub fn new(base: &str, command: &[&str]) -> Self {
        Self {
            base: base.to_owned(),
            command: command.iter().map(|&part| part.to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Returns when it is killed.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// Returns whether it names directories, which are mounted in the sandbox.
    pub(crate) fn has_directories(&self) -> bool {
        self.code.is_some() || self.packages.is_some() || self.scratch.is_some()
    }

    /// Returns arguments and variables as a program gets them.
    pub(crate) fn strings(&self) -> Result<(Vec<CString>, Vec<CString>)> {
        let mut command = self.command.clone();
        let mut paths = None;
        if let Some(python) = &self.python {
            check_packages(&python.packages)?;
            command.insert(0, python.interpreter.clone());
            let of_each = paths_of(&python.packages);
            paths = (!of_each.is_empty()).then(|| format!("PYTHONPATH={}", of_each.join(":")));
        }
        let is_path = |program: &String| program.starts_with('/');
        if !command.first().is_some_and(is_path) {
            return Err(SandboxError::Invalid(
                "a sandbox executes a program by its absolute path: /usr/bin/python3".to_owned(),
            ));
        }
        let has_path = self.environment.contains_key("PATH");
        let path = (!has_path).then(|| "PATH=/usr/local/bin:/usr/bin:/bin".to_owned());
        let set = self.environment.iter();
        let variables = set.map(|(name, value)| format!("{name}={value}"));
        let arguments = c_strings(command.into_iter())?;
        let variables = path.into_iter().chain(paths).chain(variables);
        Ok((arguments, c_strings(variables)?))
    }
}

fn c_strings(strings: impl Iterator<Item = String>) -> Result<Vec<CString>> {
    let mut bytes = 0;
    strings
        .map(|string| {
            bytes += string.len() + 1;
            if bytes > STRINGS_MAX_BYTES {
                return Err(SandboxError::Invalid(format!(
                    "the arguments or variables have more than {STRINGS_MAX_BYTES} bytes"
                )));
            }
            CString::new(string).map_err(|error| {
                SandboxError::Invalid(format!(
                    "an argument or a variable has a NUL in it: {error}"
                ))
            })
        })
        .collect()
}

/// What a program's standard input, output and errors are.
#[derive(Debug)]
pub enum Stdio {
    /// Its input is empty, and its output is discarded.
    Null,
    /// Its input is this descriptor, which may be a socket, and its output is kept.
    Asked(OwnedFd),
    /// Its input is empty, and its output is kept, up to a limit.
    Captured,
    /// These three descriptors.
    Given([OwnedFd; 3]),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_an_absolute_path_and_no_inherited_variables() {
        let mut request = Request::new("base", &["/bin/true", "a"]);
        request.environment.insert("NAME".into(), "value".into());
        let (arguments, variables) = request.strings().unwrap();
        assert_eq!(arguments, [c"/bin/true".to_owned(), c"a".to_owned()]);
        assert_eq!(variables[1], c"NAME=value".to_owned());
        assert!(variables[0].to_string_lossy().starts_with("PATH="));
        for wrong in [&["true"][..], &[], &["/bin/a\0b"]] {
            assert!(Request::new("base", wrong).strings().is_err());
        }
        let long = "x".repeat(STRINGS_MAX_BYTES);
        assert!(
            Request::new("base", &["/bin/true", &long])
                .strings()
                .is_err()
        );
    }
}
