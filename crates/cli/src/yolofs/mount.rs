//! `yolofs mount`: has the node mount, or starts a daemon, and waits until it serves.

mod own_daemon;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use blocks::DeviceAccess;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use localfs::canonical_within;
use parking_lot::Mutex;

use super::by_node::{self, Until};
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::image_args::ImageArgs;
use crate::nic_args::NicArgs;
use crate::output::{Format, FormatArg, print};
use crate::run_dir_arg::RunDirArg;
use crate::xattrs_arg::XattrsArg;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::run_dir::{MountRecord, RunDir};
use host::size::Size;
use mounting::clones::adopt_for;
use mounting::confinement::ImageNeeds;
use mounting::daemon;
use mounting::request::{ImageOpener, MountRequest};
use node_api::boot_choice::BootChoice;
use node_api::client::CallError;
use node_api::image::ImageSpec;
use node_api::mount_daemon::ask_status;
use node_api::nic::NicName;
use node_api::serve_mode::ServeMode;
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use own_daemon::OwnDaemon;
use recording::until::seconds;

/// How long the source has for an answer in mounts of the node, and elsewhere unless told otherwise.
const SOURCE_DEADLINE: Duration = Duration::from_secs(30);

/// Mount a directory tree or a disk image, read-only
///
/// Returns when it is served. A second mount of the same source at the same place changes nothing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MountArgs {
    /// A directory tree, a disk image (raw or qcow2), a source of a block service (nic:NAME), or a block image, whose
    /// device is the file `disk` (overlaybd:IMAGE)
    pub(super) source: PathBuf,
    /// An existing directory; it may be the source itself
    pub(super) mountpoint: PathBuf,
    /// Boot image to serve from: a name or an id of the store, a file (with a `/`), `auto` (the
    /// newest of this source) or `none`
    #[arg(long, value_name = "IMAGE", default_value = "auto", add = image_names())]
    pub(super) boot: BootChoice,
    /// How to serve: `lower` for container trees, `disk` for disk images [default: by the source]
    #[arg(long, value_parser = serve_mode())]
    pub(super) mode: Option<ServeMode>,
    /// Write a trace of what is read to this file when it is unmounted
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Honour set-user-id programs and devices of the source (default: `nosuid,nodev`)
    #[arg(long)]
    pub(super) suid_dev: bool,
    #[command(flatten)]
    pub(super) xattrs: XattrsArg,
    /// Serve in this process instead of a daemon of its own
    #[arg(long)]
    pub(super) foreground: bool,
    /// The source never changes: take names and attributes from the boot image, read nothing
    #[arg(long, help_heading = "Validity", conflicts_with = "revalidate")]
    pub(super) trust: bool,
    /// The source may change while it is mounted: check it again after this many seconds
    #[arg(long, value_name = "SECS", help_heading = "Validity", value_parser = seconds)]
    pub(super) revalidate: Option<Duration>,
    /// Fail requests that the source has not answered after this many seconds
    #[arg(long, value_name = "SECS", default_value = "30", value_parser = seconds)]
    pub(super) source_deadline: Duration,
    /// Answer reads from the boot image one by one, without injecting it into the page cache
    #[arg(long, help_heading = "Prewarm")]
    pub(super) no_inject: bool,
    /// Return when the boot image is in the page cache, not before
    #[arg(long, help_heading = "Prewarm", conflicts_with = "no_inject")]
    pub(super) wait_prewarm: bool,
    /// Inject at most this much into the page cache
    #[arg(
        long,
        value_name = "SIZE",
        help_heading = "Prewarm",
        conflicts_with = "no_inject"
    )]
    pub(super) budget: Option<Size>,
    /// Lock injected pages in memory until the unmount
    #[arg(long, help_heading = "Prewarm", conflicts_with = "no_inject")]
    pub(super) lock: bool,
    /// How far the kernel reads ahead [default: the kernel's own, 128 KiB; 0 with --no-inject,
    /// because blocks beside recorded ones are on the disk]
    #[arg(long, value_name = "SIZE")]
    pub(super) readahead: Option<Size>,
    /// Serve in a daemon of its own, even if the node service runs
    #[arg(long, help_heading = "Service")]
    pub(super) standalone: bool,
    /// Extend the boot image when boots read more than was recorded; needs the node service
    #[arg(long, help_heading = "Service", conflicts_with_all = ["standalone", "foreground", "record", "trust", "revalidate"])]
    pub(super) auto: bool,
    /// Threads that answer requests
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) threads: u8,
    #[command(flatten)]
    pub(super) nic: NicArgs,
    #[command(flatten)]
    pub(super) image: ImageArgs,
    #[command(flatten)]
    pub(super) format: FormatArg,
}

