//! Links and tables of the documents: each link leads to a file or a heading that exists, each test that a table names is
//! there, and no row has lost its table. Nothing is fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, ensure};

mod page;
mod tests_named;

use page::Page;

/// Documents outside of `docs/`, as paths from the top; those that do not exist are left out.
const DOCUMENTS: [&str; 3] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// Folders whose Markdown files are documents.
const FOLDERS: [&str; 3] = ["docs", "crates", "packaging"];
/// Folders inside of these that have documents of others, or copies.
const SKIPPED: [&str; 3] = ["target", "corpus", "node_modules"];
/// The table of contents of the book: every page of `docs/` is in it.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Fails, and names every fault, where a link leads nowhere, a test is not there that a table names, a row is in no table,
/// or a page is missing in the book.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let pages = read(root)?;
    let mut faults = faults(root, &pages);
    let functions = tests_named::functions(root)?;
    for path in pages.keys() {
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        let named = tests_named::faults(&text, &functions).into_iter();
        faults.extend(named.map(|fault| format!("{}:{fault}", path.display())));
    }
    ensure!(
        faults.is_empty(),
        "{}\n{} faults in the documents",
        faults.join("\n"),
        faults.len()
    );
    Ok(())
}

/// Reads all documents, by their paths from the top.
fn read(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, Page>> {
    let mut paths: Vec<_> = DOCUMENTS.iter().map(PathBuf::from).collect();
    paths.retain(|path| root.join(path).is_file());
    for folder in FOLDERS {
        documents(root, Path::new(folder), &mut paths)?;
    }
    let mut pages = BTreeMap::new();
    for path in paths {
        let text = fs::read_to_string(root.join(&path))
            .with_context(|| format!("reading {}", path.display()))?;
        pages.insert(path, Page::parse(&text));
    }
    Ok(pages)
}

/// Appends the Markdown files below `folder`; a folder that does not exist has none.
fn documents(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                documents(root, &path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns what is wrong, each as `FILE:LINE: what`.
fn faults(root: &Path, pages: &BTreeMap<PathBuf, Page>) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            if let Err(why) = follow(root, pages, path, &link.target) {
                faults.push(format!("{}:{}: {why}", path.display(), link.line));
            }
        }
        let stray = |line| format!("{}:{line}: a row without a table", path.display());
        faults.extend(page.stray_rows.iter().map(stray));
        for source in &page.sources {
            let places = [
                root.join("crates").join(&source.target),
                root.join(&source.target),
            ];
            if !places.iter().any(|place| place.is_file()) {
                let (line, name) = (source.line, &source.target);
                faults.push(format!("{}:{line}: no source file {name}", path.display()));
            }
        }
    }
    if let Some(summary) = pages.get(Path::new(SUMMARY)) {
        faults.extend(unlisted(pages, summary));
    }
    faults
}

