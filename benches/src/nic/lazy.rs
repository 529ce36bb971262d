//! Starts of a container: from a mount whose blocks are on the NIC, from a local mount that was
//! prewarmed, and AlphaBoot's way, by Docker from a tarball.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::mount::MsFlags;

use super::network::Network;
use super::service::Nicfetch;
use super::site::{IMAGE, Site};
use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::container::Container;
use crate::containers::engine::Docker;
use crate::containers::launch::launch;
use crate::containers::probe;
use crate::containers::program::Program;
use crate::interrupt;
use crate::micro::{Series, ratio};
use crate::namespace::Mounted;
use crate::process::{Guard, run_ok, wait_for};
use crate::programs::{DEADLINE, Programs, Serving, record};
use crate::rounds::Shuffle;

/// What is started, and what of the image's command starts it in a root without a runtime.
const PROGRAM: Program = Program::Python;
const WORKLOAD: [&str; 3] = [
    "/bin/sh",
    "-c",
    "cd /app && exec gunicorn --bind 127.0.0.1:8000 app:app",
];
/// What the environment of the image says, and no more.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The machines: the one that records, and the one that is measured; and AlphaBoot's.
const RECORDER: u8 = 10;
const MACHINE: u8 = 11;
const ENGINE: u8 = 12;

/// The image's root, on a disk.
#[derive(Debug)]
pub struct Image {
    root: PathBuf,
}

impl Image {
    /// Unpacks it from an OCI layout into the directory `home`.
    ///
    /// # Errors
    /// If `umoci` fails.
    pub fn unpack(layout: &Path, home: &Path) -> anyhow::Result<Self> {
        let root = home.join("root");
        let mut umoci = Command::new("umoci");
        umoci.args(["raw", "unpack", "--image"]);
        umoci.arg(format!("{}:{IMAGE}", layout.display()));
        umoci.arg(&root);
        run_ok(umoci, DEADLINE).context("unpacking the image")?;
        Ok(Self { root })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nic,
    Local,
    Tarball,
}

/// The three ways, and everything they need.
struct Bench<'a> {
    site: &'a Site,
    bin: &'a Path,
    image: &'a Image,
    machine: Network,
    blocks: String,
    docker: Docker,
    local: Programs,
    samples: u32,
    nic: [Series; 2],
    at_home: [Series; 2],
    tarball: Series,
}

/// Has all take `rounds` turns in a shuffled order.
///
/// # Errors
/// If a start fails.
pub fn measure(
    nicfetch: &Nicfetch,
    site: &Site,
    bin: &Path,
    image: &Image,
    rounds: u32,
) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let store = site.home().join("blocks");
    nicfetch.import(&store, IMAGE, &image.root)?;
    let (_server, blocks) = site.start_blocks(nicfetch, &store)?;
    let series = |what: &str| Series::new(format!("start of {IMAGE}, {what}"), "ms");
    let mut bench = Bench {
        site,
        bin,
        image,
        machine: site.machine(MACHINE)?,
        blocks,
        docker: tarball(site)?,
        local: Programs::new(bin, &home(site, "local")?)?,
        samples: 0,
        nic: [
            series("from the NIC: mount to ready"),
            series("from the NIC: after the mount"),
        ],
        at_home: [
            series("local: mount, prewarm, ready"),
            series("local, prewarmed: after the mount"),
        ],
        tarball: series("docker load and docker run"),
    };
    bench.record()?;
    let mut shuffle = Shuffle::from_clock();
    for _ in 0..rounds {
        for way in shuffle.order(&[Way::Nic, Way::Local, Way::Tarball]) {
            interrupt::check()?;
            bench
                .turn(way)
                .with_context(|| format!("starting from {way:?}"))?;
        }
    }
    Ok(bench.end())
}

/// Makes a directory for a machine's own things.
fn home(site: &Site, name: &str) -> anyhow::Result<PathBuf> {
    let home = site.home().join(name);
    fs::create_dir_all(home.join("mount")).context("making a machine's directories")?;
    fs::create_dir_all(home.join("scratch")).context("making a machine's directories")?;
    Ok(home)
}

/// Starts an engine, and puts the image on the shared directory as a tarball.
fn tarball(site: &Site) -> anyhow::Result<Docker> {
    let machine = site.machine(ENGINE)?;
    let docker = site.engine(&machine, "tarball", &site.registry_url())?;
    docker.call(&["pull", IMAGE])?;
    docker.call(&["save", "--output", &shared(site), IMAGE])?;
    docker.call(&["image", "rm", "--force", IMAGE])?;
    Ok(docker)
}

fn shared(site: &Site) -> String {
    site.home().join("python.tar").display().to_string()
}

