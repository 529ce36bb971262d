//! What images are called, and finding them by it.

use crate::{ImageId, StoreError};

/// Longest name, in bytes: well below NAME_MAX with what temporary files append.
const MAX: usize = 200;

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-:@+".contains(c)
}

/// Checks a name that a user gave: before a boot is recorded for it, not after.
///
/// # Errors
/// If the name is not allowed; the message describes the allowed ones.
pub fn check(name: &str) -> Result<(), StoreError> {
    let fits = (1..=MAX).contains(&name.len());
    if fits && !name.starts_with('.') && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(StoreError::Name {
        name: name.to_owned(),
    })
}

/// Makes a name of a source's label: `dir:/srv/root` becomes `srv-root`.
pub(super) fn derive(label: &str) -> String {
    let path = label.split_once(':').map_or(label, |(_, path)| path);
    let mut name: String = path
        .chars()
        .map(|c| if is_allowed(c) { c } else { '-' })
        .take(MAX / 2)
        .collect();
    name = name.trim_matches(['-', '.']).to_owned();
    if name.is_empty() {
        "image".clone_into(&mut name);
    }
    name
}

/// Returns the image that is called `what`, of these names and of these images.
pub(super) fn resolve(
    names: Vec<(String, Option<ImageId>)>,
    images: Vec<ImageId>,
    what: &str,
) -> Result<ImageId, StoreError> {
    let named = names.into_iter().find(|(name, _)| name == what);
    if let Some(id) = named
        .and_then(|(_, id)| id)
        .filter(|id| images.contains(id))
    {
        return Ok(id);
    }
    let starts = |id: &ImageId| !what.is_empty() && id.to_string().starts_with(what);
    let mut starting: Vec<_> = images.into_iter().filter(starts).collect();
    let count = starting.len();
    match starting.pop() {
        Some(id) if count == 1 => Ok(id),
        None => Err(StoreError::NotFound {
            what: what.to_owned(),
        }),
        Some(_) => Err(StoreError::Ambiguous {
            what: what.to_owned(),
            count,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_harmless_as_files() {
        for good in ["debian-12", "registry.local:5000", "a", "x@sha256:00"] {
            assert!(check(good).is_ok(), "{good}");
        }
        let long = "x".repeat(201);
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0", &long] {
            assert!(check(bad).is_err(), "{bad}");
        }
        for label in [
            "dir:/srv/root",
            "disk:/vm/debian 12.qcow2",
            "",
            "///",
            "..",
            &long,
        ] {
            assert!(check(&derive(label)).is_ok(), "{label}");
        }
        assert_eq!(derive("dir:/srv/root"), "srv-root");
    }
}