/// Follows one link from the document `from`.
fn follow(
    root: &Path,
    pages: &BTreeMap<PathBuf, Page>,
    from: &Path,
    target: &str,
) -> Result<(), String> {
    if is_url(target) {
        return Ok(());
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() {
        from.to_owned()
    } else {
        resolve(from, path).ok_or_else(|| format!("{target} leads out of the repository"))?
    };
    if !root.join(&to).exists() {
        return Err(format!("{target}: there is no {}", to.display()));
    }
    if anchor.is_empty() {
        return Ok(());
    }
    match pages.get(&to) {
        Some(page) if page.anchors.contains(anchor) => Ok(()),
        Some(_) => Err(format!(
            "{target}: {} has no heading #{anchor}",
            to.display()
        )),
        None => Err(format!("{target}: only documents have headings")),
    }
}

/// Whether a target has a scheme (`https:`, `mailto:`): such are not followed.
fn is_url(target: &str) -> bool {
    let scheme = target.split_once(':').map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the path from the top that `path` means in the document `from`, if it is inside.
fn resolve(from: &Path, path: &str) -> Option<PathBuf> {
    let mut to = from.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if to.pop() => {}
            Component::Normal(name) => to.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(to)
}

/// Names the pages of the book's folder that its table of contents does not list.
fn unlisted(pages: &BTreeMap<PathBuf, Page>, summary: &Page) -> Vec<String> {
    let summary_path = Path::new(SUMMARY);
    let listed: BTreeSet<_> = summary
        .links
        .iter()
        .filter_map(|link| resolve(summary_path, &link.target))
        .collect();
    pages
        .keys()
        .filter(|path| path.starts_with("docs") && path.as_path() != summary_path)
        .filter(|path| !listed.contains(*path))
        .map(|path| format!("{}: not in {SUMMARY}", path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the files to a new directory, and returns what is wrong with their links.
    fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        faults(directory.path(), &read(directory.path()).unwrap())
    }

    #[test]
    fn the_documents_of_this_workspace_are_sound() {
        check(&crate::workspace::root().unwrap()).unwrap();
    }

    #[test]
    fn sound_links_pass() {
        let faults = faults_of(&[
            (
                "README.md",
                "[a](docs/a.md) [b](docs/a.md#two-words) [c](https://example.com/x#y) \
                 [d](docs) [e][ref] <mailto:a@example.com> `[f](gone.md)`\n\n[ref]: docs/sub/b.md\n\n\
                 ```text\n[g](gone.md)\n```\n",
            ),
            (
                "docs/a.md",
                "# A\n\n## Two `words`\n\n[up](../README.md) [here](#two-words)\n",
            ),
            (
                "docs/sub/b.md",
                "[a](../a.md#a) `cli/tests/x.rs` [live] [one, two]\n",
            ),
            ("docs/SUMMARY.md", "- [A](a.md)\n- [B](sub/b.md)\n"),
            ("crates/cli/tests/x.rs", ""),
        ]);
        assert_eq!(faults, [""; 0]);
    }

    #[test]
    fn broken_links_are_named_with_file_and_line() {
        let faults = faults_of(&[
            ("README.md", "one\n\n[a](docs/gone.md)\n"),
            (
                "docs/a.md",
                "# A\n[a](#b)\n![p](p.svg)\n[x](../../out.md)\n[r][undefined]\n\
                 [s](../LICENSE#l)\n`cli/src/gone.rs`\n",
            ),
            ("crates/cli/README.md", "| a |\n| --- |\n| [t](lib.md) |\n"),
            ("LICENSE", ""),
        ]);
        assert_eq!(
            faults,
            [
                "README.md:3: docs/gone.md: there is no docs/gone.md",
                "crates/cli/README.md:3: lib.md: there is no crates/cli/lib.md",
                "docs/a.md:2: #b: docs/a.md has no heading #b",
                "docs/a.md:3: p.svg: there is no docs/p.svg",
                "docs/a.md:4: ../../out.md leads out of the repository",
                "docs/a.md:5: [undefined]: there is no docs/[undefined]",
                "docs/a.md:6: ../LICENSE#l: only documents have headings",
                "docs/a.md:7: no source file cli/src/gone.rs",
            ]
        );
    }

    #[test]
    fn a_row_behind_the_end_of_its_table_is_named() {
        let faults = faults_of(&[(
            "README.md",
            "| a |\n| --- |\n| b |\n\ntext that\n| c |\n\n```text\n| d |\n```\n",
        )]);
        assert_eq!(faults, ["README.md:6: a row without a table"]);
    }

    #[test]
    fn a_page_that_the_book_does_not_list_is_named() {
        let faults = faults_of(&[
            ("docs/SUMMARY.md", "- [A](a.md)\n"),
            ("docs/a.md", ""),
            ("docs/b.md", ""),
        ]);
        assert_eq!(faults, ["docs/b.md: not in docs/SUMMARY.md"]);
    }
}
