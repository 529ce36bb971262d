//! What a package does when it comes and goes: the functions of `packaging/scripts.sh`, each in a script.

use std::path::Path;

use anyhow::Context as _;

/// Returns the functions, which a script begins with.
pub(super) fn functions(packaging: &Path) -> anyhow::Result<String> {
    let path = packaging.join("scripts.sh");
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// Returns a script of Debian: which function, for which first argument.
pub(super) fn debian(functions: &str, cases: &str) -> String {
    format!("#!/bin/sh\nset -e\n{functions}\n{cases}\n")
}

/// The scripts of a `.deb`: their names, and when they do what (deb-postinst(5) and others). The second argument of
/// `configure` is the version before, if there was one.
pub(super) const DEBIAN: [(&str, &str); 3] = [
    (
        "postinst",
        "case \"$1 $2\" in 'configure ') after_install ;; configure*) after_upgrade ;; esac",
    ),
    ("prerm", "case \"$1\" in remove) before_remove ;; esac"),
    (
        "postrm",
        "case \"$1\" in remove) after_remove ;; purge) after_purge ;; esac",
    ),
];

/// The scriptlets of an `.rpm`: their names, and when they do what. `$1` says how many versions there are then.
pub(super) const RED_HAT: [(&str, &str); 3] = [
    (
        "post",
        "if [ \"$1\" = 1 ]; then after_install; else after_upgrade; fi",
    ),
    ("preun", "if [ \"$1\" = 0 ]; then before_remove; fi"),
    // There is no purge: what was recorded stays.
    ("postun", "if [ \"$1\" = 0 ]; then after_remove; fi"),
];

#[cfg(test)]
mod tests {
    use super::super::layout::UNIT_DIRS;
    use super::*;

    /// Returns the names of the units that an administrator can enable.
    fn enabled(packaging: &Path) -> Vec<String> {
        let mut names = Vec::new();
        for dir in UNIT_DIRS {
            for entry in std::fs::read_dir(packaging.join(dir)).unwrap() {
                let path = entry.unwrap().path();
                let is_unit = path
                    .extension()
                    .is_some_and(|end| ["service", "socket", "timer"].iter().any(|of| end == *of));
                if is_unit
                    && std::fs::read_to_string(&path)
                        .unwrap()
                        .contains("[Install]")
                {
                    names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        names
    }

    #[test]
    fn every_unit_that_can_be_enabled_is_disabled_when_the_package_goes() {
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
        let functions = functions(&packaging).unwrap();
        let (_, before_remove) = functions.split_once("before_remove() {").unwrap();
        let (before_remove, _) = before_remove.split_once("\n}").unwrap();
        let disabled: Vec<&str> = before_remove
            .lines()
            .filter(|line| line.contains("systemctl disable"))
            .flat_map(str::split_whitespace)
            .collect();
        let units = enabled(&packaging);
        assert!(units.len() > 5, "{units:?}");
        for unit in units {
            let short = unit.strip_suffix(".service").unwrap_or(&unit);
            let is_named = disabled.contains(&&*unit) || disabled.contains(&short);
            assert!(is_named, "{unit} stays enabled");
        }
    }
}
