//! A block service of its own for a test.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use lab::{Lab, json, ok};

/// A `nicfetch serve` of its own, without a mirror; killed when it is dropped.
pub(crate) struct Nic {
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Nic {
    /// Serves the lab's store on a unix socket, to everybody.
    pub(crate) fn start(lab: &Lab) -> Self {
        Self::at(
            lab,
            &format!("unix:{}", socket(lab).display()),
            &["--blocks-open"],
        )
    }

    /// Serves the lab's store. More than one may do that, one after the other.
    pub(crate) fn at(lab: &Lab, address: &str, flags: &[&str]) -> Self {
        Self::of_store(lab, STORE, address, flags)
    }

    /// Serves a copy of the lab's store, beside the others.
    pub(crate) fn second(lab: &Lab, address: &str, flags: &[&str]) -> Self {
        let [store, copy] = [STORE, "second-nic"].map(|name| lab.path(name));
        ok(Command::new("cp").arg("-a").args([store, copy]));
        Self::of_store(lab, "second-nic", address, flags)
    }

    fn of_store(lab: &Lab, store: &str, address: &str, flags: &[&str]) -> Self {
        let admin = format!("unix:{}", lab.path(&format!("{store}.admin")).display());
        let mut process = nicfetch(lab, store, "serve")
            .args(["--admin", &admin, "--blocks", address])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let lines = out.lines().map(Result::unwrap);
        let address = lines
            .filter_map(|line| Some(line.strip_prefix("blocks ")?.to_owned()))
            .next();
        Self {
            process,
            address: address.expect("it ended, or serves no blocks"),
        }
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // It may be stopped, or gone.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

pub(crate) fn socket(lab: &Lab) -> PathBuf {
    lab.path("nic.sock")
}

/// The lab's store.
const STORE: &str = "nic";

fn nicfetch(lab: &Lab, store: &str, verb: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    command.arg(verb).arg("--store").arg(lab.path(store));
    command.args(["--size", "1G"]);
    command
}

/// Imports a directory under a name, and returns what the command says of it.
pub(crate) fn import(lab: &Lab, name: &str, dir: &Path) -> Value {
    json(
        nicfetch(lab, STORE, "import")
            .args(["--json", "--name", name])
            .arg(dir),
    )
}
