//! Where a library or a program is after an upgrade that gave its file another name.

use std::path::{Path, PathBuf};

/// Returns the file that `path` stands for now: itself, or, if it is gone, the one that a link of a shorter name beside it leads
/// to, as `libz.so.1` leads to `libz.so.1.3` when `libz.so.1.2` is gone.
pub(crate) fn find(path: &Path) -> PathBuf {
    if path.symlink_metadata().is_ok() {
        return path.to_owned();
    }
    let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
    let leads_to = |link: PathBuf| {
        let target = link.is_symlink().then(|| link.canonicalize().ok())??;
        let is_beside = target.parent() == dir.as_deref();
        (is_beside && target.is_file()).then_some(target)
    };
    let found = shorter_names(path).into_iter().find_map(leads_to);
    found.unwrap_or_else(|| path.to_owned())
}

/// Returns `path` with ever fewer numbers at its end. The first number after `.so` stays: with another, a library is another one.
pub(crate) fn shorter_names(path: &Path) -> Vec<PathBuf> {
    let mut name = path.file_name().and_then(|name| name.to_str());
    let mut names = Vec::new();
    while let Some((shorter, number)) = name.and_then(|name| name.rsplit_once('.')) {
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || shorter.is_empty() || shorter.ends_with(".so") {
            break;
        }
        names.push(path.with_file_name(shorter));
        name = Some(shorter);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_keeps_the_number_of_its_interface() {
        let of = |name: &str| {
            let names = shorter_names(&Path::new("/usr/lib").join(name));
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            names.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(of("libz.so.1.2.13"), ["libz.so.1.2", "libz.so.1"]);
        assert_eq!(of("libc.so.6"), [""; 0]);
        assert_eq!(of("python3.11"), ["python3"]);
        assert_eq!(of("docker"), [""; 0]);
        assert_eq!(of(".1"), [""; 0]);
    }

    #[test]
    fn only_a_link_beside_it_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let old = dir.join("libz.so.1.2");
        std::fs::create_dir(dir.join("far")).unwrap();
        for name in ["libz.so.1.3", "far/libz.so.1.3"] {
            std::fs::write(dir.join(name), "x").unwrap();
        }
        let link = dir.join("libz.so.1");
        let point = |target: &str| {
            let _old = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).unwrap();
        };
        assert_eq!(find(&old), old, "there is no link");
        point("far/libz.so.1.3");
        assert_eq!(find(&old), old, "it leads elsewhere");
        point("libz.so.1.3");
        assert_eq!(find(&old), dir.join("libz.so.1.3"));
        std::fs::write(&old, "y").unwrap();
        assert_eq!(find(&old), old, "it is there");
    }
}
