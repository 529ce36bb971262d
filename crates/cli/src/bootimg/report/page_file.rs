//! Where pages go, and that they appear whole or not at all.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use rawio::destination::destination;

use super::Page;

/// Longest name of a file that is made of the name of an image, in bytes: file systems take 255.
const NAME_MAX: usize = 200;

/// Returns where each page goes.
///
/// # Errors
/// If two would go to the same file.
pub(super) fn places<'a>(
    out: Option<&Path>,
    pages: &'a [Page],
) -> anyhow::Result<Vec<(PathBuf, &'a Page)>> {
    let dir = match out {
        Some(out) if !out.is_dir() => {
            let [page] = pages else {
                bail!(
                    "{} pages need a directory, and {} is none: make it first",
                    pages.len(),
                    out.display()
                );
            };
            return Ok(vec![(out.to_owned(), page)]);
        }
        Some(dir) => dir,
        None => Path::new(""),
    };
    let mut places: Vec<(PathBuf, &Page)> = Vec::new();
    for page in pages {
        let path = dir.join(file_name(&page.name));
        if let Some((_, other)) = places.iter().find(|(taken, _)| *taken == path) {
            bail!(
                "{} and {} would both be written to {}: write one at a time, with --out FILE",
                other.name,
                page.name,
                path.display()
            );
        }
        places.push((path, page));
    }
    Ok(places)
}

/// Returns the name of the file for an image: what is more than letters, digits, `.`, `_` and `-`
/// becomes `-`, so that neither a directory nor an option is meant.
fn file_name(name: &str) -> String {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') => c,
        _ => '-',
    };
    let name: String = name.chars().map(plain).take(NAME_MAX).collect();
    let name = name.trim_matches(['-', '.']);
    let name = if name.is_empty() { "image" } else { name };
    format!("{name}.html")
}

/// Writes a file beside its place and moves it there.
///
/// # Errors
/// If it cannot be written; then what was there is still there.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let path = &destination(path).with_context(|| format!("writing {}", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ensure!(!name.is_empty(), "{} is not a file name", path.display());
    let aside = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    // What was left there, and not what a link of somebody's leads to.
    let _gone = fs::remove_file(&aside);
    let written = File::create_new(&aside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // Nothing to clean up where it could not even be made.
        let _gone = fs::remove_file(&aside);
    }
    written.with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_harmless() {
        for (image, file) in [
            (
                "docker.io/library/nginx:1.25",
                "docker.io-library-nginx-1.25.html",
            ),
            ("../../etc/passwd", "etc-passwd.html"),
            ("--out", "out.html"),
            ("<script>", "script.html"),
            ("///", "image.html"),
        ] {
            assert_eq!(file_name(image), file);
        }
        assert!(file_name(&"ä".repeat(1000)).len() < 255);
        assert!(file_name(&"a".repeat(1000)).len() < 255);
    }

    fn page(name: &str) -> Page {
        Page {
            name: name.to_owned(),
            html: String::new(),
        }
    }

    #[test]
    fn no_page_takes_the_place_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let pages = [page("a"), page("b")];
        let places = |out: Option<&Path>, pages| {
            let places = super::places(out, pages)?;
            anyhow::Ok(places.into_iter().map(|(path, _)| path).collect::<Vec<_>>())
        };
        let wanted = [dir.path().join("a.html"), dir.path().join("b.html")];
        assert_eq!(places(Some(dir.path()), &pages).unwrap(), wanted);
        assert_eq!(
            places(None, &pages).unwrap(),
            [Path::new("a.html"), Path::new("b.html")]
        );
        let one = Path::new("/nonexistent/x.html");
        assert_eq!(places(Some(one), &pages[..1]).unwrap(), [one]);
        let error = places(Some(one), &pages).unwrap_err().to_string();
        assert!(error.contains("need a directory"), "{error}");
        let error = places(None, &[page("a/b"), page("a:b")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("a/b and a:b"), "{error}");
    }

    #[test]
    fn a_page_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        // A directory is in the way: the rename fails.
        let taken = dir.path().join("taken");
        fs::create_dir_all(taken.join("x")).unwrap();
        assert!(write_whole(&taken, b"three").is_err());
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(write_whole(Path::new("/nonexistent/a.html"), b"").is_err());
    }
}
