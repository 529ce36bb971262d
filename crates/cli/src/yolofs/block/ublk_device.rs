//! `yolofs block ublk-device`: makes, starts and ends a block device of this machine for its export, which is confined,
//! and so has no access to the driver. It does so once, for one link.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use blockexport::ublk::{Channel, KernelDevice, Rings, UblkConfig, UblkExporter, serve_on};
use blockexport::{Counts, Export, Exporter as _, Place};
use blocks::{BlockDevice, DeviceInfo};
use host::framed::{is_there, receive, send};
use nix::sys::signal::SigSet;
use serde::{Deserialize, Serialize};

use crate::exit::Outcome;

/// How long one side waits for the other to take a message.
const SEND: Duration = Duration::from_secs(10);
/// How long the export waits for an answer: longer than anything takes that the kernel is asked for.
const PATIENCE: Duration = Duration::from_secs(180);
/// What the device is to be is said after its image was opened, however long that takes. What follows takes less than this.
const ASKED: Duration = Duration::from_secs(10);

/// What the export asks for, in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Request {
    /// A device, or the one that a dead server left. The answer brings the file that its requests come from.
    Prepare { info: DeviceInfo, identity: String },
    /// That the export answers its users from now on.
    Start,
    /// Its end for its users.
    Stop,
    /// Its removal, after the export has stopped to answer.
    Delete,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Response {
    Prepared { id: u32, queues: u16, depth: u16 },
    Done,
    Failed { why: String },
}

/// Make a block device for the process at standard input, and end it when that asks for it
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UblkDeviceArgs {
    /// The symbolic link to it
    link: PathBuf,
}

pub(super) fn run(args: &UblkDeviceArgs) -> anyhow::Result<Outcome> {
    // The export hears these, and needs this process then.
    SigSet::all().thread_block().context("blocking signals")?;
    let stream = io::stdin().as_fd().try_clone_to_owned();
    let stream = UnixStream::from(stream.context("taking what the export handed over")?);
    let mut owner = Owner {
        link: &args.link,
        server: parent_id(),
        device: None,
    };
    // When the export is killed, its device stays for the next one.
    while is_there(&stream)? {
        let (request, _) = receive(&stream, Instant::now() + ASKED)?;
        let (response, file) = owner.fulfil(request);
        let beside: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        send(&stream, &response, &beside, Instant::now() + SEND)?;
    }
    Ok(Outcome::Done)
}

/// What has the driver.
struct Owner<'a> {
    link: &'a Path,
    /// The export.
    server: u32,
    /// The device, and whether it was started.
    device: Option<(KernelDevice, bool)>,
}

impl Owner<'_> {
    fn fulfil(&mut self, request: Request) -> (Response, Option<OwnedFd>) {
        match self.try_to(request) {
            Ok(done) => done,
            Err(error) => {
                let why = format!("{error:#}");
                (Response::Failed { why }, None)
            }
        }
    }

    fn try_to(&mut self, request: Request) -> anyhow::Result<(Response, Option<OwnedFd>)> {
        match (request, self.device.take()) {
            (Request::Prepare { info, identity }, None) => {
                let config = UblkConfig {
                    identity,
                    ..UblkConfig::default()
                };
                let kernel = KernelDevice::prepare(self.link, &info, &config)?;
                let channel = kernel.channel().inspect_err(|_| kernel.give_up())?;
                self.device = Some((kernel, false));
                let Channel {
                    file,
                    id,
                    queues,
                    depth,
                } = channel;
                Ok((Response::Prepared { id, queues, depth }, Some(file.into())))
            }
            (Request::Start, Some((kernel, false))) => {
                let started = kernel.start(self.link, self.server);
                started.inspect_err(|_| kernel.give_up())?;
                self.device = Some((kernel, true));
                Ok((Response::Done, None))
            }
            (Request::Stop, Some((kernel, true))) => {
                let stopped = kernel.stop(self.link);
                self.device = Some((kernel, true));
                stopped?;
                Ok((Response::Done, None))
            }
            // It could not be served.
            (Request::Delete, Some((kernel, false))) => {
                kernel.give_up();
                Ok((Response::Done, None))
            }
            (Request::Delete, Some((kernel, true))) => {
                kernel.delete();
                Ok((Response::Done, None))
            }
            (other, device) => {
                self.device = device;
                bail!("{other:?} is not to be asked for now")
            }
        }
    }
}

