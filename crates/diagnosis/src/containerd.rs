//! A containerd: its version, its configuration, and how it behaves with that.
//!
//! containerd itself is asked for its effective configuration (`containerd config dump`): how it merges imports,
//! and which parts of an older version's file it silently drops, differs from release to release.

mod checks;
mod drop_in;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use crate::bounded;
use crate::machine::version_of;
use crate::processes::{Process, installed, is_younger, running};

pub use drop_in::{Options, Use};

/// Where containerd looks for its configuration.
pub const DEFAULT_CONFIG: &str = "/etc/containerd/config.toml";
/// The name of our file beside it.
pub(crate) const DROP_IN: &str = "yolofs.toml";
/// What `config.toml` has to import for it.
pub(crate) const DROP_INS: &str = "conf.d";
/// The plugin of Kubernetes' pods, up to 1.7.
const CRI_OLD: &str = "io.containerd.grpc.v1.cri";
/// Its part that has images, from 2.0 on.
const CRI_IMAGES: &str = "io.containerd.cri.v1.images";
/// The plugin that pulls, from 2.0 on.
const TRANSFER: &str = "io.containerd.transfer.v1.local";
/// More are not looked at.
const MAX_ENGINES: usize = 8;

/// A containerd of this machine.
#[derive(Clone, Debug)]
pub struct Containerd {
    program: PathBuf,
    config: PathBuf,
    version: (u32, u32),
    version_text: String,
    pid: Option<u32>,
    started: Option<SystemTime>,
    /// The content of the file; empty if it does not exist.
    main: Table,
    main_text: Option<String>,
    /// containerd's effective configuration, with imports.
    effective: Table,
}

impl Containerd {
    /// Looks for those that run, or else for one that is installed. With `config`, only for the one with that
    /// configuration.
    ///
    /// # Errors
    /// If a configuration cannot be read, by us or by containerd.
    pub fn find(config: Option<&Path>) -> anyhow::Result<Vec<Self>> {
        let mut found: Vec<(Option<Process>, PathBuf, PathBuf)> = running("containerd")
            .into_iter()
            .filter_map(|process| {
                let (program, file) = (program(&process)?, file_of(&process));
                Some((Some(process), program, file))
            })
            .filter(|(_, _, file)| config.is_none_or(|config| config == file))
            .take(MAX_ENGINES)
            .collect();
        if found.is_empty()
            && let Some(program) = installed("containerd")
        {
            let file = config.unwrap_or(Path::new(DEFAULT_CONFIG)).to_owned();
            found.push((None, program, file));
        }
        let open = |(process, program, file): (Option<Process>, _, _)| {
            let mut one = Self::of(program, file)?;
            one.pid = process.as_ref().map(|process| process.pid);
            one.started = process.as_ref().and_then(Process::started);
            Ok(one)
        };
        found.into_iter().map(open).collect()
    }

    /// Looks at one by its program and its configuration, which need not be there.
    ///
    /// # Errors
    /// If the configuration cannot be read, by us or by containerd.
    pub fn of(program: PathBuf, config: PathBuf) -> anyhow::Result<Self> {
        let said = bounded::output(&program, &["--version"])?;
        let version_text = said.split_whitespace().nth(2).unwrap_or_default();
        let version_text = version_text.trim_start_matches('v').to_owned();
        let version = version_of(&version_text)
            .with_context(|| format!("{} calls itself {said:?}", program.display()))?;
        let mut one = Self {
            program,
            config,
            version,
            version_text,
            pid: None,
            started: None,
            main: Table::new(),
            main_text: None,
            effective: Table::new(),
        };
        one.read()?;
        Ok(one)
    }

    /// Reads the configuration anew.
    ///
    /// # Errors
    /// As [`Containerd::of`].
    pub fn read(&mut self) -> anyhow::Result<()> {
        self.main_text = bounded::read(&self.config)?;
        let text = self.main_text.as_deref().unwrap_or_default();
        self.main = text
            .parse()
            .with_context(|| format!("{} is no TOML", self.config.display()))?;
        let config = self
            .config
            .to_str()
            .context("the path of the configuration is not text")?;
        let dumped = match self.main_text {
            Some(_) => bounded::output(&self.program, &["--config", config, "config", "dump"]),
            None => bounded::output(&self.program, &["config", "default"]),
        };
        let dumped = dumped.context("containerd does not understand its configuration")?;
        self.effective = dumped.parse().context("containerd printed no TOML")?;
        Ok(())
    }

    /// Returns what to call it: its version, and its file.
    #[must_use]
    pub fn name(&self) -> String {
        format!(
            "containerd {} ({})",
            self.version_text,
            self.config.display()
        )
    }

    /// Returns whether it runs.
    #[must_use]
    pub const fn runs(&self) -> bool {
        self.pid.is_some()
    }

