//! Sixteen machines that pull an image at once, beside one that does so alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::mount::MsFlags;

use super::cpu_share::CpuShare;
use super::network::Network;
use super::service::Nicfetch;
use super::site::{IMAGE, Site};
use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::interrupt;
use crate::micro::{Series, ratio};
use crate::namespace::Mounted;
use crate::process::run_ok;
use crate::rounds::Shuffle;

/// The machines of a host, and the number of the first.
const MACHINES: u8 = 16;
const FIRST: u8 = 100;
/// What each has of a processor: all together leave the NIC a fifth of this machine's two.
const PERCENT: u64 = 10;
/// A pull by a tenth of a processor, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

/// A machine that pulls, and where it puts what it gets.
struct Machine {
    number: u8,
    network: Network,
    share: CpuShare,
}

/// Has one machine, and all of them, take `rounds` turns.
///
/// # Errors
/// If a pull fails.
pub fn measure(
    nicfetch: &Nicfetch,
    site: &Site,
    rounds: u32,
) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let machines: Vec<_> = (FIRST..FIRST + MACHINES)
        .map(|number| {
            Ok(Machine {
                number,
                network: site.machine(number)?,
                share: CpuShare::new(number, PERCENT)?,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    let dir = site.home().join("machines");
    fs::create_dir_all(&dir).context("making the machines' directory")?;
    // What a machine writes is in memory: sixteen of them share a disk that is none of theirs.
    let memory = Mounted::new("tmpfs", &dir, "tmpfs", MsFlags::empty(), "mode=0755")?;
    let ours = configure(site, "ours", &site.nicfetch_url())?;
    let near = configure(site, "near", &site.near_url())?;
    let _servers = (site.start_nicfetch(nicfetch, &[])?, site.start_near()?);
    together(site, &machines[..1], &ours)?; // which warms the mirror
    let mut alone = Series::new("a machine's pull, alone", "ms");
    let mut slowest = Series::new("the slowest of 16 pulls at once", "ms");
    let mut near_alone = Series::new("floor: alone, from a registry on the NIC", "ms");
    let mut near_slowest = Series::new("floor: the slowest of 16 at once, from there", "ms");
    let mut shuffle = Shuffle::from_clock();
    let (one, all) = (&machines[..1], &machines[..]);
    for _ in 0..rounds {
        for turn in shuffle.order(&[0, 1, 2, 3]) {
            interrupt::check()?;
            let (those, mirror, series) = match turn {
                0 => (one, &ours, &mut alone),
                1 => (all, &ours, &mut slowest),
                2 => (one, &near, &mut near_alone),
                _ => (all, &near, &mut near_slowest),
            };
            series.values.push(together(site, those, mirror)?);
        }
    }
    drop(memory);
    let what = "16 machines at once, warm: the slowest to one alone";
    let aim = Aim::at_most(1.5, what, ratio(&slowest, &alone));
    Ok((vec![alone, slowest, near_alone, near_slowest], vec![aim]))
}

/// Writes what tells skopeo of a mirror, and returns the file.
fn configure(site: &Site, name: &str, url: &str) -> anyhow::Result<PathBuf> {
    let location = url.trim_start_matches("http://");
    let text = format!(
        "[[registry]]\nprefix = \"docker.io\"\nlocation = \"docker.io\"\n\
         [[registry.mirror]]\nlocation = \"{location}\"\ninsecure = true\n"
    );
    let file = site.home().join(format!("registries-{name}.conf"));
    fs::write(&file, text).context("telling skopeo of a mirror")?;
    Ok(file)
}

/// Has machines pull at once, and returns the milliseconds until the last was done.
fn together(site: &Site, machines: &[Machine], mirror: &Path) -> anyhow::Result<f64> {
    let pulls = thread::scope(|scope| {
        let pulls: Vec<_> = machines
            .iter()
            .map(|machine| scope.spawn(|| machine.pull(site, mirror)))
            .collect();
        let ended = pulls.into_iter().map(|pull| {
            let pull = pull.join();
            pull.unwrap_or_else(|_| bail!("a thread that pulls panicked"))
        });
        ended.collect::<anyhow::Result<Vec<_>>>()
    })?;
    pulls
        .into_iter()
        .reduce(f64::max)
        .context("nobody pulled anything")
}

impl Machine {
    fn pull(&self, site: &Site, mirror: &Path) -> anyhow::Result<f64> {
        let to = site.home().join(format!("machines/{}", self.number));
        let mut skopeo: Command = self.network.command("skopeo");
        skopeo.arg("--registries-conf").arg(mirror);
        skopeo.args(["copy", "--insecure-policy"]);
        skopeo.arg(format!("docker://docker.io/library/{IMAGE}:latest"));
        skopeo.arg(format!("dir:{}", to.display()));
        let done = run_ok(self.share.command(&skopeo), DEADLINE)?;
        fs::remove_dir_all(&to).with_context(|| format!("removing {}", to.display()))?;
        Ok(milliseconds(done.elapsed))
    }
}
