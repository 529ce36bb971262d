//! The programs of nicfetch, as its users start them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::process::{Guard, run_ok, wait_for};

/// What `nicfetch` says before the address of its blocks.
pub const BLOCKS: &str = "blocks";
/// It listens at once; a large store takes a moment to open.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// Cutting and hashing some hundred megabytes.
const IMPORT_DEADLINE: Duration = Duration::from_secs(600);

/// Where `nicfetch` is.
#[derive(Clone, Debug)]
pub struct Nicfetch {
    program: PathBuf,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Guard,
    said: Vec<(String, String)>,
}

impl Nicfetch {
    /// Takes the program from the directory `bin`.
    ///
    /// # Errors
    /// If it is not there.
    pub fn new(bin: &Path) -> anyhow::Result<Self> {
        let program = bin.join("nicfetch");
        ensure!(
            program.exists(),
            "{} is missing: run cargo build --release -p cli",
            program.display()
        );
        Ok(Self { program })
    }

    /// Takes a directory as a source of the block service.
    ///
    /// # Errors
    /// If it fails.
    pub fn import(&self, store: &Path, name: &str, source: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["import", "--name", name, "--store"]);
        command.args([store, source]);
        run_ok(command, IMPORT_DEADLINE).map(drop)
    }

    /// Serves the blocks of a store at `address`, with more flags. This is the only place that says
    /// how.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn serve_blocks(
        &self,
        store: &Path,
        address: &str,
        flags: &[&str],
    ) -> anyhow::Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--blocks", address]);
        command.args(["--admin", &admin_at(store)]);
        command.arg("--store").arg(store).args(flags);
        Server::start(command, &[BLOCKS], store)
    }

    /// Returns where it is.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }
}

impl Server {
    /// Starts a server that says, for each of `says`, a line with that and an address. What it
    /// writes is beside `store`.
    ///
    /// # Errors
    /// If it ends, or does not say all of them.
    pub fn start(mut command: Command, says: &[&str], store: &Path) -> anyhow::Result<Self> {
        let (output, errors) = (store.with_extension("out"), store.with_extension("err"));
        let create =
            |path: &Path| File::create(path).with_context(|| format!("making {}", path.display()));
        command
            .stdin(Stdio::null())
            .stdout(create(&output)?)
            .stderr(create(&errors)?)
            .env_remove("YOLOFS_LOG");
        let mut process = Guard::spawn(&mut command)?;
        let said = wait_for("nicfetch that listens", START_DEADLINE, || {
            if let Some(status) = process.ended()? {
                let why = fs::read_to_string(&errors).unwrap_or_default();
                bail!("nicfetch ended ({status}): {}", why.trim());
            }
            let text = fs::read_to_string(&output).context("reading what nicfetch says")?;
            Ok(addresses(&text, says))
        })?;
        Ok(Self { process, said })
    }

    /// Returns the address of the line that begins with `what`.
    ///
    /// # Errors
    /// If there is no such line.
    pub fn address(&self, what: &str) -> anyhow::Result<&str> {
        let line = self.said.iter().find(|(said, _)| said == what);
        line.map(|(_, address)| address.as_str())
            .with_context(|| format!("nicfetch did not say {what:?}"))
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Returns where the operator of the server with this store comes.
#[must_use]
pub fn admin_at(store: &Path) -> String {
    format!("unix:{}", store.with_extension("admin").display())
}

/// Finds what follows each of `says` at the beginning of a whole line; `None` until all are there.
fn addresses(text: &str, says: &[&str]) -> Option<Vec<(String, String)>> {
    let whole = &text[..text.rfind('\n')? + 1];
    let find = |what: &&str| {
        let mut lines = whole.lines();
        let address = lines.find_map(|line| line.strip_prefix(*what))?;
        Some(((*what).to_owned(), address.trim().to_owned()))
    };
    says.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_whole_lines() {
        let says = ["clients", "admin"];
        assert_eq!(addresses("clients 1.2.3.4:5\nadmin 1.", &says), None);
        let both = addresses("clients   1.2.3.4:5\nadmin 1.2:6\n", &says).unwrap();
        assert_eq!(both[0], ("clients".to_owned(), "1.2.3.4:5".to_owned()));
        assert_eq!(both[1].1, "1.2:6");
    }
}
