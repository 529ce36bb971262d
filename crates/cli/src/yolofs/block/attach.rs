//! `yolofs block attach`, `detach`, and the status of what is attached.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use bootstore::store::StoreSettings;
use host::run_dir::RunDir;
use node_api::client::{CallError, NodeClient};
use node_api::device::{DeviceKind, DeviceSpec, DeviceView, check_name};
use node_api::image::{ImageSpec, Prefetch};

use super::ImageArg;
use crate::exit::Outcome;
use crate::image_args;
use crate::output::{FormatArg, print};
use crate::run_dir_arg::RunDirArg;

/// What HTTP says of things that are not there.
const NOT_FOUND: u16 = 404;

/// Have the node serve an image, from now on and after a reboot, until it is detached
///
/// The device outlives the process that serves it, the node and an upgrade of both: clients that reconnect wait.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::yolofs) struct AttachArgs {
    #[command(flatten)]
    image: ImageArg,
    /// What the device is called; or with a `/` where its socket or the link to it is, or its directory with --mount
    /// [default place: below the run directory]
    #[arg(value_name = "NAME|PATH")]
    name: PathBuf,
    /// Serve NBD on a unix socket; the default
    #[arg(long)]
    nbd: bool,
    /// Serve vhost-user-blk on a unix socket
    #[arg(long, conflicts_with = "nbd")]
    vhost_user: bool,
    /// Make a block device of this machine, and a symbolic link to it (Linux 6.9, the module ublk_drv)
    #[arg(long, conflicts_with_all = ["nbd", "vhost_user"])]
    ublk: bool,
    /// Mount a directory whose file `disk` is the device, to read only unless --writable says otherwise
    #[arg(long, conflicts_with_all = ["nbd", "vhost_user", "ublk"])]
    mount: bool,
    /// Mount the EROFS or ext4 of the image here, too; an ext4 can be written to with --writable
    #[arg(long, value_name = "DIR", requires = "mount")]
    erofs: Option<PathBuf>,
    /// Let clients write to a raw disk, or to a file; an image with a writable layer is served writable to others without it
    #[arg(long)]
    writable: bool,
    #[command(flatten)]
    background: super::export::BackgroundFlag,
    /// Fetch only what is read first
    #[arg(long, requires = "image_cache")]
    no_plan: bool,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn attach(
    args: &AttachArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let spec = spec(args, store, &run_dir)?;
    let attached = NodeClient::of(&run_dir).attach(&spec);
    let attached = attached.map_err(with_advice);
    let attached = attached.with_context(|| format!("attaching {}", spec.image.display()))?;
    print(args.format.format(), &attached.device, |device| {
        let DeviceView { name, address, .. } = device;
        format!("{name} is served at {address}\n")
    })?;
    Ok(Outcome::Done)
}

fn spec(args: &AttachArgs, store: &StoreSettings, run_dir: &RunDir) -> anyhow::Result<DeviceSpec> {
    args.image.refuse_what_needs_a_cache()?;
    let kind = match (args.vhost_user, args.ublk, args.mount) {
        (true, _, _) => DeviceKind::VhostUser,
        (_, true, _) => DeviceKind::Ublk,
        (_, _, true) => DeviceKind::File,
        (false, false, false) => DeviceKind::Nbd,
    };
    let (name, at) = name_and_place(&args.name, kind, run_dir)?;
    let image = args.image.path();
    let image = image
        .canonicalize()
        .with_context(|| format!("finding {}", image.display()))?;
    let options = image_args::spec(
        args.image.cache.as_deref(),
        (args.image.cache_limit, args.image.read_deadline),
        Prefetch::from(args.background.what),
        args.image.registry.spec()?,
        &args.image.mirror,
    )?;
    let spec = DeviceSpec {
        name,
        image,
        kind,
        at,
        erofs: args.erofs.as_deref().map(canonical).transpose()?,
        writable: args.writable,
        suid_dev: false,
        loop_device: false,
        store: store.absolute(),
        options: ImageSpec {
            plan: !args.no_plan,
            ..options
        },
    };
    spec.check()?;
    Ok(spec)
}

/// Returns the name of a device that is called or placed like this, and where it is.
fn name_and_place(
    said: &Path,
    kind: DeviceKind,
    run_dir: &RunDir,
) -> anyhow::Result<(String, PathBuf)> {
    let text = said.to_str().context("a name that is not UTF-8")?;
    if text.contains('/') {
        let at = match kind {
            DeviceKind::File => canonical(said)?,
            DeviceKind::Nbd | DeviceKind::VhostUser | DeviceKind::Ublk => in_canonical_dir(said)?,
        };
        return Ok((RunDir::id_of(&at), at));
    }
    check_name(text)?;
    let file = match kind {
        DeviceKind::File => format!("{text}.mnt"),
        DeviceKind::Nbd | DeviceKind::VhostUser => format!("{text}.sock"),
        DeviceKind::Ublk => format!("{text}.dev"),
    };
    Ok((text.to_owned(), run_dir.path().join("devices").join(file)))
}