/// Returns what the node is asked for.
fn spec(args: &MountArgs, store: &StoreSettings, mountpoint: &Path) -> anyhow::Result<MountSpec> {
    let image = args.block_image()?;
    let source = match (&image, NicName::of_source(&args.source)?) {
        (Some(image), _) => ImageSpec::source(image),
        (None, Some(_)) => args.source.clone(),
        (None, None) => {
            let source = canonical_within(&args.source, args.source_deadline);
            source.with_context(|| format!("opening the source {}", args.source.display()))?
        }
    };
    let boot = match &args.boot {
        // The node may run in another directory.
        BootChoice::File(path) => BootChoice::File(absolute(path)?),
        other => other.clone(),
    };
    Ok(MountSpec {
        source,
        mountpoint: mountpoint.to_owned(),
        store: store.absolute(),
        boot,
        mode: args.mode,
        inject: !args.no_inject,
        lock: args.lock,
        budget_bytes: args.budget.map(|size| size.0),
        readahead_kib: match args.readahead {
            Some(size) => Some(in_kib(size)),
            None if args.no_inject && args.boot != BootChoice::None => Some(0),
            None => None,
        },
        threads: args.threads,
        auto: args.auto,
        suid_dev: args.suid_dev,
        all_xattrs: args.xattrs.all_xattrs,
        plain: false,
        lasting: true,
        label: None,
        nic: args.nic.spec(&args.source)?,
        image: image.map(|_| args.image.spec()).transpose()?,
        writable: false,
    })
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("finding {}", path.display()))
}

/// Returns a size in KiB, as the kernel is told.
fn in_kib(size: Size) -> u32 {
    u32::try_from(size.0 >> 10).unwrap_or(u32::MAX)
}

/// Parses `--mode`.
fn serve_mode() -> impl TypedValueParser<Value = ServeMode> {
    let of = |mode: ServeMode, help: &'static str| PossibleValue::new(mode.name()).help(help);
    let values = [
        of(
            ServeMode::Lower,
            "For container trees: opens cost no request",
        ),
        of(
            ServeMode::Disk,
            "For disk images: whole files pass through to the source",
        ),
    ];
    PossibleValuesParser::new(values).try_map(|name| name.parse::<ServeMode>())
}

