//! `bootimg report`: collects what is known of images and of the node, and writes it as pages.
//!
//! Nothing is drawn here: [`collect`] fills the structs of the crate `report`, [`mounts`] asks the
//! daemons, [`page_file`] writes what comes out.

mod collect;
mod mounts;
mod node;
mod page_file;
mod subject;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use report::{ImageReport, Measured, NodeReport};
use serde::Serialize;

use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{Format, FormatArg, print, write_out};
use crate::run_dir_arg::RunDirArg;
use bootstore::store::StoreSettings;
use collect::Collector;
use host::size::Size;
use subject::Subject;

/// Write an HTML page about boot images or the node
///
/// One page for each image: its boot on a timeline, what was read, what missed, and what each layer
/// costs. Without an image, one page for the node, with all of them. A page is one file, needs no
/// network, and may be handed on.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bootimg report docker.io/library/nginx:1.25
  bootimg report web --measured boots.json --out web.html
  bootimg report --node --out /srv/www")]
pub(super) struct ReportArgs {
    /// References of container images, names or ids in the store, or files (with a `/`)
    #[arg(value_name = "IMAGE", add = image_names())]
    images: Vec<String>,
    /// Write the page of the node, too; without an image it is written anyway
    #[arg(long)]
    node: bool,
    /// Also show measurements: JSON as the benchmarks write it
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Write to this file, into this directory, or with - to standard output [default: IMAGE.html]
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    out: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// What `report --json` prints: what the pages are made of.
#[derive(Debug, Default, Serialize)]
struct Collected {
    images: Vec<ImageReport>,
    node: Option<NodeReport>,
}

pub(super) fn run(
    args: &ReportArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    let collected = collect(args, store, run_dir)?;
    if args.format.format() == Format::Json {
        print(Format::Json, &collected, |_| String::new())?;
        return Ok(Outcome::Done);
    }
    let images = collected.images.iter().map(Page::of_image);
    let pages: Vec<Page> = images
        .chain(collected.node.iter().map(Page::of_node))
        .collect();
    if args.out.as_deref() == Some(Path::new("-")) {
        ensure!(
            pages.len() == 1,
            "{} pages do not fit standard output: name a directory with --out",
            pages.len()
        );
        write_out(pages[0].html.as_bytes())?;
        return Ok(Outcome::Done);
    }
    for (path, page) in page_file::places(args.out.as_deref(), &pages)? {
        page_file::write_whole(&path, page.html.as_bytes())?;
        let size = Size(page.html.len() as u64);
        write_out(format!("{}: {size}\n", path.display()).as_bytes())?;
    }
    Ok(Outcome::Done)
}

/// A page, and what it is about.
#[derive(Debug)]
struct Page {
    name: String,
    html: String,
}

impl Page {
    fn of_image(image: &ImageReport) -> Self {
        Self {
            name: image.name.clone(),
            html: image.html(),
        }
    }

    fn of_node(node: &NodeReport) -> Self {
        Self {
            name: "node".to_owned(),
            html: node.html(),
        }
    }
}

fn collect(
    args: &ReportArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Collected> {
    let mut measured = args.measured.as_deref().map(read_measured).transpose()?;
    let store_max_bytes = store.max_bytes;
    let store = store.open_existing()?;
    let subjects = args.images.iter();
    let subjects = subjects
        .map(|wanted| Subject::find(wanted, store.as_ref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let wants_node = args.node || subjects.is_empty();
    let collector = Collector::new(store.as_ref(), mounts::all(run_dir)?)?;
    let mut collected = Collected::default();
    if wants_node {
        collected.node = Some(node::report(&collector, measured.clone(), store_max_bytes)?);
    }
    for subject in &subjects {
        let mut image = collector.image(subject)?;
        image.measured = take_measured(measured.as_mut(), &image);
        collected.images.push(image);
    }
    let rest = measured.map_or_else(Vec::new, Measured::into_rest);
    match &mut *collected.images {
        // Who names one image and one file of measurements means that they belong together.
        [only] if !wants_node && only.measured.is_empty() => only.measured = rest,
        _ if rest.is_empty() || wants_node => {}
        _ => log::warn!("{} of the measurements are of other images", rest.len()),
    }
    Ok(collected)
}

/// Writes the page about one image, with what was measured of it just now.
///
/// # Errors
/// If the store has no such image, or the page cannot be written.
pub(super) fn page_about(
    wanted: &str,
    measured: &[u8],
    path: &Path,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<()> {
    let store = store.open_existing()?;
    let subject = Subject::find(wanted, store.as_ref())?;
    let collector = Collector::new(store.as_ref(), mounts::all(run_dir)?)?;
    let mut image = collector.image(&subject)?;
    image.measured = Measured::parse(measured)?.into_rest();
    page_file::write_whole(path, image.html().as_bytes())
}

/// Takes out what was measured of an image, by all its names.
fn take_measured(measured: Option<&mut Measured>, image: &ImageReport) -> Vec<report::Comparison> {
    let names = image.other_names.iter().chain([&image.name]);
    let names: Vec<&str> = names.map(String::as_str).collect();
    measured.map_or_else(Vec::new, |measured| measured.take(&names))
}

fn read_measured(path: &Path) -> anyhow::Result<Measured> {
    let reading = || format!("reading the measurements in {}", path.display());
    let mut text = Vec::new();
    File::open(path)
        // One byte more than is taken, so that a longer file is refused and not cut.
        .and_then(|file| file.take(Measured::FILE_MAX + 1).read_to_end(&mut text))
        .with_context(reading)?;
    Measured::parse(&text).with_context(reading)
}
