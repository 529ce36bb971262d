//! The names that a shell is offered. What cannot be read has none: an error would be in the way of who types.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bootstore::store::{DEFAULT_STORE, STORE_ENV, StoreSettings};
use clap::CommandFactory as _;
use clap_complete::ArgValueCandidates;
use clap_complete::engine::CompletionCandidate;

use crate::bootimg::Bootimg;
use crate::start::with_configuration;
use host::mount_table::{MOUNT_KIND, of_kind};

/// Most names that are offered: nobody reads more.
const OFFERED_MAX: usize = 1000;

/// Offers the boot images of the store by their names, and recorded container images by their references.
pub(crate) fn image_names() -> ArgValueCandidates {
    ArgValueCandidates::new(|| images(&store_dir()).unwrap_or_default())
}

/// Offers the places where something of ours is mounted. No daemon is asked: one may hang.
pub(crate) fn mountpoints() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let places = of_kind(MOUNT_KIND).unwrap_or_default().into_iter();
        offered(places.map(|place| (place.into_os_string(), "mounted here".to_owned())))
    })
}

fn images(dir: &Path) -> anyhow::Result<Vec<CompletionCandidate>> {
    // Whose store this is not must not be made one by a key of a keyboard.
    let settings = StoreSettings {
        dir: dir.to_owned(),
        max_bytes: u64::MAX,
        group: None,
        tiers: None,
    };
    let Some(store) = settings.open_existing()? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for stack in store.stacks()? {
        found.push((
            OsString::from(stack.reference),
            "container image".to_owned(),
        ));
    }
    for image in store.list()? {
        // Those of layers go by the references of their container images.
        let names = image
            .names
            .iter()
            .filter(|name| !name.starts_with("sha256:"));
        let source = &image.info.source.label;
        found.extend(names.map(|name| (OsString::from(name), source.clone())));
    }
    Ok(offered(found))
}

fn offered(found: impl IntoIterator<Item = (OsString, String)>) -> Vec<CompletionCandidate> {
    let found = found.into_iter().take(OFFERED_MAX);
    let offer =
        |(name, what): (OsString, String)| CompletionCandidate::new(name).help(Some(what.into()));
    found.map(offer).collect()
}

/// Returns the store of the command line that is being typed: as its flag says, the environment, the
/// configuration file, or the default.
fn store_dir() -> PathBuf {
    let line: Vec<OsString> = std::env::args_os().collect();
    if let Some(dir) = flag(&line, "--store") {
        return dir.into();
    }
    if let Some(dir) = std::env::var_os(STORE_ENV).filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    let command = with_configuration(Bootimg::command());
    let configured = command.ok().and_then(|command| {
        let store = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some("store"));
        store?.get_default_values().first().map(PathBuf::from)
    });
    configured.unwrap_or_else(|| PathBuf::from(DEFAULT_STORE))
}

/// Returns the value of a flag that a line has.
fn flag(line: &[OsString], name: &str) -> Option<OsString> {
    let mut words = line.iter();
    while let Some(word) = words.next() {
        if word == name {
            return words.next().cloned();
        }
        let text = word.to_str().and_then(|word| word.strip_prefix(name));
        if let Some(value) = text.and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_has_its_value_in_one_word_or_two() {
        let line = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        let store = |text: &str| flag(&line(text), "--store");
        assert_eq!(store("bootimg --store /a ls"), Some("/a".into()));
        assert_eq!(store("bootimg ls --store=/a"), Some("/a".into()));
        assert_eq!(store("bootimg ls --store-max 1G --store"), None);
        assert_eq!(store("bootimg ls"), None);
    }
}
