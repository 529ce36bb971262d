//! Files to write on this machine: shown first, written whole, and taken back as they were.

mod record;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::bounded;
use record::{Record, missing_directories, remove_directories, restore};
use write::{Access, write_whole};

pub use record::{Undone, undo};

/// The default path of the record of changes.
pub const DEFAULT_RECORD: &str = "/etc/yolofs/setup.json";

/// A file, and its new content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// Its former content; `None` if it did not exist.
    pub before: Option<String>,
    /// Its new content.
    pub after: String,
    /// What that is good for.
    pub why: String,
}

impl Change {
    /// Makes a change of the present file.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn to(path: &Path, after: String, why: &str) -> anyhow::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            before: bounded::read(path)?,
            after,
            why: why.to_owned(),
        })
    }

    /// Returns the lines that go, marked with `-`, and those that come, marked with `+`, in their order. Those at the
    /// beginning and at the end that stay are left out.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let before: Vec<&str> = self.before.iter().flat_map(|text| text.lines()).collect();
        let after: Vec<&str> = self.after.lines().collect();
        let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
            pairs.take_while(|(before, after)| before == after).count()
        };
        let first = same(&mut before.iter().zip(&after));
        let (before, after) = (&before[first..], &after[first..]);
        let last = same(&mut before.iter().rev().zip(after.iter().rev()));
        let shown = |mark: char, lines: &[&str]| -> Vec<String> {
            let lines = lines[..lines.len() - last].iter();
            lines.map(|line| format!("{mark} {line}")).collect()
        };
        [shown('-', before), shown('+', after)].concat()
    }

    fn is_needed(&self) -> bool {
        self.before.as_ref() != Some(&self.after)
    }
}

/// What a setup would do.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plan {
    /// The inspected files and versions.
    pub sees: Vec<String>,
    /// The files that it would write; none if nothing has to change.
    pub changes: Vec<Change>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Commands for afterwards: nothing is started or restarted by itself.
    pub then: Vec<String>,
}

impl Plan {
    /// Adds an inspected item.
    pub fn saw(&mut self, what: impl Into<String>) {
        self.sees.push(what.into());
    }

    /// Adds a file, unless it is as it should be already.
    pub fn change(&mut self, change: Change) {
        if change.is_needed() {
            self.changes.push(change);
        }
    }

    /// Adds a note.
    pub fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// Adds a command for afterwards, once.
    pub fn then(&mut self, command: &str) {
        if !self.then.iter().any(|known| known == command) {
            self.then.push(command.to_owned());
        }
    }

    /// Adds what another plan has.
    pub fn join(&mut self, other: Self) {
        self.sees.extend(other.sees);
        self.changes.extend(other.changes);
        self.notes.extend(other.notes);
        for command in other.then {
            self.then(&command);
        }
    }

    /// Writes the files, after recording their former content. Then `confirm` looks at what came of it. If that or
    /// a write fails, these files and the record are as they were before; what other setups wrote stays.
    ///
    /// # Errors
    /// If a file cannot be written, or has changed since the plan was made; what `confirm` says.
    pub fn apply(
        &self,
        record: &Path,
        confirm: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for change in &self.changes {
            let now = bounded::read(&change.path)?;
            ensure!(
                now == change.before,
                "{} changed since it was looked at: run this again",
                change.path.display()
            );
        }
        let former = Change::to(record, String::new(), "")?;
        let files = self.changes.iter().map(|change| change.path.as_path());
        let missing: Vec<_> = files
            .chain([record])
            .flat_map(missing_directories)
            .collect();
        let done = self.write(record).and_then(|()| confirm());
        let Err(error) = done else { return Ok(()) };
        self.revert(&former)
            .with_context(|| format!("taking back what failed ({error:#})"))?;
        remove_directories(&missing);
        Err(error.context("nothing was changed"))
    }

    fn write(&self, record: &Path) -> anyhow::Result<()> {
        let mut written_down = Record::read(record)?;
        written_down.add_directories(record);
        for change in &self.changes {
            written_down.add_directories(&change.path);
            written_down.add(change.clone());
            written_down.write(record)?;
            write_whole(&change.path, &change.after, Access::AsBefore)?;
        }
        Ok(())
    }

