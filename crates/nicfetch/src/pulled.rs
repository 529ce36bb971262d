//! An image that is pulled from its registry to be imported, and is removed afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use oci::registry::{Access, RegistryConfig, Repository, Target};
use oci::{CONFIG_MAX, Descriptor, ImageConfig, LayerBlob, Platform, Reference};

use host::interrupt::Interrupt;
use host::own_dir::OwnDir;
use host::progress;

/// How the directories begin that images are pulled into.
const PREFIX: &str = "nicfetch-import-";

/// The layers of an image, in a directory that goes when this is dropped.
pub(crate) struct Pulled {
    /// The directory, until it is removed.
    dir: Option<OwnDir>,
    /// The image's full name.
    pub(crate) name: String,
    /// The lowest first.
    pub(crate) layers: Vec<LayerBlob>,
}

impl Drop for Pulled {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.dir.take().map(OwnDir::remove) {
            log::warn!("{error:#}");
        }
    }
}

/// Returns how to connect to the registry of a reference, and the credentials.
pub type RegistryLogin<'a> = dyn Fn(&Reference) -> anyhow::Result<RegistryConfig> + 'a;

/// An image that is to be pulled.
pub(crate) struct ToPull {
    reference: Reference,
    config: RegistryConfig,
    pulled: Pulled,
}

impl ToPull {
    /// Determines how to connect to an image's registry, and creates a directory for it below `scratch`: all that
    /// needs more rights, and comes before the first byte from the registry.
    ///
    /// # Errors
    /// If the credentials or the directory cannot be obtained.
    pub(crate) fn prepare(
        reference: &str,
        config: &RegistryLogin<'_>,
        scratch: &Path,
    ) -> anyhow::Result<Self> {
        let reference: Reference = reference.parse()?;
        let config = config(&reference)?;
        fs::create_dir_all(scratch).with_context(|| format!("making {}", scratch.display()))?;
        OwnDir::sweep(scratch, PREFIX);
        let dir = OwnDir::make(scratch, PREFIX).context("choosing a directory (`scratch`)")?;
        Ok(Self {
            pulled: Pulled {
                dir: Some(dir),
                name: reference.to_string(),
                layers: Vec::new(),
            },
            reference,
            config,
        })
    }

    /// Returns the directory that it is pulled into.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.pulled.dir.as_ref().map(OwnDir::path)
    }

    /// Pulls its layers for this platform.
    ///
    /// # Errors
    /// If the registry does not give them, or the directory cannot be written.
    pub(crate) fn pull(self, interrupt: &Interrupt) -> anyhow::Result<Pulled> {
        let Self {
            reference,
            config,
            mut pulled,
        } = self;
        let repository = Repository::open(&reference, Access::Pull, &config);
        let repository = repository.context("setting up the registry")?;
        let bar = progress::bytes("pulling", 0);
        let mut quiet = |done| {
            bar.set_position(done);
            interrupted(interrupt)
        };
        let found = repository.image(&Target::of(&reference), &Platform::host(), &mut quiet)?;
        let (_, manifest) = found.context("the registry has no such image")?;
        bar.set_length(manifest.layers.iter().map(|layer| layer.size).sum());
        let len = manifest.config.size;
        ensure!(len <= CONFIG_MAX, "its configuration has {len} bytes");
        let config = pulled.blob(&repository, &manifest.config, &mut |_| {
            interrupted(interrupt)
        })?;
        let config = fs::read(&config).context("reading the image's configuration")?;
        let config = ImageConfig::decode(&config)?;
        let mut before = 0;
        for (layer, diff_id) in config.layers_of(&manifest)? {
            let path = pulled.blob(&repository, layer, &mut |done| {
                bar.set_position(before + done);
                interrupted(interrupt)
            })?;
            before += layer.size;
            let blob = LayerBlob::from_file(&path, diff_id);
            pulled.layers.push(blob.context("opening a layer")?);
        }
        bar.finish_and_clear();
        Ok(pulled)
    }
}

impl Pulled {
    fn blob(
        &self,
        repository: &Repository,
        blob: &Descriptor,
        watch: oci::Watch<'_>,
    ) -> anyhow::Result<PathBuf> {
        let dir = self.dir.as_ref().context("the directory is gone")?;
        let path = dir.path().join(blob.digest.hex());
        // A layer may be there twice.
        if !path.exists() {
            repository.pull_blob(blob, &path, watch)?;
        }
        Ok(path)
    }
}

fn interrupted(interrupt: &Interrupt) -> std::ops::ControlFlow<()> {
    match interrupt.asked() {
        true => std::ops::ControlFlow::Break(()),
        false => std::ops::ControlFlow::Continue(()),
    }
}
