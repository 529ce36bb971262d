//! Starts of a container image by its engine.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use bootimg::{ImageId, Store};
use engine::ImageName;
use yolofs::XattrAnswers;

use super::disk_reads::DiskReads;
use super::{
    Asked, BenchEvent, BenchReport, BenchSettings, CACHES, Started, Subject, Way, check_until,
    take_turns,
};
use crate::container_engine::{Engine, Start};
use crate::image_recording::{ImageRequest, full_name, open};
use crate::ready::{choose, wait_ready};
use crate::undo::{Guard, Undo};
use crate::until::Until;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::mount_table::{MOUNT_KIND, clear_if_dead, top_at};
use layers::server::{LayerPlace, LayerServer};

/// What the mount table shows of a layer that is served for a bench.
const LABEL: &str = "bench";

/// Starts a container image in each way.
///
/// # Errors
/// If the image was not recorded, is served already, or a start is not ready in time;
/// [`Interrupted`](host::interrupt::Interrupted) on Ctrl-C.
pub fn bench_image(
    request: &ImageRequest,
    settings: BenchSettings,
    store: &StoreSettings,
    interrupt: &Interrupt,
    tell: &dyn Fn(BenchEvent<'_>),
) -> anyhow::Result<BenchReport> {
    ensure!(
        matches!(
            request.name,
            ImageName::Docker { .. } | ImageName::Containerd { .. }
        ),
        "{} is in no engine, so nobody starts it from the disk: load it into Docker or containerd, and name it there",
        request.name
    );
    interrupt.be_orderly();
    let mut guard = Guard::start()?;
    let engine = open(request, &mut guard, interrupt)?;
    let image = engine.image();
    let name = full_name(image);
    check_recorded(&store.open()?, &*engine, &name)?;
    let chosen = choose(request.until.as_ref(), &image.config)?;
    if let Some(because) = chosen.because {
        let until = &chosen.until;
        tell(BenchEvent::Chosen { until, because });
    }
    check_until(&chosen.until)?;
    // One start before those that count.
    let starts = settings.runs.saturating_mul(3).saturating_add(1);
    engine.promise(&mut guard, starts)?;
    let places = places(&*engine)?;
    for place in &places {
        guard.promise(Undo::Unmount {
            at: place.target.clone(),
            label: place.label.clone(),
        })?;
    }
    let mut subject = Container {
        engine: &*engine,
        until: &chosen.until,
        options: request.options()?,
        command: request.command()?,
        settings,
        store,
        places,
    };
    let samples = take_turns(&name, &mut subject, settings, interrupt, tell)?;
    Ok(BenchReport {
        subject: name.clone(),
        recorded_as: name,
        until: chosen.until.to_string(),
        caches: CACHES,
        samples,
        warnings: Vec::new(),
    })
}

fn check_recorded(store: &Store, engine: &dyn Engine, name: &str) -> anyhow::Result<()> {
    for layer in &engine.image().layers {
        if store.layer(&layer.diff_id)?.is_some() {
            return Ok(());
        }
    }
    anyhow::bail!("no boot of {name} was recorded: do that first (bootimg record)")
}

/// Returns where the layers lie, which are served in place.
fn places(engine: &dyn Engine) -> anyhow::Result<Vec<LayerPlace>> {
    let layers = engine.image().layers.iter();
    let places = layers.map(|layer| {
        let (parent, name) = (layer.dir.parent(), layer.dir.file_name());
        let (parent, name) = parent.zip(name).context("a layer is no root")?;
        // Mounts go by the path without symbolic links.
        let parent = parent
            .canonicalize()
            .with_context(|| format!("opening layer {}", layer.dir.display()))?;
        let dir = parent.join(name);
        Ok(LayerPlace {
            layer: layer.diff_id,
            source: dir.clone(),
            target: dir,
            label: LABEL.to_owned(),
        })
    });
    places.collect()
}

/// An image, and who runs it.
struct Container<'a> {
    engine: &'a dyn Engine,
    until: &'a Until,
    options: Vec<String>,
    command: Vec<String>,
    settings: BenchSettings,
    store: &'a StoreSettings,
    places: Vec<LayerPlace>,
}

impl Subject for Container<'_> {
    fn places(&self) -> Vec<PathBuf> {
        let places = self.places.iter();
        places.map(|place| place.source.clone()).collect()
    }

    fn start(
        &mut self,
        way: Way,
        disk: &DiskReads,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Started> {
        self.check_plain()?;
        let began = Instant::now();
        let server = match way.is_ours() {
            true => Some(self.serve(interrupt)?),
            false => None,
        };
        let prepared = began.elapsed();
        let asked = || server.as_deref().map_or_else(Asked::default, asked);
        let before = (asked(), disk.now());
        let mut running = self.engine.start(&Start {
            options: &self.options,
            command: &self.command,
            until: self.until,
        })?;
        let never_idle = || std::time::Duration::ZERO;
        let timeout = self.settings.timeout;
        let ready = wait_ready(&mut *running, self.until, timeout, interrupt, &never_idle);
        // What stopping it reads is no part of the start.
        let (asked, disk) = (asked().since(before.0), disk.since(before.1));
        running.kill().context("stopping the container")?;
        if let Some(server) = &server {
            server.detach_all();
        }
        Ok(Started {
            ready: ready?,
            prepared,
            asked,
            disk,
        })
    }
}

impl Container<'_> {
    /// Sees to it that a start without us is one.
    fn check_plain(&self) -> anyhow::Result<()> {
        for LayerPlace { source, .. } in &self.places {
            while clear_if_dead(source)? {}
            let top = top_at(source)?.filter(|top| top.kind == MOUNT_KIND);
            ensure!(
                top.is_none(),
                "{} is served or recorded already, so that no start reads the disk: stop that meanwhile \
                 (yolofs docker detach)",
                source.display()
            );
        }
        Ok(())
    }

    /// Serves the layers, with their boot images in the page cache.
    fn serve(&self, interrupt: &Interrupt) -> anyhow::Result<Box<dyn LayerServer>> {
        let server = layers::choose::here(self.store.open()?, XattrAnswers::default(), interrupt)?;
        for place in &self.places {
            server.attach(place)?;
        }
        for layer in server.status() {
            let id = layer.boot.content.parse::<ImageId>();
            let id = id.with_context(|| format!("reading {}", layer.boot.content))?;
            for warmed in server.prewarm(&id) {
                warmed.warmed.map_err(anyhow::Error::msg)?;
            }
        }
        Ok(server)
    }
}

/// Returns what the layers were asked for so far.
fn asked(server: &dyn LayerServer) -> Asked {
    let mut asked = Asked::default();
    for layer in server.status() {
        let reads = layer.served.requests.get("read");
        asked.reads += reads.copied().unwrap_or(0);
        asked.missed_bytes += layer.served.fallthrough_bytes;
    }
    asked
}
