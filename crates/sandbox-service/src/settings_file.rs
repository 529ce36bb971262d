//! What the daemon makes again when it starts, in memory and in a file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use parking_lot::Mutex;
use sandbox::{SandboxError, ZygoteSpec};

use crate::bodies::Settings;

impl Settings {
    /// Has as many Zygotes of a kind at the next start as there are now. One that the daemon has evicted by itself is still
    /// among them, so that what is made again in its place is no second one.
    pub(crate) fn keep_zygote(&mut self, spec: ZygoteSpec, live: usize) {
        let kept = self.zygotes.iter().filter(|kept| **kept == spec).count();
        if kept < live.max(1) {
            self.zygotes.push(spec);
        }
    }

    /// Has one Zygote less of a kind at the next start, if there is one.
    pub(crate) fn forget_zygote(&mut self, spec: &ZygoteSpec) {
        if let Some(place) = self.zygotes.iter().position(|kept| kept == spec) {
            self.zygotes.remove(place);
        }
    }
}

/// The settings, and the file that has the same.
#[derive(Debug)]
pub(crate) struct SettingsFile {
    path: PathBuf,
    settings: Mutex<Settings>,
}

impl SettingsFile {
    /// Has these from now on. They are written at the next change.
    pub(crate) fn new(path: PathBuf, settings: Settings) -> Self {
        let settings = Mutex::new(settings);
        Self { path, settings }
    }

    /// Returns the settings as they are.
    pub(crate) fn now(&self) -> Settings {
        self.settings.lock().clone()
    }

    /// Changes the settings, on the disk and in memory. A change that changes nothing writes nothing.
    ///
    /// # Errors
    /// If they cannot be written; then they are those before.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Settings)) -> sandbox::Result<()> {
        let mut settings = self.settings.lock();
        let mut changed = settings.clone();
        change(&mut changed);
        if changed == *settings {
            return Ok(());
        }
        // Under the lock, so that an older state does not replace a newer one; the file is small, and
        // in memory where /run is.
        write(&self.path, &changed).map_err(|source| SandboxError::Path {
            doing: "writing the settings for the next start, so nothing was changed:",
            path: self.path.clone(),
            source,
        })?;
        *settings = changed;
        Ok(())
    }
}

/// Reads what a former daemon has written; nothing if there was none.
pub(crate) fn read(path: &Path) -> anyhow::Result<Settings> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| {
            format!(
                "reading {}: remove it to start without bases",
                path.display()
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Settings::default()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Replaces the settings: after a power cut they are the ones before, or these, and not a part of them.
fn write(path: &Path, settings: &Settings) -> io::Result<()> {
    let aside = path.with_extension("new");
    let mut file = File::create(&aside)?;
    file.write_all(&serde_json::to_vec_pretty(settings)?)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(settings: &Settings) -> Vec<&[String]> {
        let zygotes = settings.zygotes.iter();
        zygotes.map(|zygote| zygote.modules.as_slice()).collect()
    }

    #[test]
    fn as_many_equal_zygotes_are_kept_as_there_are() {
        let spec = |module| ZygoteSpec::new("host", "/usr/bin/python3", &[module]);
        let mut settings = Settings::default();
        settings.keep_zygote(spec("json"), 1);
        settings.keep_zygote(spec("ssl"), 1);
        settings.keep_zygote(spec("json"), 2);
        assert_eq!(modules(&settings), [["json"], ["ssl"], ["json"]]);
        // One had been evicted by the daemon, and was made again.
        settings.keep_zygote(spec("json"), 2);
        settings.keep_zygote(spec("ssl"), 0);
        assert_eq!(modules(&settings).len(), 3);
        settings.forget_zygote(&spec("json"));
        assert_eq!(modules(&settings), [["ssl"], ["json"]]);
        settings.forget_zygote(&spec("json"));
        settings.forget_zygote(&spec("json"));
        assert_eq!(modules(&settings), [["ssl"]]);
    }
}