    /// Restores the files of this plan, the latest first, and then the record.
    fn revert(&self, record: &Change) -> anyhow::Result<()> {
        for change in self.changes.iter().rev() {
            if bounded::read(&change.path)?.as_ref() == Some(&change.after) {
                restore(change)?;
            }
        }
        if bounded::read(&record.path)? != record.before {
            restore(record)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use anyhow::bail;

    use super::*;

    fn apply(plan: &Plan, record: &Path) -> anyhow::Result<()> {
        plan.apply(record, || Ok(()))
    }

    #[test]
    fn files_are_written_once_and_undone_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("etc/setup.json");
        let (edited, new) = (dir.path().join("a"), dir.path().join("sub/b"));
        fs::write(&edited, "old\n").unwrap();
        fs::set_permissions(&edited, fs::Permissions::from_mode(0o640)).unwrap();
        let plan = || {
            let mut plan = Plan::default();
            plan.change(Change::to(&edited, "new\n".to_owned(), "x").unwrap());
            plan.change(Change::to(&new, "b\n".to_owned(), "y").unwrap());
            plan
        };
        apply(&plan(), &record).unwrap();
        assert_eq!(fs::read_to_string(&edited).unwrap(), "new\n");
        assert_eq!(
            fs::metadata(&edited).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(
            plan().changes.is_empty(),
            "a second time there is nothing to do"
        );
        apply(&plan(), &record).unwrap();

        // What is written a second time is still undone to what was there at first.
        let mut again = Plan::default();
        again.change(Change::to(&edited, "newer\n".to_owned(), "x").unwrap());
        apply(&again, &record).unwrap();
        let undone = undo(&record).unwrap();
        assert_eq!(undone.kept, Vec::<PathBuf>::new());
        assert_eq!(undone.restored, [new.clone(), edited.clone()]);
        assert_eq!(fs::read_to_string(&edited).unwrap(), "old\n");
        assert!(!new.exists() && !dir.path().join("sub").exists());
        assert!(!record.exists() && !dir.path().join("etc").exists());
        assert_eq!(undo(&record).unwrap().restored, Vec::<PathBuf>::new());
    }

    #[test]
    fn directories_that_were_there_before_stay_also_if_they_were_empty() {
        let dir = tempfile::tempdir().unwrap();
        let below = |path: &str| dir.path().join(path);
        for there in ["engine", "etc"] {
            fs::create_dir(below(there)).unwrap();
        }
        let record = below("etc/yolofs/setup.json");
        let plan = || {
            let mut plan = plan_of(&below("engine/a"), "a\n");
            plan.join(plan_of(&below("engine/conf.d/b"), "b\n"));
            plan.join(plan_of(&below("etc/new/sub/c"), "c\n"));
            plan
        };
        let left = || {
            let names = |path: &str| fs::read_dir(below(path)).unwrap().count();
            (names(""), names("engine"), names("etc"))
        };
        apply(&plan(), &record).unwrap();
        assert_eq!(undo(&record).unwrap().kept, Vec::<PathBuf>::new());
        assert_eq!(left(), (2, 0, 0), "or only what setup made is gone");
        let error = plan().apply(&record, || bail!("it is not accepted"));
        error.unwrap_err();
        assert_eq!(left(), (2, 0, 0), "after a setup that failed");

        // The second of two setups made the directory. A file that somebody changed keeps the record until later.
        apply(&plan_of(&below("engine/a"), "a\n"), &record).unwrap();
        apply(&plan(), &record).unwrap();
        fs::write(below("engine/a"), "theirs\n").unwrap();
        assert_eq!(undo(&record).unwrap().kept, [below("engine/a")]);
        fs::remove_file(below("engine/a")).unwrap();
        assert_eq!(undo(&record).unwrap(), Undone::default());
        assert_eq!(left(), (2, 0, 0), "after the second undo");
    }

    /// `packaging/check-packages.sh` has such a record, too.
    #[test]
    fn the_record_of_an_earlier_release_is_undone_as_that_release_did() {
        let dir = tempfile::tempdir().unwrap();
        let (record, path) = (dir.path().join("etc/setup.json"), dir.path().join("sub/a"));
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let change = Change {
            path: path.clone(),
            before: None,
            after: "a\n".to_owned(),
            why: String::new(),
        };
        let text = serde_json::json!({"version": 1, "changes": [change]}).to_string();
        fs::write(&record, text).unwrap();
        fs::write(&path, "a\n").unwrap();
        assert_eq!(undo(&record).unwrap().restored, [path]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_somebody_else_changed_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("setup.json");
        let path = dir.path().join("a");
        let mut plan = Plan::default();
        plan.change(Change::to(&path, "ours\n".to_owned(), "x").unwrap());
        fs::write(&path, "theirs\n").unwrap();
        let error = apply(&plan, &record).unwrap_err().to_string();
        assert!(error.contains("changed since"), "{error}");
        fs::remove_file(&path).unwrap();
        apply(&plan, &record).unwrap();
        fs::write(&path, "edited by hand\n").unwrap();
        let undone = undo(&record).unwrap();
        assert_eq!(
            (undone.restored, undone.kept),
            (Vec::new(), vec![path.clone()])
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "edited by hand\n");
        // It is still known, for when that was seen to.
        fs::write(&path, "ours\n").unwrap();
        assert_eq!(undo(&record).unwrap().restored, [path]);
    }

    #[test]
    fn lines_that_go_are_shown_as_well_as_those_that_come() {
        let change = |before: Option<&str>, after: &str| {
            let change = Change {
                path: "a".into(),
                before: before.map(str::to_owned),
                after: after.to_owned(),
                why: String::new(),
            };
            change.lines()
        };
        assert_eq!(change(None, "a\nb\n"), ["+ a", "+ b"]);
        assert_eq!(change(Some("a\nb\n"), "new\na\nb\n"), ["+ new"]);
        assert_eq!(change(Some("a\ngoes\nb\n"), "a\nb\n"), ["- goes"]);
        // A line that is there already may come a second time.
        assert_eq!(change(Some("}\n"), "}\n}\n"), ["+ }"]);
        let both = change(Some("a\nx\nb\n"), "a\ny\nb\n");
        assert_eq!(both, ["- x", "+ y"]);
        assert!(change(Some("a\n"), "a\n").is_empty());
    }

    fn plan_of(path: &Path, text: &str) -> Plan {
        let mut plan = Plan::default();
        plan.change(Change::to(path, text.to_owned(), "x").unwrap());
        plan
    }

    /// A setup that is killed between the record and the file leaves what a former one wrote.
    #[test]
    fn a_second_setup_that_is_interrupted_is_undone_to_what_was_there_at_first() {
        for goes_on in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (record, path) = (dir.path().join("setup.json"), dir.path().join("a"));
            fs::write(&path, "theirs\n").unwrap();
            apply(&plan_of(&path, "first\n"), &record).unwrap();
            apply(&plan_of(&path, "second\n"), &record).unwrap();
            fs::write(&path, "first\n").unwrap();
            if goes_on {
                apply(&plan_of(&path, "second\n"), &record).unwrap();
            }
            let undone = undo(&record).unwrap();
            assert_eq!(undone.restored, std::slice::from_ref(&path));
            assert_eq!(fs::read_to_string(&path).unwrap(), "theirs\n");
        }
    }

    #[test]
    fn a_setup_that_fails_takes_back_its_own_files_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("setup.json");
        let (former, edited, new) = (
            dir.path().join("former"),
            dir.path().join("edited"),
            dir.path().join("sub/new"),
        );
        apply(&plan_of(&former, "of another engine\n"), &record).unwrap();
        let recorded = fs::read(&record).unwrap();
        fs::write(&edited, "theirs\n").unwrap();
        let mut plan = plan_of(&edited, "ours\n");
        plan.change(Change::to(&new, "ours\n".to_owned(), "x").unwrap());
        let error = plan.apply(&record, || bail!("it is not accepted"));
        let error = format!("{:#}", error.unwrap_err());
        assert_eq!(error, "nothing was changed: it is not accepted");
        // A directory that cannot be made: the first file is written by then.
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        let mut plan = plan_of(&edited, "ours\n");
        let below = dir.path().join("dangling/new");
        plan.change(Change::to(&below, "ours\n".to_owned(), "x").unwrap());
        apply(&plan, &record).unwrap_err();
        assert_eq!(fs::read_to_string(&edited).unwrap(), "theirs\n");
        assert!(!new.exists());
        assert_eq!(fs::read(&former).unwrap(), b"of another engine\n");
        assert_eq!(fs::read(&record).unwrap(), recorded);
    }
}
