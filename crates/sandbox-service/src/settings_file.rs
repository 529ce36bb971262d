//! What the daemon makes again when it starts, in memory and in a file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use parking_lot::Mutex;
use sandbox::SandboxError;

use crate::bodies::Settings;

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
