//! The first request of a machine after it has started, while its disk is busy: a Zygote is made, and a program comes from
//! it. The base is on that disk, or on a mount of it that has what an earlier machine's first request read in memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use sandbox::{BaseSpec, Config, ExitStatus, Python, Request, Sandboxes, Stdio, ZygoteSpec};

use super::{Figure, MODULES, PATIENCE, PYTHON, milliseconds};
use crate::boots::{Conditions, Disk, Lab, Subject};
use crate::caches;
use crate::process::run_ok;
use crate::programs::{DEADLINE, Serving};
use crate::suite::throttle;

/// The name of the boot image.
const IMAGE: &str = "base";

/// How often a sample is tried that somebody else spoils by dropping caches.
const ATTEMPTS: u32 = 5;

/// From where the base is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// The disk, with empty caches.
    Cold,
    /// A mount whose boot image was brought into memory before.
    Recorded,
    /// The page cache, filled by a request before.
    Warm,
}

/// Measures the first request, of so many machines, on a disk of so many read requests a second that somebody else reads, too.
///
/// # Errors
/// If a sandbox cannot be made, or the disk cannot be slowed down.
pub fn first(lab: &Lab, iops: u32, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    record(lab).context("recording the first request")?;
    let throttle = throttle(lab, Disk::Contended(iops))?;
    let disk = (Disk::Contended(iops), throttle.as_ref());
    let mut sides = [Base::Cold, Base::Recorded, Base::Warm].map(|base| (base, Vec::new()));
    for _ in 0..rounds {
        for (base, times) in &mut sides {
            times.push(sample(lab, *base, disk)?);
        }
    }
    Ok(sides
        .map(|(base, times)| {
            let from = match base {
                Base::Cold => "the disk",
                Base::Recorded => "a recorded base",
                Base::Warm => "a warm page cache",
            };
            Figure::new(format!("first request, from {from}"), "ms", times)
        })
        .into())
}

/// Makes a boot image of what the first request reads.
fn record(lab: &Lab) -> anyhow::Result<()> {
    let (source, at) = (lab.source(Subject::Container), lab.home().join("mount"));
    let trace = lab.home().join("first.trace");
    let mut mount = lab.programs().yolofs();
    mount.args(["mount", "--record"]).arg(&trace);
    mount.args([&source, &at]);
    run_ok(mount, DEADLINE)?;
    let mount = lab.programs().adopt(&at);
    request(lab, mount.path())?;
    // The trace is complete when the mount has ended.
    drop(mount);
    let mut from_trace = lab.programs().bootimg();
    from_trace.args(["from-trace", "--name", IMAGE, "--trace"]);
    from_trace.arg(&trace).arg(&source);
    run_ok(from_trace, DEADLINE)?;
    Ok(())
}

/// Measures one first request; again, if somebody else dropped caches meanwhile.
fn sample(
    lab: &Lab,
    base: Base,
    disk: (Disk, Option<&crate::throttle::Throttle>),
) -> anyhow::Result<f64> {
    for _ in 0..ATTEMPTS {
        lab.drop_caches()?;
        // Not the base's: what makes a sandbox is in memory on all three sides.
        let drops = caches::drops()?;
        let source = lab.source(Subject::Container);
        let at = lab.home().join("mount");
        let mount = match base {
            Base::Recorded => {
                let programs = lab.programs();
                Some(programs.mount(&source, &at, IMAGE, Serving::Injected)?)
            }
            Base::Cold | Base::Warm => None,
        };
        if base == Base::Warm {
            request(lab, &source)?;
        }
        let conditions = Conditions::impose(lab.stage(), disk, mount.as_ref())?;
        let from = mount
            .as_ref()
            .map_or(source.as_path(), |mount| mount.path());
        let taken = request(lab, from)?;
        drop(conditions);
        if caches::drops()? == drops {
            return Ok(taken);
        }
    }
    bail!("somebody keeps dropping this machine's caches: measure when it is quiet")
}

/// Makes a Zygote and a program of it on a base, by a manager of their own; returns how long that took, in milliseconds.
fn request(lab: &Lab, base: &Path) -> anyhow::Result<f64> {
    let dir = tempfile::tempdir_in(lab.home())?;
    let group = format!("bench-sandbox-first-{}", std::process::id());
    let sandboxes = Sandboxes::open(Config::new(dir.path().join("sandbox"), &group))?;
    sandboxes.add_base(&BaseSpec {
        name: "base".to_owned(),
        root: base.to_owned(),
        hide: Vec::new(),
    })?;
    let mut request = Request::new("base", &["-c", "import json, ssl; ssl.OPENSSL_VERSION"]);
    request.python = Some(Python {
        interpreter: PYTHON.to_owned(),
        packages: BTreeSet::new(),
    });
    let began = Instant::now();
    sandboxes.add_zygote(ZygoteSpec::new("base", PYTHON, MODULES))?;
    let sandbox = sandboxes.create(request, Stdio::Null)?;
    let exit = sandbox.wait(PATIENCE).context("it does not end")?;
    let taken = began.elapsed();
    ensure!(exit.status == ExitStatus::Code(0), "it ended with {exit:?}");
    sandboxes.end_all(PATIENCE)?;
    Ok(milliseconds(taken))
}
