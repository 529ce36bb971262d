//! Pulls of an image over a slow line by Docker: directly, through nicfetch, through
//! docker-registry as a proxy, and AlphaBoot's way, a tarball on a directory that all share.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::service::Nicfetch;
use super::site::{IMAGE, Site};
use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::containers::engine::Docker;
use crate::interrupt;
use crate::micro::{Series, ratio};
use crate::process::run_ok;
use crate::report::count;
use crate::rounds::Shuffle;

/// A pull takes some ten seconds; on a busy machine several times that.
const DEADLINE: Duration = Duration::from_secs(300);
/// Holds every blob back until all of it is verified.
const HOLD_ALL: [&str; 2] = ["--hold-back", "1T"];
/// Holds the end of each back: the rest streams as it comes.
const HOLD_END: [&str; 2] = ["--hold-back", "4M"];

/// One step of a round. A proxy's second pull follows its first, when it is warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PullStep {
    Direct,
    HoldEnd,
    HoldAll,
    Peer,
    Near,
    Tarball,
}

impl PullStep {
    const ALL: [Self; 6] = [
        Self::Direct,
        Self::HoldEnd,
        Self::HoldAll,
        Self::Peer,
        Self::Near,
        Self::Tarball,
    ];
}

/// What is measured, in this order.
#[derive(Debug)]
struct Found {
    direct: Series,
    hold_end: Series,
    hold_all: Series,
    warm: Series,
    peer: Series,
    peer_warm: Series,
    near: Series,
    save: Series,
    load: Series,
    direct_upstream: Series,
    upstream: Series,
    peer_upstream: Series,
}

impl Found {
    fn new() -> Self {
        let pull = |what: &str| Series::new(format!("docker pull, {what}"), "ms");
        let upstream = |what: &str| Series::new(format!("bytes over the line, {what}"), "x");
        Self {
            direct: pull("direct"),
            hold_end: pull("nicfetch cold, --hold-back 4M"),
            hold_all: pull("nicfetch cold, --hold-back 1T"),
            warm: pull("nicfetch warm"),
            peer: pull("docker-registry cold"),
            peer_warm: pull("docker-registry warm"),
            near: pull("floor: from a registry on the NIC"),
            save: Series::new("docker save", "ms"),
            load: Series::new("docker load", "ms"),
            direct_upstream: upstream("direct"),
            upstream: upstream("nicfetch cold, then warm"),
            peer_upstream: upstream("docker-registry cold, then warm"),
        }
    }

    fn aims(&self) -> Vec<Aim> {
        let to_direct = |what: &str, limit, series: &Series| {
            let what = format!("docker pull, {what}, to direct");
            Aim::at_most(limit, what, ratio(series, &self.direct))
        };
        let most = self.upstream.values.iter().copied().reduce(f64::max);
        vec![
            to_direct("nicfetch cold, --hold-back 4M", 1.05, &self.hold_end),
            to_direct("nicfetch cold, --hold-back 1T", 1.05, &self.hold_all),
            to_direct("nicfetch warm", 0.5, &self.warm),
            Aim::at_most(1.0, "bytes over the line to the image's, nicfetch", most),
        ]
    }

    fn series(self) -> Vec<Series> {
        vec![
            self.direct,
            self.hold_end,
            self.hold_all,
            self.warm,
            self.peer,
            self.peer_warm,
            self.near,
            self.save,
            self.load,
            self.direct_upstream,
            self.upstream,
            self.peer_upstream,
        ]
    }
}

struct Bench<'a> {
    nicfetch: &'a Nicfetch,
    site: &'a Site,
    direct: Docker,
    mirrored: Docker,
    by_peer: Docker,
    near: Docker,
    found: Found,
}

