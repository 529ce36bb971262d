//! Makes sources of a directory, a disk image or a container image, for mounts that have them nowhere
//! else.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::admin::ListedSource;
use anyhow::{Context as _, ensure};
use chunks::Stay;
use chunks::index::build;
use oci::{LayerBlob, Platform};
use serde::Serialize;

use crate::client::AdminClient;
use crate::image::{TakenImage, take_image};
use crate::import_target::{ImportTarget, LocalTarget, RunningTarget};
use crate::operator::AdminSettings;
use crate::place::PlaceSettings;
use crate::pulled::{Pulled, RegistryLogin, ToPull};
use host::interrupt::Interrupt;
use host::progress;
use host::progress::Bar;
use mounting::confinement::{Asks, Intake, Rights};
use mounting::source::Source;

/// An import: its source and its target.
#[derive(Clone, Debug)]
pub struct Import {
    /// The source: a path, or the name of an image as the user wrote it.
    pub source: PathBuf,
    /// Its new name, if that is not the name of the image.
    pub name: Option<String>,
    /// The running nicfetch that receives it.
    pub admin: AdminSettings,
    /// The store that receives it if none runs.
    pub place: PlaceSettings,
    /// Whether it stays when room is needed.
    pub stay: Stay,
}

/// The kind of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A directory or a disk image.
    Tree,
    /// An image in a layout of OCI.
    Layout {
        /// The layout.
        dir: PathBuf,
        /// The image's tag.
        tag: Option<String>,
    },
    /// An image that `docker save` has written.
    Archive {
        /// The archive.
        file: PathBuf,
        /// The image's reference.
        reference: Option<String>,
    },
    /// An image that a registry has.
    Registry {
        /// Its name.
        reference: String,
    },
}

/// The result.
#[derive(Debug)]
pub enum Taken {
    /// A directory or a disk image.
    Tree(TakenTree),
    /// A container image.
    Image(TakenImage),
}

/// A directory or a disk image that was taken, as `--json` shows it.
#[derive(Debug, Serialize)]
pub struct TakenTree {
    /// The source of the whole image.
    #[serde(flatten)]
    pub whole: ListedSource,
    /// Bytes of chunks that were missing before.
    pub new_bytes: u64,
}

/// Where it goes.
#[derive(Clone, Copy)]
enum Where {
    /// To a nicfetch that runs.
    Running,
    /// To a store that no process has open.
    Local,
}

/// What is to be imported, of which nothing was looked at yet.
enum Wanted {
    Tree,
    Layout {
        dir: PathBuf,
        tag: Option<String>,
    },
    Archive {
        file: PathBuf,
        reference: Option<String>,
    },
    Registry {
        reference: String,
        pull: Box<ToPull>,
    },
}

/// What is to be imported.
enum What {
    Tree,
    Image {
        name: String,
        layers: Vec<LayerBlob>,
        /// Removes pulled files at the end.
        _pulled: Option<Pulled>,
    },
}

impl Import {
    /// Imports `subject`, which is the kind of the source. `login` returns how to connect to a registry; it is called
    /// before this process is confined.
    ///
    /// # Errors
    /// If the source cannot be read, no nicfetch accepts it, there is no space, or it is interrupted.
    pub fn run(
        &self,
        running: Option<AdminClient>,
        subject: Subject,
        login: &RegistryLogin<'_>,
        scratch: &Path,
    ) -> anyhow::Result<Taken> {
        let wanted = Wanted::prepare(subject, login, scratch)?;
        let target = running.as_ref().map_or(Where::Local, |_| Where::Running);
        self.confine(&wanted, target)?;
        let interrupt = Interrupt::install()?;
        let target: Box<dyn ImportTarget> = match running {
            Some(running) => Box::new(RunningTarget(running)),
            None => Box::new(LocalTarget(self.place.open()?)),
        };
        match self.what(wanted, &interrupt)? {
            What::Tree => self.take_tree(&*target, &interrupt).map(Taken::Tree),
            What::Image { name, layers, .. } => {
                let taken = self.take_layers(&name, &layers, &*target, &interrupt);
                taken.map(Taken::Image)
            }
        }
    }

    /// Finds the nicfetch that receives the import, if one runs and no other place is named.
    ///
    /// # Errors
    /// If it does not respond, or both it and the command line set the size.
    pub fn running(&self) -> anyhow::Result<Option<AdminClient>> {
        if self.place.store.is_some() {
            return Ok(None);
        }
        let running = match self.admin.admin {
            Some(_) => Some(AdminClient::connect(&self.admin)?),
            None => AdminClient::find(&self.admin)?,
        };
        ensure!(
            running.is_none() || self.place.size.is_none(),
            "the running nicfetch has its own `size`: omit it, or name a store of your own (`store`)"
        );
        Ok(running)
    }