fn canonical(dir: &Path) -> anyhow::Result<PathBuf> {
    let found = dir.canonicalize();
    found.with_context(|| format!("finding the directory {}", dir.display()))
}

/// Returns the path of a file that may not be there yet.
fn in_canonical_dir(path: &Path) -> anyhow::Result<PathBuf> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("{} is no path of a socket or link", path.display());
    };
    Ok(canonical(dir)?.join(name))
}

/// End devices of the node
///
/// What is in flight is answered first, but for reads that wait for a registry longer than 2 s, and what was written made
/// durable. What is being attached is given up. A name that is no device is fine.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::yolofs) struct DetachArgs {
    /// What they are called, or where they are
    #[arg(required = true, value_name = "NAME|PATH")]
    names: Vec<PathBuf>,
}

pub(super) fn detach(args: &DetachArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let node = NodeClient::of(&run_dir);
    for said in &args.names {
        let name = name_of(said, &node)?;
        match node.detach(&name) {
            Ok(())
            | Err(CallError::Refused {
                status: NOT_FOUND, ..
            }) => {}
            Err(error) => {
                let error = with_advice(error);
                return Err(error.context(format!("detaching {}", said.display())));
            }
        }
    }
    Ok(Outcome::Done)
}

/// Returns the name of a device: what was said, or that of the device at this place.
fn name_of(said: &Path, node: &NodeClient) -> anyhow::Result<String> {
    let text = said.to_str().context("a name that is not UTF-8")?;
    if !text.contains('/') {
        check_name(text)?;
        return Ok(text.to_owned());
    }
    let at = std::path::absolute(said)?;
    let at = in_canonical_dir(&at).unwrap_or(at);
    let devices = node.devices().map_err(with_advice)?;
    let is_there = |device: &&DeviceView| {
        let address = &device.address;
        let socket = address
            .rsplit_once("?socket=")
            .map_or(&**address, |(_, path)| path);
        Path::new(socket) == at || Path::new(socket).parent() == Some(&at)
    };
    let found = devices.iter().find(is_there);
    Ok(found.map_or_else(|| RunDir::id_of(&at), |device| device.name.clone()))
}

/// Shows what is attached.
pub(super) fn status(format: FormatArg, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let devices = match NodeClient::of(&run_dir).devices() {
        // Without a node nothing is attached.
        Err(CallError::Nobody(_)) => Vec::new(),
        devices => devices?,
    };
    print(format.format(), &devices, |devices| {
        devices.iter().map(line).collect::<String>()
    })?;
    let failed = devices.iter().filter(|device| device.error.is_some());
    ensure!(failed.count() == 0, "some devices are not served");
    Ok(Outcome::Done)
}

fn line(device: &DeviceView) -> String {
    let DeviceView {
        name,
        image,
        address,
        state,
        ..
    } = device;
    let mut line = format!("{name}  {state}  {}  {address}", image.display());
    if let Some(served) = &device.served {
        let access = if served.writable {
            "writable"
        } else {
            "read only"
        };
        line += &format!(
            "  {} bytes, {access}, {} clients",
            served.size, served.clients
        );
    }
    if let Some(erofs) = &device.erofs {
        line += &format!("  mounted on {}", erofs.display());
    }
    if let Some(error) = &device.error {
        line += &format!("  {error}");
    }
    line + "\n"
}

/// Says what to do when there is no node.
pub(super) fn with_advice(error: CallError) -> anyhow::Error {
    match error {
        CallError::Nobody(socket) => anyhow::anyhow!(
            "no node listens on {}: start it (yolofs node), or serve the image yourself (yolofs block export)",
            socket.display()
        ),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_place_and_a_place_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(dir.path()).unwrap();
        let place = |said: &str, kind| name_and_place(Path::new(said), kind, &run_dir);
        let (name, at) = place("web", DeviceKind::Nbd).unwrap();
        assert_eq!(
            (&*name, at),
            ("web", run_dir.path().join("devices/web.sock"))
        );
        let (name, at) = place("web", DeviceKind::File).unwrap();
        assert_eq!(
            (&*name, at),
            ("web", run_dir.path().join("devices/web.mnt"))
        );
        let (_, at) = place("web", DeviceKind::Ublk).unwrap();
        assert_eq!(at, run_dir.path().join("devices/web.dev"));
        for hostile in ["..", ".", "-x", "a b", ""] {
            place(hostile, DeviceKind::Nbd).unwrap_err();
        }
        let socket = run_dir.path().join("s");
        let (name, at) = place(socket.to_str().unwrap(), DeviceKind::VhostUser).unwrap();
        assert_eq!((name, at), (RunDir::id_of(&socket), socket));
        place("/none/s", DeviceKind::Nbd).unwrap_err();
    }
}