pub(super) fn run(
    args: &MountArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    args.refuse_what_needs_a_boot_image()?;
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let own_daemon = args.own_daemon(store, &run_dir)?;
    // It may be the source itself.
    let mountpoint = canonical_within(&args.mountpoint, args.source_deadline);
    let mountpoint = mountpoint.with_context(|| {
        format!(
            "opening the mount point {} (does it exist?)",
            args.mountpoint.display()
        )
    })?;
    for path in [&args.source, &mountpoint] {
        expect_utf8(path)?;
    }
    if args.block_image()?.is_none() {
        // A daemon may not write to the store.
        adopt_for(&args.request(store)?, store, &Interrupt::unarmed()?);
    }
    let Some(own_daemon) = own_daemon else {
        daemon::serve(&args.request(store)?, store, &run_dir, &mountpoint, &|_| {
            Ok(())
        })?;
        return Ok(Outcome::Done);
    };
    if let Some(existing) = run_dir.find(&mountpoint)?.filter(MountRecord::is_alive) {
        args.refuse_other_source(&existing)?;
        return served(args, &run_dir, &mountpoint);
    }
    if !args.is_standalone() {
        args.refuse_user_beside(&run_dir)?;
        let until = match args.wait_prewarm {
            true => Until::Prewarmed,
            false => Until::Mounted,
        };
        match by_node::mount(&spec(args, store, &mountpoint)?, &run_dir, until) {
            Err(CallError::Nobody(socket)) if args.auto => bail!(
                "--auto is for mounts of the node service, and none listens on {}: start it \
                 (yolofs node)",
                socket.display()
            ),
            Err(CallError::Nobody(_)) => {}
            done => {
                done?;
                return served(args, &run_dir, &mountpoint);
            }
        }
    }
    let warnings = own_daemon.start(&mountpoint, &log_of(&run_dir, &mountpoint))?;
    match args.format.format() {
        // It has said all that is printed: asking for its status would take milliseconds.
        Format::Text => {
            warn_of(&warnings);
            Ok(Outcome::Done)
        }
        Format::Json => served(args, &run_dir, &mountpoint),
    }
}

/// Refuses a path that cannot be written in JSON, in which mounts are noted and the node is asked.
fn expect_utf8(path: &Path) -> anyhow::Result<()> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    ensure!(
        path.to_str().is_some(),
        "{} is not in UTF-8, and mounts are known by paths that are: rename it, or bind-mount it at such a name",
        path.display()
    );
    Ok(())
}

/// Returns where the daemon of a mount logs.
fn log_of(run_dir: &RunDir, mountpoint: &Path) -> PathBuf {
    run_dir.log(&RunDir::id_of(mountpoint))
}

/// Tells what somebody should know of a mount.
fn warn_of(warnings: &[String]) {
    for warning in warnings {
        log::warn!("{warning}");
    }
}

/// Tells what is served now: with `--json` all of it, and else what somebody should know.
fn served(args: &MountArgs, run_dir: &RunDir, mountpoint: &Path) -> anyhow::Result<Outcome> {
    let found = || -> anyhow::Result<MountStatus> {
        if let Some(record) = run_dir.find(mountpoint)?.filter(MountRecord::is_alive) {
            return Ok(ask_status(run_dir, &record));
        }
        let mounts = by_node::mounts(run_dir)?.into_iter();
        let found = mounts.rev().find(|mount| mount.mountpoint == mountpoint);
        found.context("it is gone already")
    };
    let status = match found() {
        Ok(status) => status,
        // It is mounted all the same.
        Err(error) if args.format.format() == Format::Text => {
            log::warn!("cannot query the status of the mount: {error:#}");
            return Ok(Outcome::Done);
        }
        Err(error) => return Err(error.context("querying the status of the mount")),
    };
    warn_of(&status.warnings);
    print(args.format.format(), &status, |_| String::new())?;
    Ok(Outcome::Done)
}

impl MountArgs {
    /// Prepares a daemon of its own, unless this process is to serve. It ends by itself if the node serves the mount, or another daemon
    /// does already.
    fn own_daemon(
        &self,
        store: &StoreSettings,
        run_dir: &RunDir,
    ) -> anyhow::Result<Option<OwnDaemon>> {
        if self.foreground {
            return Ok(None);
        }
        let log = |mountpoint: &Path| log_of(run_dir, mountpoint);
        let daemon = OwnDaemon::prepare(log, |mountpoint, serving| {
            daemon::serve(&self.request(store)?, store, run_dir, mountpoint, serving)
        });
        daemon.map(Some)
    }

