//! `yolofs block convert`: block images of container images and disks.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use blockimages::convert::{
    Codec, ConvertOptions, Converted, ConvertedDisk, DataPlace, FileSystem, Pushed, RegistryImage,
    SourceImage, ZFileOptions, convert, convert_disk, push,
};
use clap::ValueEnum;
use engine::ImageName;
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;
use oci::registry::{Access, RegistryConfig, Repository, Target};
use oci::{Platform, Reference};
use serde::Serialize;

use super::access;
use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};

/// Make a block image of a container image or a disk, without root
///
/// The device of a container image is a file system with all its files. Each layer becomes a blob that overlaybd reads, too, and that
/// images share: the directory is an OCI layout with all of them. What was converted can be served from
/// DIR/NAME.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ConvertArgs {
    /// oci:DIR[:TAG], docker-archive:FILE[:REF], docker://REF of a registry, or a raw or qcow2 disk
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The directory of converted images
    #[arg(id = "images", value_name = "DIR")]
    dir: PathBuf,
    /// What the image is called in the directory
    #[arg(long, value_name = "NAME", default_value = "image")]
    name: String,
    /// The file system of a container image: EROFS is mounted from a file, ext4 can be written
    #[arg(long, value_name = "KIND", value_enum, default_value = "erofs")]
    fs: FsArg,
    /// Make only an index (turboOCI): data is read from the layers of the container image, which have to stay
    #[arg(long)]
    turbo: bool,
    /// How blocks are compressed
    #[arg(long, value_enum, default_value = "lz4")]
    codec: CodecArg,
    /// Bytes of a block: 4, 8, 16 or 32 KiB
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block_size: Size,
    /// Bytes of the device of a container image; what is not used takes no room
    #[arg(long, value_name = "SIZE", default_value = "64G")]
    size: Size,
    /// Then push the image to a registry under this name
    #[arg(long, value_name = "REF")]
    push: Option<Reference>,
    /// Only say what would be converted
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    registry: RegistryArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FsArg {
    Erofs,
    Ext4,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CodecArg {
    Lz4,
    Zstd,
}

/// What was done.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Done {
    Image {
        #[serde(flatten)]
        converted: Converted,
        #[serde(skip_serializing_if = "Option::is_none")]
        pushed: Option<Pushed>,
    },
    Disk(ConvertedDisk),
    Planned {
        source: String,
        layers: usize,
    },
}

pub(super) fn run(args: &ConvertArgs) -> anyhow::Result<Outcome> {
    let logins = args.logins()?;
    let new = access::make_dir(&args.dir, args.dry_run)?;
    access::convert(&args.source, args.push.as_ref(), new)?.confine()?;
    let interrupt = Interrupt::install()?;
    let bar = progress::counter("converting");
    let mut watch = |done: u64| {
        bar.set_position(done);
        match interrupt.asked() {
            true => std::ops::ControlFlow::Break(()),
            false => std::ops::ControlFlow::Continue(()),
        }
    };
    let done = work(args, &logins, &mut watch);
    bar.finish_and_clear();
    interrupt.check()?;
    print(args.format.format(), &done?, text)?;
    Ok(Outcome::Done)
}

/// How the registries are talked to that the command line names.
struct Logins {
    source: Option<(Reference, RegistryConfig)>,
    target: Option<RegistryConfig>,
}

fn work(args: &ConvertArgs, logins: &Logins, watch: oci::Watch<'_>) -> anyhow::Result<Done> {
    let failed = || format!("converting {}", args.source);
    let options = args.options()?;
    let Some(image) = args.image(logins, &mut *watch).with_context(failed)? else {
        if args.push.is_some() {
            bail!("a disk has no manifest to push: leave --push out");
        }
        let disk = Path::new(&args.source);
        if args.dry_run {
            disk.metadata().with_context(failed)?;
            return Ok(args.planned(1));
        }
        let disk = convert_disk(disk, &args.dir, &args.name, &options, watch);
        return Ok(Done::Disk(disk.with_context(failed)?));
    };
    if args.dry_run {
        return Ok(args.planned(image.diff_ids().len()));
    }
    let converted = convert(&*image, &args.dir, &args.name, &options, &mut *watch);
    let converted = converted.with_context(failed)?;
    let target = args.push.as_ref().zip(logins.target.as_ref());
    let pushed = target.map(|(reference, config)| {
        let repository = Repository::open(reference, Access::Push, config)?;
        let target = Target::of(reference);
        push(&args.dir, converted.manifest, &repository, &target, watch)
            .with_context(|| format!("pushing {reference}"))
    });
    Ok(Done::Image {
        converted,
        pushed: pushed.transpose()?,
    })
}

