//! The specification of a handler.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sandbox::{Limits, Network, Packages, Python, Request};
use serde::{Deserialize, Serialize};

use crate::error::{CallError, Result};

/// What runs inside, before any code of the handler.
const PYTHON_RUNNER: &str = include_str!("runner.py");
const NODE_RUNNER: &str = include_str!("runner.js");

/// The most sandboxes of one handler, and requests that wait for them.
const INSTANCES_MAX: u32 = 1024;
const QUEUE_MAX: u32 = 4096;

/// What a handler is written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// `handler.py` with `def handle(event)`; forked from a Zygote.
    #[default]
    Python,
    /// `handler.js` with `exports.handle = async (event) => …`; in a process that was started ahead.
    Node,
}

/// A handler, and how much of the machine it may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandlerSpec {
    /// Its name.
    pub name: String,
    /// The base of its sandboxes.
    pub base: String,
    /// Its runtime.
    #[serde(default)]
    pub runtime: Runtime,
    /// The interpreter, by its path in the base.
    pub interpreter: String,
    /// The directory with its code, which its sandboxes have at `/code`.
    pub code: PathBuf,
    /// The packages that it needs, as they were added to the store.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Its variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// What each of its sandboxes may use.
    #[serde(default)]
    pub limits: Limits,
    /// The maximum number of its sandboxes. Each handles one request at a time.
    pub instances_max: u32,
    /// Requests that may wait for one of them. More are refused at once.
    pub queue_max: u32,
    /// How long a request may take, including the time in the queue.
    pub timeout_ms: u64,
}

impl HandlerSpec {
    /// Returns a handler in Python with the usual limits.
    pub fn python(name: &str, base: &str, code: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            base: base.to_owned(),
            runtime: Runtime::Python,
            interpreter: "/usr/bin/python3".to_owned(),
            code: code.into(),
            requires: Vec::new(),
            environment: BTreeMap::new(),
            network: Network::None,
            limits: Limits::default(),
            instances_max: 4,
            queue_max: 16,
            timeout_ms: 30_000,
        }
    }

    /// Refuses what makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name =
            !self.name.is_empty() && self.name.len() <= 100 && !self.name.starts_with('.');
        let problem = if !is_name || !self.name.bytes().all(plain) {
            format!(
                "{:?} is no name of a handler: letters, digits, dots and dashes",
                self.name
            )
        } else if !(1..=INSTANCES_MAX).contains(&self.instances_max) || self.queue_max > QUEUE_MAX {
            format!(
                "a handler has from 1 to {INSTANCES_MAX} sandboxes, and at most {QUEUE_MAX} requests wait"
            )
        } else if self.runtime == Runtime::Node && !self.requires.is_empty() {
            "the packages of a store are for Python; those of Node.js are in its code's node_modules".to_owned()
        } else if !self.code.is_absolute() {
            format!("{} is no absolute path", self.code.display())
        } else {
            return Ok(());
        };
        Err(CallError::Invalid(problem))
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Returns what a sandbox of it is. One that was started ahead gets its code later.
    pub(crate) fn request(&self, packages: Packages, store: Option<PathBuf>) -> Request {
        let mut request = Request::new(&self.base, &[]);
        match self.runtime {
            Runtime::Python => {
                request.command = vec!["-c".to_owned(), PYTHON_RUNNER.to_owned()];
                let interpreter = self.interpreter.clone();
                request.packages = store.filter(|_| !packages.is_empty());
                request.python = Some(Python {
                    interpreter,
                    packages,
                });
            }
            Runtime::Node => {
                let command = [&self.interpreter, "-e", NODE_RUNNER];
                request.command = command.map(str::to_owned).to_vec();
            }
        }
        request.code = Some(self.code.clone());
        request.environment.clone_from(&self.environment);
        request.network = self.network;
        request.limits = self.limits;
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_makes_no_sense_is_refused() {
        let right = HandlerSpec::python("a", "b", "/c");
        right.check().unwrap();
        let wrong: [fn(&mut HandlerSpec); 6] = [
            |spec| spec.name = "a/b".to_owned(),
            |spec| spec.name.clear(),
            |spec| spec.instances_max = 0,
            |spec| spec.queue_max = u32::MAX,
            |spec| spec.code = "c".into(),
            |spec| {
                spec.runtime = Runtime::Node;
                spec.requires = vec!["x".to_owned()];
            },
        ];
        for change in wrong {
            let mut spec = right.clone();
            change(&mut spec);
            assert!(spec.check().is_err(), "{spec:?}");
        }
    }
}