impl Bench<'_> {
    /// Has a first machine record a start for the NIC, and another one for the local mount.
    fn record(&mut self) -> anyhow::Result<()> {
        let recorder = self.site.machine(RECORDER)?;
        let local = recorder.around(&self.local.bootimg());
        let until = PROGRAM.until();
        let flags = ["--name", IMAGE, "--until", &until];
        record(local, &flags, &self.image.root, &WORKLOAD)?;
        let first = home(self.site, "first")?;
        let programs = Programs::new(self.bin, &first)?;
        {
            let mount = self.mount(&programs, &recorder, &first, &["--nic-share"])?;
            start(&recorder, mount.path(), &first)?;
        }
        // The daemon gives the boot image away after the mount is over.
        wait_for("boot image on the NIC", DEADLINE, || {
            let mount = self.mount(&programs, &recorder, &first, &[])?;
            let mut status = programs.yolofs();
            status.args(["status", "--json"]).arg(mount.path());
            let status = run_ok(status, DEADLINE)?.output;
            let status: serde_json::Value = serde_json::from_str(&status)?;
            Ok((!status[0]["boot"].is_null()).then_some(()))
        })
    }

    fn mount<'p>(
        &self,
        programs: &'p Programs,
        machine: &Network,
        home: &Path,
        flags: &[&str],
    ) -> anyhow::Result<crate::programs::YoloMount<'p>> {
        let at = home.join("mount");
        let mut mount = programs.yolofs();
        mount.arg("mount").arg(format!("nic:{IMAGE}")).arg(&at);
        mount.args(["--nic", &self.blocks]).args(flags);
        run_ok(machine.around(&mount), DEADLINE)?;
        Ok(programs.adopt(&at))
    }

    fn turn(&mut self, way: Way) -> anyhow::Result<()> {
        match way {
            Way::Nic => {
                // A machine that has nothing yet.
                self.samples += 1;
                let home = home(self.site, &format!("new{}", self.samples))?;
                let programs = Programs::new(self.bin, &home)?;
                let began = Instant::now();
                let mount = self.mount(&programs, &self.machine, &home, &[])?;
                let mounted = began.elapsed();
                let after = start(&self.machine, mount.path(), &home)?;
                push(&mut self.nic, mounted, after);
            }
            Way::Local => {
                let home = home(self.site, "local")?;
                let began = Instant::now();
                let (root, at) = (&self.image.root, home.join("mount"));
                let mount = self.local.mount(root, &at, IMAGE, Serving::Injected)?;
                let mounted = began.elapsed();
                let after = start(&self.machine, mount.path(), &home)?;
                push(&mut self.at_home, mounted, after);
            }
            Way::Tarball => {
                let home = home(self.site, "engine")?;
                let began = Instant::now();
                self.docker.call(&["load", "--input", &shared(self.site)])?;
                let loaded = began.elapsed();
                let (running, times) = launch(&self.docker, PROGRAM, "lazy", &home)?;
                self.tarball.values.push(milliseconds(loaded + times.ready));
                drop(running);
                self.docker.call(&["image", "rm", "--force", IMAGE])?;
            }
        }
        Ok(())
    }

    fn end(self) -> (Vec<Series>, Vec<Aim>) {
        let [lazy, lazy_after] = self.nic;
        let [local, local_after] = self.at_home;
        let aim = |what: &str, over| Aim::at_most(1.3, what, ratio(over, &local_after));
        let aims = vec![
            aim(
                "from the NIC, mount to ready, to a local prewarmed start",
                &lazy,
            ),
            aim(
                "from the NIC, after the mount, to a local prewarmed start",
                &lazy_after,
            ),
        ];
        (
            vec![lazy, lazy_after, local, local_after, self.tarball],
            aims,
        )
    }
}

/// Notes a start: all of it, and what came after the mount.
fn push(series: &mut [Series; 2], mounted: Duration, after: Duration) {
    let [all, later] = series;
    all.values.push(milliseconds(mounted + after));
    later.values.push(milliseconds(after));
}

/// Starts the program in a container on the root `lower`, and returns how long it took until the
/// program answered. It is killed then.
fn start(machine: &Network, lower: &Path, home: &Path) -> anyhow::Result<Duration> {
    let container = Container::prepare(lower, &home.join("scratch"))?;
    let dev = container.root().join("dev");
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    let devices = Mounted::new("/dev", &dev, "none", bind, "")?;
    let mut command = machine.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "chroot"]);
    command.arg(container.root());
    command.args(["/usr/bin/env", "-i", PATH, "LANG=C.UTF-8"]);
    command.args(WORKLOAD);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let began = Instant::now();
    let mut program = Guard::spawn(&mut command)?;
    let ready = machine.inside(|| {
        wait_for("answer of the container", DEADLINE, || {
            ensure!(program.ended()?.is_none(), "the container has ended");
            Ok(probe::answers(PROGRAM).then(Instant::now))
        })
    })?;
    drop((program, devices));
    Ok(ready.saturating_duration_since(began))
}
