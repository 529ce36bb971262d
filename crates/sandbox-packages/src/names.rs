//! Names of packages, wheels and requirements, as the Python packaging standards have them.

use crate::error::{PackageError, Result};

/// Requirements in one request, and the length of each: a project asks for some tens.
const REQUIREMENTS_MAX: usize = 256;
const REQUIREMENT_MAX_BYTES: usize = 512;

/// Returns the one spelling of a name: lower case, with single dashes.
pub(crate) fn normalized(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// Refuses what is not a requirement, such as an option, a path or an address: the installer would accept
/// it. Returns them in one order.
pub(crate) fn check_requirements(requirements: &[String]) -> Result<Vec<String>> {
    if requirements.is_empty() || requirements.len() > REQUIREMENTS_MAX {
        return Err(PackageError::Invalid(format!(
            "a request has from 1 to {REQUIREMENTS_MAX} requirements, such as django>=4"
        )));
    }
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"._-+[]<>=!~,;*() '\"".contains(&byte);
    let mut checked = Vec::new();
    for requirement in requirements {
        let requirement = requirement.trim();
        let begins = requirement.bytes().next();
        if requirement.len() > REQUIREMENT_MAX_BYTES
            || !begins.is_some_and(|byte| byte.is_ascii_alphanumeric())
            || !requirement.bytes().all(is_plain)
        {
            return Err(PackageError::Invalid(format!(
                "{requirement:?} is no requirement: a name and versions, such as django>=4"
            )));
        }
        checked.push(requirement.to_owned());
    }
    checked.sort();
    checked.dedup();
    Ok(checked)
}

/// A package in a version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pinned {
    pub(crate) name: String,
    pub(crate) version: String,
}

impl Pinned {
    /// Parses `NAME==VERSION`, whose parts become names of files.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let invalid = || {
            PackageError::Invalid(format!(
                "{text:?} is no package with its version, such as numpy==2.1.0"
            ))
        };
        let (name, version) = text.split_once("==").ok_or_else(invalid)?;
        Self::new(name, version).ok_or_else(invalid)
    }

    pub(crate) fn new(name: &str, version: &str) -> Option<Self> {
        let is_plain = |part: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+!-".contains(&byte);
            !part.is_empty()
                && part.len() <= 200
                && !part.starts_with('.')
                && part.bytes().all(plain)
        };
        let name = normalized(name);
        (is_plain(&name) && is_plain(version)).then(|| Self {
            name,
            version: version.to_owned(),
        })
    }

    /// Reads the name of a wheel: `NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl`.
    pub(crate) fn of_wheel(file: &str) -> Option<Self> {
        let parts: Vec<&str> = file.strip_suffix(".whl")?.split('-').collect();
        matches!(parts.len(), 5 | 6).then(|| Self::new(parts[0], parts[1]))?
    }

    /// `NAME==VERSION`: its name in requests for sandboxes, and the name of its directory.
    pub(crate) fn text(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_have_one_spelling() {
        for name in ["Foo.Bar", "foo_bar", "foo--bar", "FOO-_.bar"] {
            assert_eq!(normalized(name), "foo-bar");
        }
        let wheel = Pinned::of_wheel("Foo_Bar-1.0+cpu-1-py3-none-any.whl").unwrap();
        assert_eq!(wheel.text(), "foo-bar==1.0+cpu");
        for wrong in [
            "a-1.whl",
            "a-1-py3-none-any.zip",
            "-1-py3-none-any.whl",
            "a-..-py3-none-any.whl",
        ] {
            assert_eq!(Pinned::of_wheel(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn options_paths_and_addresses_are_no_requirements() {
        let check = |text: &str| check_requirements(&[text.to_owned()]);
        for right in [
            "django",
            "django>=4,<5",
            "a[b]~=1.0; python_version < '3.12'",
            "a==1.*",
        ] {
            check(right).unwrap();
        }
        for wrong in [
            "--index-url=x",
            "",
            "./a",
            "/etc",
            "a @ file:///etc",
            "git+https://x/y",
            "-e .",
            "a\nb",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        let sorted = check_requirements(&["b".into(), "a ".into(), "b".into()]).unwrap();
        assert_eq!(sorted, ["a", "b"]);
    }

    proptest! {
        /// Whatever a wheel is called, its package is one name in a directory.
        #[test]
        fn a_package_is_one_part_of_a_path(file in ".{0,60}", stem in "[a-zA-Z0-9._/-]{0,20}") {
            for file in [file, format!("{stem}-{stem}-py3-none-any.whl")] {
                if let Some(pinned) = Pinned::of_wheel(&file) {
                    let text = pinned.text();
                    prop_assert!(!text.contains('/') && !text.starts_with('.') && text.contains("=="));
                    prop_assert_eq!(Pinned::parse(&text).unwrap(), pinned);
                }
            }
        }
    }
}