impl ConvertArgs {
    fn planned(&self, layers: usize) -> Done {
        let source = self.source.clone();
        Done::Planned { source, layers }
    }

    /// Finds the logins; a program that knows them may be asked.
    fn logins(&self) -> anyhow::Result<Logins> {
        let source = match ImageName::parse(&self.source)? {
            Some(ImageName::Docker { reference }) => {
                let reference: Reference = reference.parse()?;
                let config = self.registry.config(&reference)?;
                Some((reference, config))
            }
            _ => None,
        };
        let target = self.push.as_ref();
        let target = target.map(|reference| self.registry.config(reference));
        Ok(Logins {
            source,
            target: target.transpose()?,
        })
    }

    fn options(&self) -> anyhow::Result<ConvertOptions> {
        let block_size = u32::try_from(self.block_size.0)?;
        if ![4, 8, 16, 32].contains(&(block_size >> 10)) || !block_size.is_power_of_two() {
            bail!("--block-size must be 4K, 8K, 16K or 32K");
        }
        Ok(ConvertOptions {
            file_system: match self.fs {
                FsArg::Erofs => FileSystem::Erofs,
                FsArg::Ext4 => FileSystem::Ext4,
            },
            data: match self.turbo {
                true => DataPlace::Referred,
                false => DataPlace::Copied,
            },
            compression: ZFileOptions {
                codec: match self.codec {
                    CodecArg::Lz4 => Codec::Lz4,
                    CodecArg::Zstd => Codec::Zstd,
                },
                block_size,
                ..ZFileOptions::default()
            },
            virtual_size: self.size.0,
        })
    }

    /// Returns the container image that is to be converted; `None` if it is a disk.
    fn image(
        &self,
        logins: &Logins,
        watch: oci::Watch<'_>,
    ) -> anyhow::Result<Option<Box<dyn SourceImage>>> {
        if let Some((reference, config)) = &logins.source {
            let image = RegistryImage::find(reference, config, watch)?;
            return Ok(Some(Box::new(image)));
        }
        let platform = Platform::host();
        Ok(Some(match ImageName::parse(&self.source)? {
            None | Some(ImageName::Docker { .. }) => return Ok(None),
            Some(ImageName::OciLayout { dir, tag }) => {
                Box::new(oci::layout::open(&dir, tag.as_deref(), &platform)?)
            }
            Some(ImageName::DockerArchive { file, reference }) => {
                Box::new(oci::archive::open(&file, reference.as_deref(), &platform)?)
            }
            Some(ImageName::Containerd { .. }) => bail!(
                "images of containerd are not read from its store: export it (ctr image export), and convert \
                 oci-archive's directory, or convert docker://REF"
            ),
        }))
    }
}

fn text(done: &Done) -> String {
    match done {
        Done::Planned { source, layers } => {
            format!("{source}: {layers} layers would be converted\n")
        }
        Done::Disk(disk) => format!(
            "{} ({} bytes of a device of {})\n",
            disk.config.display(),
            disk.size,
            disk.device
        ),
        Done::Image { converted, pushed } => {
            let reused = converted.layers.iter().filter(|layer| layer.reused).count();
            let bytes: u64 = converted.layers.iter().map(|layer| layer.size).sum();
            let pushed = pushed.map_or_else(String::new, |pushed| {
                format!("; pushed {} blobs, {} bytes", pushed.blobs, pushed.bytes)
            });
            format!(
                "{} ({} layers, {bytes} bytes, {reused} layers known before{pushed})\n",
                converted.config.display(),
                converted.layers.len()
            )
        }
    }
}
