//! The database of advisories of RustSec: a directory for each crate, with a document for each advisory, which begins
//! with its data.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use semver::{Version, VersionReq};
use serde::Deserialize;

use super::graph::{Crate, Graph};

/// What was found.
pub(super) struct Found {
    /// How many advisories the database has of crates of the build.
    pub(super) known: usize,
    /// The day of the newest one of all.
    pub(super) newest: String,
    /// Those that apply.
    pub(super) faults: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Document {
    advisory: Advisory,
    versions: Versions,
}

#[derive(Debug, Deserialize)]
struct Advisory {
    id: String,
    date: String,
    withdrawn: Option<String>,
    /// Absent of a vulnerability.
    informational: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Versions {
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
}

/// Looks for advisories that apply to what comes into the build; those in `ignored` do not.
///
/// # Errors
/// If the directory is no such database.
pub(super) fn find(database: &Path, graph: &Graph, ignored: &[&str]) -> anyhow::Result<Found> {
    let mut found = Found {
        known: 0,
        newest: String::new(),
        faults: Vec::new(),
    };
    let dir = database.join("crates");
    let names = fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))?;
    for name in names {
        let name = name?;
        let crates = graph.crates.iter();
        let crates: Vec<_> = crates.filter(|one| name.file_name() == *one.name).collect();
        for document in fs::read_dir(name.path())? {
            let path = document?.path();
            let text = fs::read_to_string(&path)?;
            let document = parse(&text).with_context(|| format!("reading {}", path.display()))?;
            found.newest = document.advisory.date.clone().max(found.newest);
            found.known += usize::from(!crates.is_empty());
            if ignored.contains(&&*document.advisory.id) {
                continue;
            }
            let faults = crates.iter().filter_map(|one| applies(&document, one));
            found.faults.extend(faults);
        }
    }
    Ok(found)
}

fn parse(text: &str) -> anyhow::Result<Document> {
    let data = text
        .split_once("```toml\n")
        .and_then(|(_, rest)| rest.split_once("\n```"));
    let (data, _) = data.context("it does not begin with its data")?;
    Ok(toml::from_str(data)?)
}

/// Returns what an advisory says of a crate, if it applies.
fn applies(document: &Document, to: &Crate) -> Option<String> {
    let Advisory {
        id,
        withdrawn,
        informational,
        ..
    } = &document.advisory;
    let Versions {
        patched,
        unaffected,
    } = &document.versions;
    let version: Version = to.version.parse().ok()?;
    let is_good = patched
        .iter()
        .chain(unaffected)
        .any(|rule| rule.matches(&version));
    let is_notice = informational.as_deref() == Some("notice");
    let is_ours = to.source.is_none();
    if withdrawn.is_some() || is_good || is_notice || is_ours {
        return None;
    }
    let kind = informational.as_deref().unwrap_or("vulnerability");
    Some(format!("{} {}: {id} ({kind})", to.name, to.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_applies_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let of = dir.path().join("crates/a");
        fs::create_dir_all(&of).unwrap();
        let write = |id: &str, more: &str, patched: &str| {
            let text = format!(
                "```toml\n[advisory]\nid = \"{id}\"\npackage = \"a\"\ndate = \"2026-0{}-01\"\n{more}\n[versions]\n\
                 patched = {patched}\n```\n\n# Title\n",
                &id[id.len() - 1..],
            );
            fs::write(of.join(format!("{id}.md")), text).unwrap();
        };
        write("R-1", "", "[\">= 1.2.4\"]");
        write("R-2", "", "[\">= 1.2.3\"]");
        write("R-3", "withdrawn = \"2026-01-02\"", "[]");
        write("R-4", "informational = \"unmaintained\"", "[]");
        write("R-5", "informational = \"notice\"", "[]");
        write("R-6", "", "[]");
        let one = |source: Option<&str>| Crate {
            name: "a".to_owned(),
            version: "1.2.3".to_owned(),
            license: None,
            source: source.map(ToOwned::to_owned),
            uses: Vec::new(),
            is_built: true,
        };
        let graph = Graph {
            crates: vec![one(Some("registry"))],
        };
        let found = find(dir.path(), &graph, &["R-6"]).unwrap();
        let mut faults = found.faults;
        faults.sort();
        assert_eq!(
            faults,
            [
                "a 1.2.3: R-1 (vulnerability)",
                "a 1.2.3: R-4 (unmaintained)"
            ]
        );
        assert_eq!((found.known, &*found.newest), (6, "2026-06-01"));
        let own = Graph {
            crates: vec![one(None)],
        };
        assert!(find(dir.path(), &own, &[]).unwrap().faults.is_empty());
        assert!(find(&of, &graph, &[]).is_err());
    }
}
