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
