//! Where a container's start spends its time: what the engine, the runtime and the program do, and
//! what that reads and writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::engine::Docker;
use super::launch::{DEADLINE, Running, first_process, is_runtime};
use super::probe;
use super::program::Program;
use crate::boots::milliseconds;
use crate::contention::Contention;
use crate::process::{Guard, wait_for};
use crate::stage::{Reads, Stage};

/// strace attaches within a second.
const ATTACH_DEADLINE: Duration = Duration::from_secs(30);

/// One part of a start.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Phase {
    /// What it is.
    pub name: &'static str,
    /// How long it took, in milliseconds.
    pub ms: f64,
    /// Read requests that reached the disk, without the neighbour's.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Write requests that reached the disk.
    pub writes: u64,
}

/// Counters of a disk that somebody else may read, too.
#[derive(Debug)]
pub struct Meter<'a> {
    stage: &'a Stage,
    neighbour: Option<&'a mut Contention>,
}

impl<'a> Meter<'a> {
    /// Reads the counters of this disk.
    pub fn new(stage: &'a Stage, neighbour: Option<&'a mut Contention>) -> Self {
        Self { stage, neighbour }
    }

    fn look(&mut self) -> anyhow::Result<(Instant, Reads, u64)> {
        let foreign = self.neighbour.as_mut().map(|neighbour| neighbour.reads());
        let foreign = foreign.transpose()?.unwrap_or_default();
        let reads = self.stage.reads()?.since(foreign);
        Ok((Instant::now(), reads, self.stage.writes()?))
    }
}

/// A start that goes on, and the parts of it that are over.
#[derive(Debug)]
pub struct Parts<'m, 'a> {
    meter: &'m mut Meter<'a>,
    began: (Instant, Reads, u64),
    /// What each part took, in their order.
    pub ended: Vec<Phase>,
}

impl<'m, 'a> Parts<'m, 'a> {
    /// Begins the first part.
    ///
    /// # Errors
    /// If the disk's counters cannot be read.
    pub fn begin(meter: &'m mut Meter<'a>) -> anyhow::Result<Self> {
        Ok(Self {
            began: meter.look()?,
            meter,
            ended: Vec::new(),
        })
    }

    /// Ends a part, and begins the next.
    ///
    /// # Errors
    /// If the disk's counters cannot be read.
    pub fn end(&mut self, name: &'static str) -> anyhow::Result<()> {
        let (now, reads, writes) = self.meter.look()?;
        let (began, read, written) = std::mem::replace(&mut self.began, (now, reads, writes));
        let reads = reads.since(read);
        self.ended.push(Phase {
            name,
            ms: milliseconds(now.saturating_duration_since(began)),
            reads: reads.requests,
            read_bytes: reads.bytes,
            writes: writes.saturating_sub(written),
        });
        Ok(())
    }
}

/// Starts a container in the two steps of `docker run`, and returns what each part took.
///
/// # Errors
/// If the engine refuses, or the program does not answer.
pub fn start(
    docker: &Docker,
    program: Program,
    home: &Path,
    meter: &mut Meter<'_>,
) -> anyhow::Result<Vec<Phase>> {
    let (name, id_file) = ("phases", home.join("phases.id"));
    let _there_may_be_none = fs::remove_file(&id_file);
    let mut parts = Parts::begin(meter)?;
    let _removed_at_the_end = Running::adopt(docker, name);
    let id = id_file.to_str().context("the rig's home is not UTF-8")?;
    let create = [
        "create",
        "--network=none",
        "--no-healthcheck",
        "--name",
        name,
    ];
    docker.call(&[&create[..], &["--cidfile", id, program.image()]].concat())?;
    parts.end("docker create")?;
    let mut command = docker.client();
    command.args(["start", name]).stdout(Stdio::null());
    let mut client = Guard::spawn(&mut command)?;
    let pid = first_process(docker, &id_file, &mut client)?;
    wait_for("program in the container", DEADLINE, || {
        Ok((!is_runtime(pid)).then_some(()))
    })?;
    parts.end("docker start, until the program runs")?;
    probe::ask(program, pid, DEADLINE)?;
    parts.end("the program, until it answers")?;
    let status = client.wait_until(Instant::now() + DEADLINE)?;
    ensure!(status.success(), "docker start failed ({status})");
    Ok(parts.ended)
}

/// Counts the calls with which these processes wait for the disk while `work` is done: by file, below
/// their data directory. `home` is a directory for what that needs.
///
/// # Errors
/// If strace is missing, or `work` fails.
pub fn synced(
    pids: &[u32],
    data_root: &Path,
    home: &Path,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let output = home.join("strace.txt");
    let mut command = Command::new("strace");
    command.args([
        "--follow-forks",
        "--decode-fds=path",
        "--trace=fsync,fdatasync,sync,syncfs",
    ]);
    command.arg("--output").arg(&output);
    for pid in pids {
        command.arg("--attach").arg(pid.to_string());
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut strace = Guard::spawn(&mut command)?;
    wait_for("strace", ATTACH_DEADLINE, || {
        ensure!(strace.ended()?.is_none(), "strace ended");
        let traced = pids.iter().copied().all(is_traced);
        Ok(traced.then_some(()))
    })?;
    work()?;
    let pid = i32::try_from(strace.pid()).context("a process id that is too large")?;
    // The rig's children inherit that it blocks the signals that usually end strace, but this one.
    kill(Pid::from_raw(pid), Signal::SIGQUIT).context("ending strace")?;
    strace.wait_until(Instant::now() + ATTACH_DEADLINE)?;
    let text = fs::read_to_string(&output).context("reading what strace saw")?;
    Ok(by_file(&text, data_root))
}

fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

/// Counts lines as `12 fdatasync(7</data/x.db>) = 0` by the file, with IDs of containers left out.
fn by_file(text: &str, data_root: &Path) -> BTreeMap<String, u64> {
    let root = format!("{}/", data_root.display());
    let mut counts = BTreeMap::new();
    for line in text
        .lines()
        .filter(|line| line.contains("sync(") && line.contains('<'))
    {
        let path = line.split(['<', '>']).nth(1).unwrap_or_default();
        let path = path.strip_prefix(&root).unwrap_or(path);
        let words = path.split('/').map(without_id);
        *counts
            .entry(words.collect::<Vec<_>>().join("/"))
            .or_default() += 1;
    }
    counts
}

/// Leaves out what is another one each time: a container's ID, the number of a temporary file.
fn without_id(word: &str) -> &str {
    match word {
        id if id.len() >= 64 => "ID",
        temporary if temporary.starts_with('.') => temporary.trim_end_matches(char::is_numeric),
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_without_ids() {
        let id = "0123456789abcdef".repeat(4);
        let text = format!(
            "11 fdatasync(7</d/network/local-kv.db>) = 0\n\
             12 fsync(9</d/containers/{id}/.tmp-config.v2.json1234>) = 0\n\
             12 <... fsync resumed>) = 0\n\
             11 fdatasync(7</d/network/local-kv.db> <unfinished ...>\n"
        );
        let counts = by_file(&text, Path::new("/d"));
        let expected = [
            ("containers/ID/.tmp-config.v2.json", 1),
            ("network/local-kv.db", 2),
        ];
        assert_eq!(
            counts,
            expected
                .map(|(file, count)| (file.to_owned(), count))
                .into()
        );
    }
}
