//! The access of workers of block images: a worker is started with the access that its images need.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mounting::confinement::ImageNeeds;
use node_api::device::{DeviceKind, DeviceSpec};
use node_api::image::ImageSpec;
use node_api::spec::MountSpec;
use node_records::company::Company;

use super::Pool;

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
                Some(ImageNeeds::of(image, &options, &spec.store, spec.writable))
            }
            Self::Device(spec) => {
                let (image, options) = (&spec.image, &spec.options);
                let needs = ImageNeeds::of(image, options, &spec.store, spec.writable);
                let rings = spec.kind == DeviceKind::Ublk;
                Some(ImageNeeds { rings, ..needs })
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

/// What workers of images may have beyond the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights {
    /// To write to layers of any image.
    pub writes: bool,
    /// To serve block devices of the machine.
    pub rings: bool,
}

impl Rights {
    fn needed(needs: &ImageNeeds) -> Self {
        Self {
            writes: !needs.layers.is_empty(),
            rings: needs.rings,
        }
    }

    const fn and(self, other: Self) -> Self {
        Self {
            writes: self.writes || other.writes,
            rings: self.rings || other.rings,
        }
    }

    /// Returns those of a worker that an earlier node has started: it was told so; or nothing, as by an earlier release.
    pub(super) fn of(pid: u32) -> Self {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = variables.split(|byte| *byte == 0);
        let told = variables.find_map(|variable| {
            let text = variable.strip_prefix(NEEDS_ENV.as_bytes())?;
            serde_json::from_slice::<ImageNeeds>(text.strip_prefix(b"=")?).ok()
        });
        Self {
            writes: (told.as_ref()).is_none_or(|needs| needs.layers == everywhere()),
            rings: told.is_some_and(|needs| needs.rings),
        }
    }
}

/// Returns the place of layers that are not known yet.
fn everywhere() -> Vec<PathBuf> {
    vec![Path::new("/").to_owned()]
}

impl Pool {
    /// Returns the variable for a worker that is to be started for an image with these needs, and its rights. One that
    /// shares its cache with images that are written to serves images later whose places are not known yet.
    ///
    /// # Errors
    /// If a path is not UTF-8.
    pub(super) fn image_settings(
        &self,
        needs: Option<ImageNeeds>,
    ) -> anyhow::Result<(Option<(&'static str, OsString)>, Rights)> {
        let Some(mut needs) = needs else {
            return Ok((None, Rights::default()));
        };
        let shared = needs.cache.as_ref();
        let shared = shared.and_then(|cache| self.rights.lock().get(cache).copied());
        let rights = shared.unwrap_or_default();
        if rights.writes {
            needs.layers = everywhere();
        }
        needs.rings |= rights.rings;
        Ok((Some(variable(&needs)?), rights))
    }

    /// Has all images with the cache of these needs served with what they take from now on: a worker that may not do
    /// it is replaced, once.
    pub(super) fn allow(&self, company: &Company, needs: Option<&ImageNeeds>) {
        let Some((cache, needs)) = needs.and_then(|needs| Some((needs.cache.as_ref()?, needs)))
        else {
            return;
        };
        let rights = {
            let mut known = self.rights.lock();
            let known = known.entry(cache.clone()).or_default();
            let rights = known.and(Rights::needed(needs));
            if *known == rights {
                return;
            }
            *known = rights;
            rights
        };
        // Nobody starts another one meanwhile that may not.
        let _one_at_a_time = self.starting.lock();
        for worker in self.all() {
            if worker.company == *company && worker.rights.and(rights) != worker.rights {
                log::info!(
                    "worker {} is replaced by one with the rights that images with the cache {} take now: {rights:?}",
                    worker.process.pid,
                    cache.display()
                );
                // The cache has one owner, so the next one waits for its end.
                let _ended = worker.end();
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
        let all = Rights {
            writes: true,
            rings: false,
        };
        assert_eq!(Rights::of(std::process::id()), all);
        assert_eq!(told().unwrap(), None);
        let cache = PathBuf::from("/cache");
        for (layers, writes, rings) in [
            (Vec::new(), false, false),
            (Vec::new(), false, true),
            (everywhere(), true, false),
        ] {
            let needs = ImageNeeds {
                layers,
                reads: None,
                cache: Some(cache.clone()),
                store: None,
                rings,
            };
            let (name, value) = variable(&needs).unwrap();
            let mut other = std::process::Command::new("cat");
            let other = other.env(name, value).stdin(Stdio::piped());
            let mut other = other.stdout(Stdio::piped()).spawn().unwrap();
            // When it answers, the kernel has its variables.
            let (mut ask, mut answer) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
            ask.write_all(b"?").unwrap();
            answer.read_exact(&mut [0]).unwrap();
            assert_eq!(Rights::of(other.id()), Rights { writes, rings });
            drop(ask);
            other.wait().unwrap();
        }
    }
}
