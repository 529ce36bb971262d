//! `pip`, in sandboxes: its arguments, and its resources.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sandbox::{Exit, ExitStatus, Limits, Network, Request, Sandboxes, Stdio};

use crate::error::{PackageError, Result};
use crate::tree::size_of;

/// How often the size of what it writes is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How much of what it said goes into an error.
const SAID_MAX_BYTES: usize = 2000;

/// The source of packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory with wheels, and source distributions that may be built. There is no network then.
    Directory(PathBuf),
    /// The address of an index. Resolving and building have the machine's network then.
    Index(String),
}

/// The program that installs, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installer {
    /// The base that packages are for, and that the installer runs in.
    pub base: String,
    /// The interpreter, by its path in the base.
    pub interpreter: String,
    /// A directory with the package `pip`, for a base that has none.
    pub pip: Option<PathBuf>,
    /// How long one run may take.
    pub patience: Duration,
    /// How much one run may write.
    pub bytes_max: u64,
    /// How much memory it may have.
    pub memory_bytes: u64,
}

impl Installer {
    /// Returns the `pip` of a base, with the usual limits.
    pub fn new(base: &str, interpreter: &str) -> Self {
        Self {
            base: base.to_owned(),
            interpreter: interpreter.to_owned(),
            pip: None,
            patience: Duration::from_secs(600),
            // The largest packages that people have on one machine are some gigabytes.
            bytes_max: 8 << 30,
            memory_bytes: 2 << 30,
        }
    }

    /// Resolves requirements, and downloads the wheels to `scratch`. No code of a package runs: a source
    /// distribution would run its own to list its requirements. `built` has wheels that were built from such.
    pub(crate) fn download(
        &self,
        sandboxes: &Sandboxes,
        requirements: &[String],
        source: &Source,
        scratch: &Path,
    ) -> Result<()> {
        let mut command = self.pip(&[
            "download",
            "--only-binary",
            ":all:",
            "--dest",
            "/scratch/wheels",
        ]);
        let mut request = self.request(scratch);
        self.have(source, &mut command, &mut request)?;
        // Behind that, nothing is an option.
        command.extend(["--".to_owned()]);
        command.extend_from_slice(requirements);
        request.command = command;
        self.run(
            sandboxes,
            request,
            scratch,
            "resolving",
            &requirements.join(" "),
        )
    }

    /// Builds a wheel from a source distribution, whose code runs for that.
    pub(crate) fn build(
        &self,
        sandboxes: &Sandboxes,
        requirement: &str,
        source: &Source,
        scratch: &Path,
    ) -> Result<()> {
        let mut command = self.pip(&[
            "wheel",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--wheel-dir",
            "/scratch/wheels",
        ]);
        let mut request = self.request(scratch);
        self.have(source, &mut command, &mut request)?;
        command.extend(["--".to_owned(), requirement.to_owned()]);
        request.command = command;
        self.run(sandboxes, request, scratch, "building", requirement)
    }

    /// Unpacks a wheel, which is alone in the directory `wheel`.
    pub(crate) fn install(
        &self,
        sandboxes: &Sandboxes,
        wheel: &Path,
        file: &str,
        scratch: &Path,
    ) -> Result<()> {
        let mut command = self.pip(&[
            "install",
            "--no-deps",
            "--no-index",
            "--target",
            "/scratch/files",
        ]);
        command.extend(["--".to_owned(), format!("/code/{file}")]);
        let mut request = self.request(scratch);
        request.code = Some(wheel.to_owned());
        request.command = command;
        self.run(sandboxes, request, scratch, "installing", file)
    }

    fn pip(&self, arguments: &[&str]) -> Vec<String> {
        // Isolated: but for what finds a pip that the base does not have.
        let isolated = if self.pip.is_some() { "-s" } else { "-I" };
        let before = [
            &self.interpreter,
            isolated,
            "-m",
            "pip",
            "--isolated",
            "--no-input",
        ];
        let before = before
            .into_iter()
            .chain(["--disable-pip-version-check", "--no-cache-dir"]);
        before
            .chain(arguments.iter().copied())
            .map(str::to_owned)
            .collect()
    }