    /// Returns where it keeps images.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        let root = self.effective.get("root").and_then(Value::as_str);
        PathBuf::from(root.unwrap_or("/var/lib/containerd"))
    }

    /// Returns the socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let grpc = text_at(&self.effective, &["grpc", "address"]);
        // containerd 2.4 calls the part of the server a plugin.
        let server = ["plugins", "io.containerd.server.v1.grpc", "address"];
        let address = grpc.or_else(|| text_at(&self.effective, &server));
        PathBuf::from(address.unwrap_or("/run/containerd/containerd.sock"))
    }

    /// Returns its configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    fn is_two(&self) -> bool {
        self.version >= (2, 0)
    }

    /// Returns the snapshotter that pods use, if this containerd has pods.
    fn pods_snapshotter(&self) -> Option<&str> {
        let disabled = self
            .effective
            .get("disabled_plugins")
            .and_then(Value::as_array);
        let is_cri = |name: &str| name == "cri" || name == CRI_OLD || name == CRI_IMAGES;
        let off = disabled.is_some_and(|names| names.iter().filter_map(Value::as_str).any(is_cri));
        if off {
            return None;
        }
        if self.is_two() {
            text_at(&self.effective, &["plugins", CRI_IMAGES, "snapshotter"])
        } else {
            text_at(
                &self.effective,
                &["plugins", CRI_OLD, "containerd", "snapshotter"],
            )
        }
    }

    /// Returns what it knows of our snapshotter.
    fn proxy(&self) -> Option<&Table> {
        table_at(&self.effective, &["proxy_plugins", "yolofs"])
    }

    /// Returns to which snapshotters images can be unpacked; `None` means containerd's default.
    fn unpacks_to(&self) -> Option<Vec<&Table>> {
        let list = at(&self.effective, &["plugins", TRANSFER, "unpack_config"])?;
        let list = list
            .as_array()?
            .iter()
            .filter_map(Value::as_table)
            .collect();
        Some(list)
    }

    /// Returns the files and patterns that the main file imports, which is all that counts: the dump shows
    /// a default that is not followed.
    fn imports(&self) -> Vec<PathBuf> {
        let list = self.main.get("imports").and_then(Value::as_array);
        let beside = self.config.parent().unwrap_or(Path::new("/"));
        let names = list.into_iter().flatten().filter_map(Value::as_str);
        names.map(|name| beside.join(name)).collect()
    }

    /// Returns our file among those that are imported, if it is there and was written after this containerd had begun,
    /// which then does not know of it.
    fn unread_drop_in(&self) -> Option<PathBuf> {
        let dirs = self.imports().into_iter();
        let mut files = dirs.filter_map(|import| Some(import.parent()?.join(DROP_IN)));
        files.find(|file| is_younger(file, self.started))
    }

    /// Returns the directory beside the main file for drop-ins.
    fn drop_ins(&self) -> PathBuf {
        self.config.with_file_name(DROP_INS)
    }
}

fn program(process: &Process) -> Option<PathBuf> {
    // A program that was replaced under a running process has another name by now.
    let program = process.program.as_ref().filter(|path| path.is_file());
    program.cloned().or_else(|| installed("containerd"))
}

fn file_of(process: &Process) -> PathBuf {
    let named = process.flag(&["--config", "-config", "-c"]);
    process.path(named.unwrap_or(DEFAULT_CONFIG))
}

/// Returns what lies at a path of keys.
fn at<'t>(table: &'t Table, path: &[&str]) -> Option<&'t Value> {
    let (last, first) = path.split_last()?;
    let mut table = table;
    for key in first {
        table = table.get(*key)?.as_table()?;
    }
    table.get(*last)
}

fn table_at<'t>(table: &'t Table, path: &[&str]) -> Option<&'t Table> {
    at(table, path)?.as_table()
}

fn text_at<'t>(table: &'t Table, path: &[&str]) -> Option<&'t str> {
    at(table, path)?.as_str()
}

/// Returns whether a path of `imports` takes in a file of this path: the only pattern that anybody uses is
/// a star for the name.
fn takes_in(import: &Path, file: &Path) -> bool {
    if import == file {
        return true;
    }
    let (Some(pattern), Some(name)) = (import.file_name(), file.file_name()) else {
        return false;
    };
    let (Some(pattern), Some(name)) = (pattern.to_str(), name.to_str()) else {
        return false;
    };
    let Some((before, after)) = pattern.split_once('*') else {
        return false;
    };
    import.parent() == file.parent() && name.starts_with(before) && name.ends_with(after)
}

/// Refuses a version of which nothing is known.
fn known(version: (u32, u32)) -> anyhow::Result<()> {
    if version < (1, 6) {
        bail!(
            "containerd {}.{} is too old: 1.6 is the oldest that was tried",
            version.0,
            version.1
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_followed_as_containerd_follows_them() {
        let file = Path::new("/etc/containerd/conf.d/yolofs.toml");
        for (import, expected) in [
            ("/etc/containerd/conf.d/*.toml", true),
            ("/etc/containerd/conf.d/yolofs.toml", true),
            ("/etc/containerd/conf.d/y*", true),
            ("/etc/containerd/*.toml", false),
            ("/etc/containerd/conf.d/other.toml", false),
        ] {
            assert_eq!(takes_in(Path::new(import), file), expected, "{import}");
        }
    }

    #[test]
    fn paths_of_keys_are_followed() {
        let table: Table = "[a.'b.c']\nd = 'e'\n".parse().unwrap();
        assert_eq!(text_at(&table, &["a", "b.c", "d"]), Some("e"));
        assert_eq!(text_at(&table, &["a", "d"]), None);
    }
}