    /// Returns what the mount is to be, for a daemon of its own.
    fn request(&self, store: &StoreSettings) -> anyhow::Result<MountRequest> {
        let image = self.block_image()?;
        let opener = image.as_deref().map(|image| self.opener(image, store));
        Ok(MountRequest {
            source: image.map_or_else(|| self.source.clone(), |image| ImageSpec::source(&image)),
            boot: self.boot.clone(),
            mode: self.mode,
            record: self.record.clone(),
            suid_dev: self.suid_dev,
            xattrs: self.xattrs.answers(),
            trust: self.trust,
            revalidate: self.revalidate,
            source_deadline: self.source_deadline,
            no_inject: self.no_inject,
            wait_prewarm: self.wait_prewarm,
            budget_bytes: self.budget.map(|size| size.0),
            lock: self.lock,
            readahead_kib: self.readahead.map(in_kib),
            threads: self.threads,
            nic: self.nic.spec(&self.source)?,
            nic_share: self.nic.nic_share,
            image: opener.transpose()?,
        })
    }

    /// Returns the block image that the source names, if it is one.
    fn block_image(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(image) = ImageSpec::of_source(&self.source) else {
            self.image.refuse()?;
            return Ok(None);
        };
        let found = image.canonicalize();
        found
            .map(Some)
            .with_context(|| format!("finding the image {}", image.display()))
    }

    /// Returns what opens the block image of this mount.
    fn opener(&self, image: &Path, store: &StoreSettings) -> anyhow::Result<ImageOpener> {
        let (image, spec, store) = (image.to_owned(), self.image.spec()?, store.absolute());
        let images = devices::Images::default();
        let how = (DeviceAccess::ReadOnly, devices::Opening::First);
        // What fetches its layers does so as long as the image is open.
        let kept = Mutex::new(None);
        let needs = ImageNeeds::of(&image, &spec, &store, false);
        let read_deadline = spec.read_deadline();
        let open = Arc::new(move || {
            let opened = images.open(&image, &spec, &store, how)?;
            let device = Arc::clone(&opened.device);
            *kept.lock() = Some(opened);
            Ok(device)
        });
        Ok(ImageOpener {
            read_deadline,
            open,
            needs,
            identity: self.image.daemon_user()?,
        })
    }

    /// Checks that the daemon that serves the mount point already serves this source.
    fn refuse_other_source(&self, existing: &MountRecord) -> anyhow::Result<()> {
        let source = match (self.block_image()?, NicName::of_source(&self.source)?) {
            (Some(image), _) => ImageSpec::source(&image),
            (None, Some(name)) => name.label().into(),
            (None, None) => canonical_within(&self.source, self.source_deadline)
                .context("opening the source")?,
        };
        ensure!(
            existing.source == source,
            "{} is mounted on {} already: unmount it first (yolofs umount)",
            existing.source.display(),
            existing.mountpoint.display()
        );
        Ok(())
    }

    /// Checks that nothing is asked of the boot image where there is to be none. `--no-inject` asks for nothing.
    fn refuse_what_needs_a_boot_image(&self) -> anyhow::Result<()> {
        let given = [
            (self.wait_prewarm, "--wait-prewarm"),
            (self.budget.is_some(), "--budget"),
            (self.lock, "--lock"),
            (self.auto, "--auto"),
        ];
        for (is_given, flag) in given {
            ensure!(
                !is_given || self.boot != BootChoice::None,
                "{flag} is for mounts with a boot image: leave it or --boot none out"
            );
        }
        Ok(())
    }

    /// Checks that no user is named where a node would serve: it has said already who its workers are.
    fn refuse_user_beside(&self, run_dir: &RunDir) -> anyhow::Result<()> {
        if self.image.daemon_user_is_given() && by_node::listens(run_dir)? {
            bail!(
                "--worker-user is for a daemon of its own, and a node would serve this mount, as its own user \
                 (yolofs node --worker-user): add --standalone, or leave --worker-user out"
            );
        }
        Ok(())
    }

    /// Whether what is asked for needs a daemon of its own.
    fn is_standalone(&self) -> bool {
        self.standalone
            || self.source_deadline != SOURCE_DEADLINE
            || self.foreground
            || self.record.is_some()
            || self.trust
            || self.revalidate.is_some()
            || self.nic.nic_share
    }
}
