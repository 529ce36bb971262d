//! The process that unpacks the image of a layout or an archive: it does all parsing of untrusted data.
//!
//! The recorder mounts, and starts the image's program, so it cannot be confined much itself. This process is the
//! same program again, with access to the image, to read, and to one directory, to unpack it in: without network,
//! and without executing programs. Its result is a line that the recorder reads with a bound.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::{Read as _, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, anyhow, bail, ensure};
use blocks::Digest;
use engine::ImageName;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use oci::unpack::Limits;
use oci::{Image, RunConfig};
use serde::{Deserialize, Serialize};

use host::interrupt::Interrupt;
use mounting::confinement::{Asks, Intake, Rights};

/// Bytes of an answer. Configurations have some KiB, and 8 MiB at most.
const ANSWER_MAX: u64 = 32 << 20;
/// Who may look into a layer, once there: as into any directory of a container.
const PLAIN: u32 = 0o755;

/// The unpacked image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// What the layout or archive calls it.
    pub(crate) name: Option<String>,
    /// The digest of its configuration.
    pub(crate) id: Digest,
    /// The digest of its manifest, if it has one.
    pub(crate) manifest: Option<Digest>,
    /// How its containers are run.
    pub(crate) config: RunConfig,
    /// The diff IDs of its layers, the lowest first, which is unpacked in `0`.
    pub(crate) layers: Vec<Digest>,
}

/// What the process answers.
#[derive(Debug, Serialize, Deserialize)]
enum Response {
    Unpacked(Box<Found>),
    Failed { why: String },
}

/// Unpacks an image below our directory in a separate process, and waits for it.
///
/// # Errors
/// If it cannot be started, fails, or is killed.
pub(crate) fn by_process(
    image: &ImageName,
    into: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Found> {
    let mut child = Command::new("/proc/self/exe")
        .args(["unpack-image", &image.to_string()])
        .arg(into)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the process that unpacks")?;
    let answer = answer(&mut child, interrupt);
    if answer.is_err() {
        let _gone = child.kill();
    }
    if interrupt.asked() {
        // It may hang in a file that does not answer. It ends with us.
        return Err(host::interrupt::Interrupted.into());
    }
    let status = child
        .wait()
        .context("waiting for the process that unpacks")?;
    let answer = answer?;
    ensure!(
        !answer.is_empty(),
        "the process that unpacks {image} ended without a response ({status}): the image may be hostile"
    );
    match serde_json::from_slice(&answer)
        .context("parsing the response of the process that unpacks")?
    {
        Response::Unpacked(found) => Ok(*found),
        Response::Failed { why } => Err(anyhow!(why)),
    }
}

/// Reads what it says until its end, or until the program is asked to end.
fn answer(child: &mut Child, interrupt: &Interrupt) -> anyhow::Result<Vec<u8>> {
    let mut pipe = child.stdout.take().context("it has no output")?;
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let mut fds = [
            PollFd::new(interrupt.fd(), PollFlags::POLLIN),
            PollFd::new(pipe.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled.context("waiting for the process that unpacks")?,
        };
        interrupt.check()?;
        let count = pipe.read(&mut piece);
        let count = count.context("reading the response of the process that unpacks")?;
        if count == 0 {
            return Ok(answer);
        }
        answer.extend_from_slice(&piece[..count]);
        ensure!(
            answer.len() as u64 <= ANSWER_MAX,
            "the response of the process that unpacks is too long"
        );
    }
}

/// Runs that process, which is started as `unpack-image IMAGE INTO`: unpacks the layers of an image, confined
/// to that, into directories below an empty one, and writes the result.
///
/// # Errors
/// If it cannot write the result.
pub fn unpack(image: &str, into: &Path, answer_to: &mut dyn Write) -> anyhow::Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("asking for a signal at the recorder's end")?;
    let answer = match unpack_confined(image, into) {
        Ok(found) => Response::Unpacked(Box::new(found)),
        Err(error) => Response::Failed {
            why: format!("{error:#}"),
        },
    };
    let line = serde_json::to_vec(&answer).context("writing the answer")?;
    answer_to.write_all(&line).context("answering the recorder")
}

fn unpack_confined(image: &str, into: &Path) -> anyhow::Result<Found> {
    let name = ImageName::parse(image)?;
    let name = name.context("the name of an image is missing")?;
    let (ImageName::OciLayout { dir: place, .. } | ImageName::DockerArchive { file: place, .. }) =
        &name
    else {
        bail!("{name} belongs to an engine, which unpacks it itself");
    };
    let intake = Intake {
        reads: vec![place.clone()],
        writes: vec![into.to_owned()],
        clears: Vec::new(),
        asks: Asks::Nobody,
        rights: Rights::Unpacks,
    };
    intake.confine()?;
    let image = open(&name).with_context(|| format!("opening {name}"))?;
    for (number, layer) in image.layers.iter().enumerate() {
        let into = into.join(number.to_string());
        let made = DirBuilder::new().mode(PLAIN).create(&into);
        made.and_then(|()| set_permissions(&into, Permissions::from_mode(PLAIN)))
            .with_context(|| format!("making {}", into.display()))?;
        let go_on = &mut |_| ControlFlow::Continue(());
        oci::unpack::unpack(layer, &into, &Limits::default(), go_on)
            .with_context(|| format!("unpacking layer {}", layer.diff_id.short()))?;
    }
    Ok(Found {
        config: image.config.run,
        layers: image.layers.iter().map(|layer| layer.diff_id).collect(),
        name: image.name,
        id: image.id,
        manifest: image.manifest,
    })
}

fn open(name: &ImageName) -> anyhow::Result<Image> {
    let platform = oci::Platform::host();
    match name {
        ImageName::OciLayout { dir, tag } => Ok(oci::layout::open(dir, tag.as_deref(), &platform)?),
        ImageName::DockerArchive { file, reference } => {
            Ok(oci::archive::open(file, reference.as_deref(), &platform)?)
        }
        ImageName::Docker { .. } | ImageName::Containerd { .. } => {
            bail!("{name} belongs to an engine, which unpacks it itself")
        }
    }
}