/// Has all take `rounds` turns in a shuffled order.
///
/// # Errors
/// If a pull fails.
pub fn measure(
    nicfetch: &Nicfetch,
    site: &Site,
    rounds: u32,
) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let machines = [1, 2, 3, 4].map(|number| site.machine(number));
    let [one, two, three, four] = machines;
    let mut bench = Bench {
        nicfetch,
        site,
        direct: site.engine(&one?, "direct", &site.registry_url())?,
        mirrored: site.engine(&two?, "mirrored", &site.nicfetch_url())?,
        by_peer: site.engine(&three?, "by-peer", &site.peer_url())?,
        near: site.engine(&four?, "near", &site.near_url())?,
        found: Found::new(),
    };
    bench.save()?;
    let mut shuffle = Shuffle::from_clock();
    for _ in 0..rounds {
        for turn in shuffle.order(&PullStep::ALL) {
            interrupt::check()?;
            bench
                .turn(turn)
                .with_context(|| format!("measuring {turn:?}"))?;
        }
    }
    let aims = bench.found.aims();
    Ok((bench.found.series(), aims))
}

impl Bench<'_> {
    fn turn(&mut self, turn: PullStep) -> anyhow::Result<()> {
        self.site.forget();
        match turn {
            PullStep::Direct => {
                let took = pull(&self.direct)?;
                self.found.direct.values.push(took);
                self.found.direct_upstream.values.push(self.upstream());
            }
            PullStep::HoldEnd | PullStep::HoldAll => self.nicfetch_turn(turn)?,
            PullStep::Peer => {
                let _peer = self.site.start_peer()?;
                self.found.peer.values.push(pull(&self.by_peer)?);
                self.found.peer_warm.values.push(pull(&self.by_peer)?);
                self.found.peer_upstream.values.push(self.upstream());
            }
            PullStep::Near => {
                let _near = self.site.start_near()?;
                self.found.near.values.push(pull(&self.near)?);
            }
            PullStep::Tarball => {
                let tarball = self.tarball();
                let mut load = self.direct.client();
                load.args(["load", "--input", &tarball]);
                nix::unistd::sync();
                let took = run_ok(load, DEADLINE)?.elapsed;
                self.found.load.values.push(milliseconds(took));
                remove(&self.direct)?;
            }
        }
        Ok(())
    }

    fn nicfetch_turn(&mut self, turn: PullStep) -> anyhow::Result<()> {
        let (flags, series) = match turn {
            PullStep::HoldAll => (HOLD_ALL, &mut self.found.hold_all),
            _ => (HOLD_END, &mut self.found.hold_end),
        };
        let _server = self.site.start_nicfetch(self.nicfetch, &flags)?;
        series.values.push(pull(&self.mirrored)?);
        self.found.warm.values.push(pull(&self.mirrored)?);
        let upstream = self.upstream();
        self.found.upstream.values.push(upstream);
        Ok(())
    }

    /// Does once what AlphaBoot does when the first machine has pulled an image.
    fn save(&mut self) -> anyhow::Result<()> {
        self.direct.call(&["pull", IMAGE])?;
        let tarball = self.tarball();
        let mut save = self.direct.client();
        save.args(["save", "--output", &tarball, IMAGE]);
        let took = run_ok(save, DEADLINE)?.elapsed;
        self.found.save.values.push(milliseconds(took));
        remove(&self.direct)
    }

    fn tarball(&self) -> String {
        self.site.home().join("shared.tar").display().to_string()
    }

    /// Returns what came over the line in parts of the image.
    fn upstream(&self) -> f64 {
        count(self.site.upstream_bytes()) / count(self.site.image_bytes())
    }
}

/// Pulls the image, which is removed again, and returns the milliseconds.
fn pull(docker: &Docker) -> anyhow::Result<f64> {
    let mut command: Command = docker.client();
    command.args(["pull", IMAGE]);
    // What was written before is not what this pull waits for.
    nix::unistd::sync();
    let done = run_ok(command, DEADLINE)?;
    ensure!(
        done.output.contains("Downloaded newer image"),
        "the image was there already"
    );
    remove(docker)?;
    Ok(milliseconds(done.elapsed))
}

fn remove(docker: &Docker) -> anyhow::Result<()> {
    docker.call(&["image", "rm", "--force", IMAGE]).map(drop)
}
