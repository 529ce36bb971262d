//! The access of workers of block images: a worker is started with the access that its images need.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mounting::confinement::ImageNeeds;
use node_api::device::DeviceSpec;
use node_api::image::ImageSpec;
use node_api::spec::MountSpec;
use node_records::company::Company;

use super::{ENDING, Pool};

/// The variable with which the node passes the needs of its images to a worker.
pub(super) const NEEDS_ENV: &str = "YOLOFS_WORKER_IMAGES";

/// What a worker is wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served<'a> {
    Mount(&'a MountSpec),
    Device(&'a DeviceSpec),
}

impl<'a> Served<'a> {
    pub(super) const fn mount(self) -> Option<&'a MountSpec> {
        match self {
            Self::Mount(spec) => Some(spec),
            Self::Device(_) => None,
        }
    }

    /// Returns the needs of its image, if it is one.
    pub(super) fn image_needs(self) -> Option<ImageNeeds> {
        match self {
            Self::Mount(spec) => {
                let image = ImageSpec::of_source(&spec.source)?;
                let options = spec.image.clone().unwrap_or_default();
                Some(ImageNeeds::of(image, &options, &spec.store, false))
            }
            Self::Device(spec) => {
                let (image, options) = (&spec.image, &spec.options);
                Some(ImageNeeds::of(image, options, &spec.store, spec.writable))
            }
        }
    }
}

/// Returns the variable that tells a worker its needs.
fn variable(needs: &ImageNeeds) -> anyhow::Result<(&'static str, OsString)> {
    let text = serde_json::to_string(needs).context("a path that is not UTF-8")?;
    Ok((NEEDS_ENV, text.into()))
}

/// Reads the needs from the node; `None` if the node is of a release without them.
///
/// # Errors
/// If they cannot be parsed.
pub(crate) fn told() -> anyhow::Result<Option<ImageNeeds>> {
    let Some(text) = std::env::var_os(NEEDS_ENV) else {
        return Ok(None);
    };
    let text = text.to_str().context("it is no text");
    let told = text.and_then(|text| Ok(serde_json::from_str(text)?));
    told.map(Some)
        .with_context(|| format!("reading {NEEDS_ENV}"))
}

/// Returns whether a worker that an earlier node has started may write to layers of any image: it was told so, or
/// nothing, as by an earlier release.
pub(super) fn may_write_anywhere(pid: u32) -> bool {
    let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = variables.split(|byte| *byte == 0);
    let told = variables.find_map(|variable| {
        let text = variable.strip_prefix(NEEDS_ENV.as_bytes())?;
        serde_json::from_slice::<ImageNeeds>(text.strip_prefix(b"=")?).ok()
    });
    told.is_none_or(|needs| needs.layers == everywhere())
}

/// Returns the place of layers that are not known yet.
fn everywhere() -> Vec<PathBuf> {
    vec![Path::new("/").to_owned()]
}

impl Pool {
    /// Returns the variable for a worker that is to be started for an image with these needs, and whether it writes to
    /// layers of any image. One that shares its cache with images that are written to serves images later whose places
    /// are not known yet.
    ///
    /// # Errors
    /// If a path is not UTF-8.
    pub(super) fn image_settings(
        &self,
        needs: Option<ImageNeeds>,
    ) -> anyhow::Result<(Option<(&'static str, OsString)>, bool)> {
        let Some(mut needs) = needs else {
            return Ok((None, false));
        };
        let cache = needs.cache.as_ref();
        let is_written = cache.is_some_and(|cache| self.written.lock().contains(cache));
        if is_written {
            needs.layers = everywhere();
        }
        Ok((Some(variable(&needs)?), is_written))
    }

    /// Has images that are written to served with this cache from now on: a worker that may not write to layers is
    /// replaced, once.
    pub(super) fn allow_writing(&self, company: &Company, needs: Option<&ImageNeeds>) {
        let needs = needs.filter(|needs| !needs.layers.is_empty());
        let Some(cache) = needs.and_then(|needs| needs.cache.as_ref()) else {
            return;
        };
        if !self.written.lock().insert(cache.clone()) {
            return;
        }
        // Nobody starts another one meanwhile that may not.
        let _one_at_a_time = self.starting.lock();
        for worker in self.all() {
            if worker.company == *company && !worker.writes {
                log::info!(
                    "worker {} is replaced by one that writes to layers of images with the cache {}",
                    worker.process.pid,
                    cache.display()
                );
                worker.replace();
                // The cache has one owner.
                let _ended = worker.handle.ended_within(ENDING);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_a_worker_was_told_is_read_back() {
        // Nothing was told to this process.
        assert!(may_write_anywhere(std::process::id()));
        assert_eq!(told().unwrap(), None);
        let cache = PathBuf::from("/cache");
        let needs = |layers| ImageNeeds {
            layers,
            cache: Some(cache.clone()),
            store: None,
        };
        for (layers, anywhere) in [(Vec::new(), false), (everywhere(), true)] {
            let (name, value) = variable(&needs(layers)).unwrap();
            let mut other = std::process::Command::new("cat");
            let other = other.env(name, value).stdin(Stdio::piped());
            let mut other = other.stdout(Stdio::piped()).spawn().unwrap();
            // When it answers, the kernel has its variables.
            let (mut ask, mut answer) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
            ask.write_all(b"?").unwrap();
            answer.read_exact(&mut [0]).unwrap();
            assert_eq!(may_write_anywhere(other.id()), anywhere);
            drop(ask);
            other.wait().unwrap();
        }
    }
}
