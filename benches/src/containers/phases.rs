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
    let mut marks = vec![("", meter.look()?)];
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
    marks.push(("docker create", meter.look()?));
    let mut command = docker.client();
    command.args(["start", name]).stdout(Stdio::null());
    let mut client = Guard::spawn(&mut command)?;
    let pid = first_process(docker, &id_file, &mut client)?;
    wait_for("program in the container", DEADLINE, || {
        Ok((!is_runtime(pid)).then_some(()))
    })?;
    marks.push(("docker start, until the program runs", meter.look()?));
    probe::ask(program, pid, DEADLINE)?;
    marks.push(("the program, until it answers", meter.look()?));
    let status = client.wait_until(Instant::now() + DEADLINE)?;
    ensure!(status.success(), "docker start failed ({status})");
    Ok(marks
        .windows(2)
        .map(|pair| phase(pair[0].1, pair[1]))
        .collect())
}

fn phase(
    (began, reads, writes): (Instant, Reads, u64),
    (name, later): (&'static str, (Instant, Reads, u64)),
) -> Phase {
    Phase {
        name,
        ms: milliseconds(later.0.saturating_duration_since(began)),
        reads: later.1.since(reads).requests,
        writes: later.2.saturating_sub(writes),
    }
}

/// Counts the calls with which the engine waits for the disk while `work` is done: by file, below
/// the engine's data directory.
///
/// # Errors
/// If strace is missing, or `work` fails.
pub fn synced(
    docker: &Docker,
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
    for pid in docker.pids()? {
        command.arg("--attach").arg(pid.to_string());
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut strace = Guard::spawn(&mut command)?;
    wait_for("strace", ATTACH_DEADLINE, || {
        ensure!(strace.ended()?.is_none(), "strace ended");
        let traced = docker.pids()?.into_iter().all(is_traced);
        Ok(traced.then_some(()))
    })?;
    work()?;
    let pid = i32::try_from(strace.pid()).context("a process id that is too large")?;
    // The rig's children inherit that it blocks the signals that usually end strace, but this one.
    kill(Pid::from_raw(pid), Signal::SIGQUIT).context("ending strace")?;
    strace.wait_until(Instant::now() + ATTACH_DEADLINE)?;
    let text = fs::read_to_string(&output).context("reading what strace saw")?;
    Ok(by_file(&text, docker.data_root()))
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
