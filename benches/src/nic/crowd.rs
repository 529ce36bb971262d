//! Sixteen machines that pull an image at once, beside one that does so alone.

use std::fs;
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
    configure(site)?;
    let _server = site.start_nicfetch(nicfetch, &[])?;
    together(site, &machines[..1])?; // which warms the mirror
    let mut alone = Series::new("a machine's pull, alone", "ms");
    let mut slowest = Series::new("the slowest of 16 pulls at once", "ms");
    let mut shuffle = Shuffle::from_clock();
    for _ in 0..rounds {
        for many in shuffle.order(&[false, true]) {
            interrupt::check()?;
            let (those, series) = if many {
                (&machines[..], &mut slowest)
            } else {
                (&machines[..1], &mut alone)
            };
            series.values.push(together(site, those)?);
        }
    }
    drop(memory);
    let what = "16 machines at once, warm: the slowest to one alone";
    let aim = Aim::at_most(1.5, what, ratio(&slowest, &alone));
    Ok((vec![alone, slowest], vec![aim]))
}

/// Tells skopeo of the mirror.
fn configure(site: &Site) -> anyhow::Result<()> {
    let url = site.nicfetch_url();
    let location = url.trim_start_matches("http://");
    let text = format!(
        "[[registry]]\nprefix = \"docker.io\"\nlocation = \"docker.io\"\n\
         [[registry.mirror]]\nlocation = \"{location}\"\ninsecure = true\n"
    );
    fs::write(site.home().join("registries.conf"), text).context("telling skopeo of the mirror")
}

/// Has machines pull at once, and returns the milliseconds until the last was done.
fn together(site: &Site, machines: &[Machine]) -> anyhow::Result<f64> {
    let pulls = thread::scope(|scope| {
        let pulls: Vec<_> = machines
            .iter()
            .map(|machine| scope.spawn(|| machine.pull(site)))
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
    fn pull(&self, site: &Site) -> anyhow::Result<f64> {
        let to = site.home().join(format!("machines/{}", self.number));
        let mut skopeo: Command = self.network.command("skopeo");
        let conf = site.home().join("registries.conf");
        skopeo.arg("--registries-conf").arg(conf);
        skopeo.args(["copy", "--insecure-policy"]);
        skopeo.arg(format!("docker://docker.io/library/{IMAGE}:latest"));
        skopeo.arg(format!("dir:{}", to.display()));
        let done = run_ok(self.share.command(&skopeo), DEADLINE)?;
        fs::remove_dir_all(&to).with_context(|| format!("removing {}", to.display()))?;
        Ok(milliseconds(done.elapsed))
    }
}