    fn request(&self, scratch: &Path) -> Request {
        let mut request = Request::new(&self.base, &[]);
        let mut set = |name: &str, value: &str| {
            request
                .environment
                .insert(name.to_owned(), value.to_owned());
        };
        set("HOME", "/tmp");
        set("LC_ALL", "C.UTF-8");
        // Large packages do not fit into memory.
        set("TMPDIR", "/scratch/tmp");
        if self.pip.is_some() {
            set("PYTHONPATH", "/packages");
        }
        request.packages.clone_from(&self.pip);
        request.scratch = Some(scratch.to_owned());
        request.limits = Limits {
            memory_bytes: self.memory_bytes,
            ..Limits::default()
        };
        let patience = u64::try_from(self.patience.as_millis());
        request.timeout_ms = Some(patience.unwrap_or(u64::MAX));
        request
    }

    fn have(
        &self,
        source: &Source,
        command: &mut Vec<String>,
        request: &mut Request,
    ) -> Result<()> {
        match source {
            Source::Directory(dir) => {
                request.code = Some(dir.clone());
                command.extend(["--no-index", "--find-links", "/code"].map(str::to_owned));
            }
            Source::Index(address) => {
                let is_address = ["https://", "http://"]
                    .iter()
                    .any(|kind| address.starts_with(kind));
                if !is_address || address.len() > 2000 {
                    return Err(PackageError::Invalid(format!(
                        "{address:?} is no index of packages, such as https://pypi.org/simple"
                    )));
                }
                request.network = Network::Host;
                command.extend(["--index-url".to_owned(), address.clone()]);
            }
        }
        // What was built here before.
        command.extend(["--find-links", "/scratch/built"].map(str::to_owned));
        Ok(())
    }

    /// Runs it to its end, which comes early if it writes too much.
    fn run(
        &self,
        sandboxes: &Sandboxes,
        request: Request,
        scratch: &Path,
        doing: &'static str,
        what: &str,
    ) -> Result<()> {
        let in_sandbox = |source| PackageError::Sandbox { doing, source };
        let failed = |said: String| PackageError::Installer {
            doing,
            what: what.to_owned(),
            said,
        };
        let sandbox = sandboxes
            .create(request, Stdio::Captured)
            .map_err(in_sandbox)?;
        // It has a deadline of its own, and the kernel some time to end it.
        let deadline = Instant::now() + self.patience + Duration::from_secs(60);
        let mut problem = None;
        let exit = loop {
            if let Some(exit) = sandbox.wait(LOOK) {
                break exit;
            }
            if problem.is_none() {
                problem = self.excess(scratch);
            }
            if problem.is_some() {
                sandbox.kill().map_err(in_sandbox)?;
            }
            if Instant::now() > deadline {
                return Err(failed("it does not end".to_owned()));
            }
        };
        if let Some(problem) = problem.or_else(|| self.excess(scratch)) {
            return Err(failed(problem));
        }
        match exit {
            Exit {
                status: ExitStatus::Code(0),
                cause: None,
            } => Ok(()),
            Exit {
                cause: Some(cause), ..
            } => Err(failed(format!("it was ended: {cause:?}"))),
            Exit { .. } => {
                let said = sandbox
                    .written()
                    .map(|[out, err]| [out.bytes, err.bytes].concat());
                let said = String::from_utf8_lossy(&said.unwrap_or_default())
                    .trim()
                    .to_owned();
                let from = said.ceil_char_boundary(said.len().saturating_sub(SAID_MAX_BYTES));
                Err(failed(said[from..].to_owned()))
            }
        }
    }

    fn excess(&self, scratch: &Path) -> Option<String> {
        match size_of(scratch) {
            Ok(size) if size.bytes <= self.bytes_max => None,
            Ok(_) => Some(format!("it has written more than {} bytes", self.bytes_max)),
            Err(error) => Some(error.to_string()),
        }
    }
}
