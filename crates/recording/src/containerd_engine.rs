//! Containers of a recorded image, run by containerd.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use engine::containerd::{CtrRun, Exec};
use engine::{Containerd, Follow, Followed, LocalImage};

use crate::container_engine::{Engine, Running, Start};
use crate::own_check::OwnCheck;
use crate::undo::{Guard, Undo};
use host::run_dir::process_start;

/// Where an image of containerd's is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageLocation<'a> {
    pub(crate) address: &'a Path,
    pub(crate) snapshotter: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) reference: &'a str,
}

/// An image in containerd's store.
#[derive(Debug)]
pub(crate) struct ContainerdEngine {
    containerd: Rc<Containerd>,
    address: PathBuf,
    namespace: String,
    snapshotter: String,
    image: LocalImage,
    /// What all containers of this recording are called, up to a number.
    prefix: String,
    started: Cell<u16>,
}

impl ContainerdEngine {
    /// Finds an image.
    ///
    /// # Errors
    /// If containerd has no such image, or keeps its layers where we cannot mount over them.
    pub(crate) fn open(place: &ImageLocation<'_>) -> anyhow::Result<Self> {
        let containerd = Containerd::connect(place.address, place.namespace, place.snapshotter)?;
        let image = containerd.image(place.reference)?;
        let pid = std::process::id();
        Ok(Self {
            containerd: Rc::new(containerd),
            address: place.address.to_owned(),
            namespace: place.namespace.to_owned(),
            snapshotter: place.snapshotter.to_owned(),
            image,
            prefix: format!("yolofs-record-{pid}-{}", process_start(pid)?),
            started: Cell::new(0),
        })
    }

    fn id(&self, number: u16) -> String {
        format!("{}-{number}", self.prefix)
    }
}

impl Engine for ContainerdEngine {
    fn image(&self) -> &LocalImage {
        &self.image
    }

    fn check_is_there(&self) -> anyhow::Result<()> {
        let there = self.containerd.described(&self.image.reference)?;
        anyhow::ensure!(
            there.is_some(),
            "the image was deleted while it was recorded"
        );
        Ok(())
    }

    fn promise(&self, guard: &mut Guard, runs: u16) -> anyhow::Result<()> {
        for number in 1..=runs {
            guard.promise(Undo::ContainerdContainer {
                address: self.address.clone(),
                namespace: self.namespace.clone(),
                snapshotter: self.snapshotter.clone(),
                id: self.id(number),
            })?;
        }
        Ok(())
    }

    fn start(&self, start: &Start<'_>) -> anyhow::Result<Box<dyn Running>> {
        let number = self.started.get() + 1;
        self.started.set(number);
        let id = self.id(number);
        let started = Instant::now();
        let output = self.containerd.run(&CtrRun {
            reference: &self.image.reference,
            id: &id,
            options: start.options,
            command: start.command,
        })?;
        Ok(Box::new(ContainerdContainer {
            containerd: Rc::clone(&self.containerd),
            id,
            started,
            output,
            check: OwnCheck::new(&self.image.config),
        }))
    }
}

#[derive(Debug)]
struct ContainerdContainer {
    containerd: Rc<Containerd>,
    id: String,
    started: Instant,
    /// The client in whose foreground it runs.
    output: Follow,
    check: OwnCheck,
}

impl Running for ContainerdContainer {
    fn started(&self) -> Instant {
        self.started
    }

    fn output(&mut self, patience: Duration) -> Followed {
        self.output.next(patience)
    }

    fn exit_code(&mut self) -> anyhow::Result<Option<i64>> {
        Ok(self.output.exit_code()?.map(i64::from))
    }

    fn is_healthy(&mut self) -> anyhow::Result<bool> {
        let (containerd, id) = (&self.containerd, &self.id);
        self.check.poll(|number, command| {
            if containerd.pid(id)?.is_none() {
                return Ok(None); // it has not started yet
            }
            let exec_id = format!("health-{number}");
            let exec_id = exec_id.as_str();
            Ok(Some(containerd.exec(&Exec {
                id,
                exec_id,
                command,
            })?))
        })
    }

    fn pid(&mut self) -> anyhow::Result<Option<u32>> {
        Ok(self.containerd.pid(&self.id)?)
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.containerd.kill(&self.id)?;
        Ok(())
    }
}
