//! `nicfetch import`: takes a directory, a disk image or a container image as a source of the block
//! service.

use std::path::PathBuf;

use anyhow::bail;
use chunks::Stay;
use engine::ImageName;
use host::size::Size;
use nicfetch::admin::ListedSource;
use nicfetch::image::TakenImage;
use nicfetch::import::{Import, Subject, Taken};

use super::args::{AdminArgs, PlaceArgs};
use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};

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
    /// Name of the source [default: the name of the image]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    place: PlaceArgs,
    /// Exempt it from eviction, until nicfetch unpin
    #[arg(long)]
    pin: bool,
    /// Directory for pulled layers during the import [default: TMPDIR]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<Outcome> {
    let import = args.import();
    let running = import.running()?;
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let login = |reference: &_| args.registry.config(reference);
    let taken = import.run(running, args.subject()?, &login, &scratch)?;
    let format = args.format.format();
    match &taken {
        Taken::Tree(tree) => print(format, tree, |tree| text(&tree.whole, tree.new_bytes))?,
        Taken::Image(image) => print(format, image, image_text)?,
    }
    Ok(Outcome::Done)
}

impl ImportArgs {
    fn import(&self) -> Import {
        Import {
            source: self.source.clone(),
            name: self.name.clone(),
            admin: self.admin.settings(),
            place: self.place.settings(),
            stay: match self.pin {
                true => Stay::Pinned,
                false => Stay::WhileUsed,
            },
        }
    }

    fn subject(&self) -> anyhow::Result<Subject> {
        let named = self.source.to_str().map(ImageName::parse).transpose()?;
        Ok(match named.flatten() {
            None => Subject::Tree,
            Some(ImageName::OciLayout { dir, tag }) => Subject::Layout { dir, tag },
            Some(ImageName::DockerArchive { file, reference }) => {
                Subject::Archive { file, reference }
            }
            Some(ImageName::Docker { reference }) => Subject::Registry { reference },
            Some(ImageName::Containerd { .. }) => bail!(
                "containerd's images are not read here: save it with ctr images export, and \
                 import that as docker-archive:FILE"
            ),
        })
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
