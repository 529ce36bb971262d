//! `nicfetch import`: makes sources of a directory, a disk image or a container image, for mounts
//! that have them nowhere else.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use chunks::Stay;
use chunks::index::build;
use engine::ImageName;
use nicfetch::admin::ListedSource;
use oci::{LayerBlob, Platform};
use serde::Serialize;

use super::admin::Admin;
use super::image::{TakenImage, take_image};
use super::operator::AdminArgs;
use super::place::PlaceArgs;
use super::pulled::{Pulled, ToPull};
use super::shelf::{Here, Shelf, There};
use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::{Format, FormatArg, print};
use host::interrupt::Interrupt;
use host::progress;
use host::progress::Bar;
use host::size::Size;
use mounting::confinement::{Asks, Intake, Rights};
use mounting::source::Source;

/// Take a directory, a disk image or a container image as a source of the block service
///
/// Every file is read once and cut into chunks of 128 KiB; equal ones are kept once. A source of
/// this name that is there already is replaced for those who open it from now on. Of a container
/// image each layer becomes a source by its diff ID (sha256:...), and all of them on each other one by
/// the image's name, which runs as it is: yolofs mount nic:NAME. It goes to the nicfetch that runs,
/// or with --store, or if none runs, to a store that none has open.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// A directory, a disk image, oci:DIR[:TAG], docker-archive:FILE[:REF], or docker://IMAGE, which
    /// is pulled from its registry
    source: PathBuf,
    /// What it is called from now on [default: the name of the image]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    place: PlaceArgs,
    /// Keep it when room is needed, until nicfetch unpin
    #[arg(long)]
    pin: bool,
    /// Put layers that are pulled in this directory until they are taken [default: TMPDIR]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// A directory or a disk image that was taken, as `--json` shows it.
#[derive(Debug, Serialize)]
struct TakenTree {
    #[serde(flatten)]
    whole: ListedSource,
    /// Bytes of chunks that were not there before.
    new_bytes: u64,
}

/// Where it goes.
#[derive(Clone, Copy)]
enum Where {
    /// To a nicfetch that runs.
    There,
    /// To a store that none has open.
    Here,
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
        /// Removes what was pulled when it is over.
        _pulled: Option<Pulled>,
    },
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<Outcome> {
    let running = args.running()?;
    let wanted = args.wanted()?;
    let shelf = running.as_ref().map_or(Where::Here, |_| Where::There);
    args.confine(&wanted, shelf)?;
    let interrupt = Interrupt::install()?;
    let shelf: Box<dyn Shelf> = match running {
        Some(running) => Box::new(There(running)),
        None => Box::new(Here(args.place.open()?)),
    };
    let format = args.format.format();
    match args.what(wanted, &interrupt)? {
        What::Tree => take_tree(args, &*shelf, &interrupt, format)?,
        What::Image { name, layers, .. } => {
            let bar = progress::bytes(
                "reading the layers",
                layers.iter().map(LayerBlob::size).sum(),
            );
            let taken = take_image(
                &name,
                &layers,
                &*shelf,
                args.stay(),
                &mut watch(&bar, &interrupt),
            );
            bar.finish_and_clear();
            interrupt.check()?;
            let taken = taken.with_context(|| format!("importing {}", args.source.display()))?;
            print(format, &taken, image_text)?;
        }
    }
    Ok(Outcome::Done)
}

impl ImportArgs {
    const fn stay(&self) -> Stay {
        match self.pin {
            true => Stay::Pinned,
            false => Stay::WhileUsed,
        }
    }

    /// Finds the nicfetch that keeps what is imported, if one runs and no other place is named.
    fn running(&self) -> anyhow::Result<Option<Admin>> {
        if self.place.store.is_some() {
            return Ok(None);
        }
        let running = match self.admin.admin {
            Some(_) => Some(Admin::connect(&self.admin)?),
            None => Admin::find(&self.admin)?,
        };
        ensure!(
            running.is_none() || self.place.size.is_none(),
            "the nicfetch that runs has its own --size: leave it out, or name a --store"
        );
        Ok(running)
    }

    fn wanted(&self) -> anyhow::Result<Wanted> {
        let named = self.source.to_str().map(ImageName::parse).transpose()?;
        Ok(match named.flatten() {
            None => Wanted::Tree,
            Some(ImageName::OciLayout { dir, tag }) => Wanted::Layout { dir, tag },
            Some(ImageName::DockerArchive { file, reference }) => {
                Wanted::Archive { file, reference }
            }
            Some(ImageName::Docker { reference }) => {
                let scratch = self.scratch.clone().unwrap_or_else(std::env::temp_dir);
                let pull = ToPull::prepare(&reference, &self.registry, &scratch);
                Wanted::Registry {
                    pull: Box::new(pull.with_context(|| format!("pulling {reference}"))?),
                    reference,
                }
            }
            Some(ImageName::Containerd { .. }) => bail!(
                "containerd's images are not read here: save it with ctr images export, and \
                 import that as docker-archive:FILE"
            ),
        })
    }

    /// Leaves to this process what it takes to import that. A directory or a disk image is this machine's
    /// own, whoever's its files are.
    fn confine(&self, wanted: &Wanted, shelf: Where) -> anyhow::Result<()> {
        let (mut reads, mut writes, mut clears) = (Vec::new(), Vec::new(), Vec::new());
        let mut asks = match shelf {
            Where::There => self.admin.asks(),
            Where::Here => {
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
        let whole = whole.context("the image has no whole name there: say --name")?;
        Ok(whole.to_string())
    }
}

fn take_tree(
    args: &ImportArgs,
    shelf: &dyn Shelf,
    interrupt: &Interrupt,
    format: Format,
) -> anyhow::Result<()> {
    let name = args.name.as_deref();
    let name = name.context("say what the source is called from now on, with --name")?;
    let source = Source::open(&args.source)?;
    let bar = progress::bytes("reading the source", source.bytes());
    let built = build(
        name.as_bytes(),
        &source.tree,
        &*source.reader(),
        shelf.chunks(),
        &mut watch(&bar, interrupt),
    );
    bar.finish_and_clear();
    interrupt.check()?;
    let built = built.with_context(|| format!("importing {}", args.source.display()))?;
    let taken = TakenTree {
        whole: shelf.add(name, &built.index, args.stay())?,
        new_bytes: built.new_bytes,
    };
    print(format, &taken, |taken| text(&taken.whole, taken.new_bytes))
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

fn text(source: &ListedSource, new_bytes: u64) -> String {
    format!(
        "{}: {} files, {} in {} chunks, {} of it new\nindex {}\n",
        source.name,
        source.files,
        Size(source.bytes),
        source.chunks,
        Size(new_bytes),
        source.index
    )
}

fn image_text(taken: &TakenImage) -> String {
    let layers = taken.layers.iter();
    let layers = layers.map(|layer| format!("layer {} ({})\n", layer.name, Size(layer.bytes)));
    text(&taken.whole, taken.new_bytes) + &layers.collect::<String>()
}
