//! Whether a directory is the tier that it was: where NVM is not mounted, its mount point is a
//! directory of the disk below, and must not fill up in its place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tiering::medium::{DirMedium, Medium};
use tiering::objects::Mark;
use tiering::tier::{Capability, Kind, detect};

use super::Tiers;
use super::file::TierSpec;
use super::known::{Durable, replace};

/// The state of a tier's directory.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) capability: Capability,
    pub(super) medium: Arc<dyn Medium>,
    mark: MarkState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkState {
    /// It has this mark.
    There(Mark),
    /// It was never used as a tier.
    New,
    /// It is in memory, which was emptied: it gets its former mark again.
    Lost(Mark),
}

/// The marks of the tiers that were used, by name.
#[derive(Debug)]
pub(super) struct Marks {
    path: PathBuf,
    marks: BTreeMap<String, Mark>,
}

impl Marks {
    pub(super) fn read(tiers: &Tiers) -> Self {
        let path = tiers.state.join("marks.json");
        let text = fs::read(&path).unwrap_or_default();
        // Lost with the state directory: then every directory is what it says it is.
        let texts: BTreeMap<String, String> = serde_json::from_slice(&text).unwrap_or_default();
        let marks = texts.into_iter().filter_map(|(name, text)| {
            let bytes = u128::from_str_radix(&text, 16).ok()?;
            Some((name, Mark(bytes.to_le_bytes())))
        });
        let marks = marks.collect();
        Self { path, marks }
    }

    /// Checks the directory of a tier; leaves no file in it.
    ///
    /// # Errors
    /// If it is missing, or is another directory than before.
    pub(super) fn find(&self, spec: &TierSpec) -> anyhow::Result<Found> {
        let capability = detect(&spec.dir).context("it is not there")?;
        let medium: Arc<dyn Medium> = Arc::new(DirMedium::open(&spec.dir)?);
        let mark = match (Mark::read(&*medium)?, self.marks.get(&spec.name)) {
            (Some(mark), _) => MarkState::There(mark),
            (None, None) => MarkState::New,
            (None, Some(was)) if capability.kind == Kind::Memory => MarkState::Lost(*was),
            (None, Some(_)) => anyhow::bail!(
                "{} lacks the mark of this tier: is its file system not mounted? (a new \
                 medium takes a new name in the tiers file)",
                spec.dir.display()
            ),
        };
        Ok(Found {
            capability,
            medium,
            mark,
        })
    }

    /// Marks a directory as found, and remembers the mark. Only for processes that move objects.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn settle(&mut self, spec: &TierSpec, found: &Found) -> anyhow::Result<()> {
        let mark = match found.mark {
            MarkState::There(mark) => mark,
            MarkState::New => Mark::random()?,
            MarkState::Lost(mark) => mark,
        };
        // First what it is to be: a directory that is marked and not remembered is as good as new.
        if self.marks.insert(spec.name.clone(), mark) != Some(mark) {
            self.write()?;
        }
        if !matches!(found.mark, MarkState::There(_)) {
            let marking = mark.write(&*found.medium);
            marking.with_context(|| format!("marking {}", spec.dir.display()))?;
        }
        Ok(())
    }

    fn write(&self) -> anyhow::Result<()> {
        let text = |mark: &Mark| format!("{:032x}", u128::from_le_bytes(mark.0));
        let texts: BTreeMap<&str, String> = self
            .marks
            .iter()
            .map(|(name, mark)| (name.as_str(), text(mark)))
            .collect();
        let text = serde_json::to_vec(&texts).context("writing marks")?;
        replace(&self.path, &text, Durable::Yes)
            .with_context(|| format!("writing {}", Path::display(&self.path)))
    }
}