/// The export's end of it, and all that it needs to answer by itself.
pub(super) struct OwnedByOther {
    /// Held as long as this process serves.
    place: Place,
    link: PathBuf,
    rings: Rings,
    owner: Asked,
}

impl OwnedByOther {
    /// Claims a link, and starts the process that will have its device, while this process has all its rights.
    ///
    /// # Errors
    /// If another process has the link, or the kernel refuses.
    pub(super) fn start(link: &Path) -> anyhow::Result<Self> {
        let config = UblkConfig::default();
        let exporter = UblkExporter {
            link: link.to_owned(),
            config,
        };
        let place = exporter.claim().context("exporting")?;
        let rings = Rings::prepare(&exporter.config);
        let rings = rings.context("making rings for the requests of a block device")?;
        let (ours, its) = UnixStream::pair().context("making a pair of sockets")?;
        let process = Command::new("/proc/self/exe")
            .args(["block", "ublk-device"])
            .arg(link)
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::null())
            // What is typed at the terminal is not for it.
            .process_group(0)
            .spawn()
            .context("starting the process that makes the block device")?;
        Ok(Self {
            place,
            link: link.to_owned(),
            rings,
            owner: Asked {
                stream: Some(ours),
                process,
            },
        })
    }

    /// Serves the device.
    ///
    /// # Errors
    /// If it cannot be made, or is in use for another image.
    pub(super) fn export(
        self,
        device: Arc<dyn BlockDevice>,
        identity: String,
    ) -> anyhow::Result<OwnedExport> {
        let info = device.info();
        let (prepared, files) = self.owner.ask(&Request::Prepare { info, identity })?;
        let (Response::Prepared { id, queues, depth }, Some(file)) =
            (prepared, files.into_iter().next())
        else {
            bail!("the process that makes the block device gave none");
        };
        let channel = Channel {
            file: file.into(),
            id,
            queues,
            depth,
        };
        let served = serve_on(channel, self.rings, device, &UblkConfig::default());
        let served = served.inspect_err(|_| {
            let _removed = self.owner.ask(&Request::Delete);
        })?;
        if let Err(error) = self.owner.ask(&Request::Start) {
            // Its threads end with the device, or with this process.
            let _unserved = Box::leak(served);
            return Err(error);
        }
        Ok(OwnedExport {
            link: self.link,
            served: Some(served),
            owner: self.owner,
            _place: self.place,
        })
    }
}

/// The process that has the driver.
struct Asked {
    /// `None` when it is being ended.
    stream: Option<UnixStream>,
    process: Child,
}

impl Asked {
    fn ask(&self, request: &Request) -> anyhow::Result<(Response, Vec<OwnedFd>)> {
        let stream = self.stream.as_ref().context("it has ended")?;
        send(stream, request, &[], Instant::now() + SEND)
            .and_then(|()| receive(stream, Instant::now() + PATIENCE))
            .context("asking the process that has the block device")
            .and_then(|(response, files)| match response {
                Response::Failed { why } => bail!(why),
                response => Ok((response, files)),
            })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        drop(self.stream.take());
        if let Err(error) = self.process.wait() {
            log::warn!("cannot wait for the process that has the block device: {error}");
        }
    }
}

/// A block device that this process answers, and another one owns.
pub(super) struct OwnedExport {
    link: PathBuf,
    served: Option<Box<dyn Export>>,
    owner: Asked,
    _place: Place,
}

impl Export for OwnedExport {
    fn address(&self) -> String {
        self.link.display().to_string()
    }

    fn counts(&self) -> Counts {
        let served = self.served.as_ref().map(|served| served.counts());
        served.unwrap_or_default()
    }

    fn stop(self: Box<Self>) {}
}

impl Drop for OwnedExport {
    fn drop(&mut self) {
        let Some(served) = self.served.take() else {
            return;
        };
        if let Err(error) = self.owner.ask(&Request::Stop) {
            log::error!("{} cannot be ended: {error:#}", self.link.display());
            // Its threads answer until this process ends, and so they are not waited for.
            let _served = Box::leak(served);
            return;
        }
        served.stop();
        if let Err(error) = self.owner.ask(&Request::Delete) {
            let link = self.link.display();
            log::error!("the block device of {link} cannot be removed: {error:#}");
        }
    }
}