    /// Leaves to this process what it takes to import that. A directory or a disk image is this machine's
    /// own, whoever's its files are.
    fn confine(&self, wanted: &Wanted, target: Where) -> anyhow::Result<()> {
        let (mut reads, mut writes, mut clears) = (Vec::new(), Vec::new(), Vec::new());
        let mut asks = match target {
            Where::Running => self.admin.asks(),
            Where::Local => {
                writes.push(self.place.make()?);
                Asks::Nobody
            }
        };
        match wanted {
            Wanted::Tree => return Ok(()),
            Wanted::Layout { dir: place, .. } | Wanted::Archive { file: place, .. } => {
                reads.push(place.clone());
            }
            Wanted::Registry { pull, .. } => {
                writes.extend(pull.dir().map(Path::to_owned));
                clears.extend(pull.dir().and_then(Path::parent).map(Path::to_owned));
                asks = Asks::Registry;
            }
        }
        let intake = Intake {
            reads,
            writes,
            clears,
            asks,
            rights: Rights::Keeps,
        };
        intake.confine()
    }

    fn what(&self, wanted: Wanted, interrupt: &Interrupt) -> anyhow::Result<What> {
        let platform = Platform::host();
        let image = match wanted {
            Wanted::Tree => return Ok(What::Tree),
            Wanted::Layout { dir, tag } => oci::layout::open(&dir, tag.as_deref(), &platform),
            Wanted::Archive { file, reference } => {
                oci::archive::open(&file, reference.as_deref(), &platform)
            }
            Wanted::Registry { reference, pull } => {
                let pulled = pull.pull(interrupt);
                let pulled = pulled.with_context(|| format!("pulling {reference}"))?;
                return Ok(What::Image {
                    name: self.name.clone().unwrap_or_else(|| pulled.name.clone()),
                    layers: pulled.layers.clone(),
                    _pulled: Some(pulled),
                });
            }
        };
        let image = image.with_context(|| format!("opening {}", self.source.display()))?;
        Ok(What::Image {
            name: self.image_name(image.name.as_deref())?,
            layers: image.layers,
            _pulled: None,
        })
    }

    /// Returns what an image is called: what the user says, or all of the name that it has.
    fn image_name(&self, own: Option<&str>) -> anyhow::Result<String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        // What has a slash is a name; layouts often have only a tag.
        let whole = own.filter(|own| own.contains('/'));
        let whole = whole.and_then(|own| own.parse::<oci::Reference>().ok());
        let whole = whole.context("the image has no full name there: give it one (`name`)")?;
        Ok(whole.to_string())
    }

    fn take_layers(
        &self,
        name: &str,
        layers: &[LayerBlob],
        target: &dyn ImportTarget,
        interrupt: &Interrupt,
    ) -> anyhow::Result<TakenImage> {
        let bytes = layers.iter().map(LayerBlob::size).sum();
        let bar = progress::bytes("reading the layers", bytes);
        let taken = take_image(name, layers, target, self.stay, &mut watch(&bar, interrupt));
        bar.finish_and_clear();
        interrupt.check()?;
        taken.with_context(|| format!("importing {}", self.source.display()))
    }

    fn take_tree(
        &self,
        target: &dyn ImportTarget,
        interrupt: &Interrupt,
    ) -> anyhow::Result<TakenTree> {
        let name = self.name.as_deref();
        let name = name.context("name the source (`name`)")?;
        let source = Source::open(&self.source)?;
        let bar = progress::bytes("reading the source", source.bytes());
        let built = build(
            name.as_bytes(),
            &source.tree,
            &*source.reader(),
            target.chunks(),
            &mut watch(&bar, interrupt),
        );
        bar.finish_and_clear();
        interrupt.check()?;
        let built = built.with_context(|| format!("importing {}", self.source.display()))?;
        Ok(TakenTree {
            whole: target.add(name, &built.index, self.stay)?,
            new_bytes: built.new_bytes,
        })
    }
}

impl Wanted {
    fn prepare(
        subject: Subject,
        login: &RegistryLogin<'_>,
        scratch: &Path,
    ) -> anyhow::Result<Self> {
        Ok(match subject {
            Subject::Tree => Self::Tree,
            Subject::Layout { dir, tag } => Self::Layout { dir, tag },
            Subject::Archive { file, reference } => Self::Archive { file, reference },
            Subject::Registry { reference } => {
                let pull = ToPull::prepare(&reference, login, scratch);
                Self::Registry {
                    pull: Box::new(pull.with_context(|| format!("pulling {reference}"))?),
                    reference,
                }
            }
        })
    }
}

fn watch<'a>(bar: &'a Bar, interrupt: &'a Interrupt) -> impl FnMut(u64) -> ControlFlow<()> + 'a {
    |bytes| {
        bar.set_position(bytes);
        match interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
