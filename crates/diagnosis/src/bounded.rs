//! Foreign files and programs, read with bounds: none is trusted to be small, or to end.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// Most bytes of a configuration, and of what a program prints: containerd's whole configuration has 20 KiB.
const MAX_BYTES: u64 = 1 << 20;
/// How long an engine's program may take to print its configuration; it takes 0.1 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads a file, or returns `None` if it does not exist.
pub(crate) fn read(path: &Path) -> anyhow::Result<Option<String>> {
    let reading = || format!("reading {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.with_context(reading)?,
    };
    let mut bytes = Vec::new();
    let limit = MAX_BYTES + 1;
    file.take(limit)
        .read_to_end(&mut bytes)
        .with_context(reading)?;
    ensure!(
        u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_BYTES),
        "{} is longer than {MAX_BYTES} bytes: this is no configuration",
        path.display()
    );
    let text = String::from_utf8(bytes);
    text.map(Some)
        .with_context(|| format!("{} is not text", path.display()))
}

/// Runs a program that only prints, and returns its output.
pub(crate) fn output(program: &Path, args: &[&str]) -> anyhow::Result<String> {
    let shown = format!("{} {}", program.display(), args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {shown}"))?;
    let said = child.stdout.take().context("taking what it says")?;
    let complained = child.stderr.take().context("taking what it complains")?;
    let (sender, receiver) = mpsc::channel();
    let out = reader("printed", said, sender.clone())?;
    let err = reader("complained", complained, sender)?;
    let (mut printed, mut complaint) = (None, None);
    while printed.is_none() || complaint.is_none() {
        match receiver.recv_timeout(PATIENCE) {
            Ok(("printed", bytes)) => printed = Some(bytes),
            Ok((_, bytes)) => complaint = Some(bytes),
            Err(_) => {
                child
                    .kill()
                    .and_then(|()| child.wait())
                    .context("ending it")?;
                bail!("{shown} did not end within {} s", PATIENCE.as_secs());
            }
        }
    }
    // Both are closed, so it is about to end.
    let status = ended(&mut child).with_context(|| format!("waiting for {shown}"))?;
    for thread in [out, err] {
        let _joined = thread.join();
    }
    let printed = printed.unwrap_or_default();
    if !status.success() {
        let complaint = complaint.unwrap_or_default();
        let text = String::from_utf8_lossy(&complaint);
        let last = text.trim().lines().last().unwrap_or("nothing was said");
        bail!("{shown} failed: {last}");
    }
    String::from_utf8(printed).with_context(|| format!("{shown} printed no text"))
}

/// Waits for a program that should end at once, and kills one that does not.
fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            return child.wait();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn reader(
    name: &'static str,
    from: impl io::Read + Send + 'static,
    to: mpsc::Sender<(&'static str, Vec<u8>)>,
) -> anyhow::Result<thread::JoinHandle<()>> {
    let read = move || {
        let mut bytes = Vec::new();
        // What is missing is found by whoever parses it.
        let _read = from.take(MAX_BYTES).read_to_end(&mut bytes);
        let _nobody_waits = to.send((name, bytes));
    };
    let thread = thread::Builder::new().name(format!("asked-{name}"));
    thread.spawn(read).context("starting a thread")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_are_not_there_are_none_and_long_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(read(&path).unwrap(), None);
        fs::write(&path, "x").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("x"));
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("no configuration"), "{error}");
    }

    #[test]
    fn programs_are_run_and_their_complaints_told() {
        let sh = Path::new("/bin/sh");
        assert_eq!(output(sh, &["-c", "echo a"]).unwrap(), "a\n");
        let error = output(sh, &["-c", "echo no >&2; exit 3"]).unwrap_err();
        assert!(error.to_string().ends_with("failed: no"), "{error}");
        assert!(output(Path::new("/none"), &[]).is_err());
    }
}
