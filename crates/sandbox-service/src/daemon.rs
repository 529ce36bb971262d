//! The operations of the daemon.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sandbox::{BaseSpec, Config, Phase, Result, Sandboxes, Stdio, Written, ZygoteSpec, ZygoteView};
use sandbox_handlers::{Budget, Handlers};
use sandbox_packages::Store;

use crate::bodies::{Create, Created, Exec, Executed, Output, SandboxView, Stats, WAIT_MAX_MS};
use crate::readers::Readers;
use crate::settings_file::{self, SettingsFile};

/// The sandboxes of a machine, and the settings that are restored at the next start.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) store: Arc<Store>,
    pub(crate) handlers: Handlers,
    pub(crate) settings: SettingsFile,
}

impl Daemon {
    /// Opens a directory, takes over the running sandboxes, and restores bases and Zygotes. One that cannot be
    /// restored is logged, and left out until it is requested again.
    ///
    /// # Errors
    /// If a directory is in use by another daemon, or this machine does not support sandboxes.
    pub fn open(config: Config, packages: &Path, budget: Budget) -> anyhow::Result<Self> {
        let settings_path = config.run_dir.join("settings.json");
        let sandboxes = Arc::new(Sandboxes::open(config).context("opening the sandboxes")?);
        let store = Arc::new(Store::open(packages).context("opening the packages")?);
        let handlers = Handlers::new(Arc::clone(&sandboxes), Arc::clone(&store), budget)
            .context("starting the handlers")?;
        let mut settings = settings_file::read(&settings_path)?;
        settings
            .bases
            .retain(|base| kept(&base.name, &sandboxes.add_base(base)));
        settings.zygotes.retain(|zygote| {
            let name = format!("the Zygote of {:?}", zygote.packages);
            kept(&name, &sandboxes.add_zygote(zygote.clone()).map(drop))
        });
        settings.handlers.retain(|spec| {
            let added = handlers.add(spec.clone());
            if let Err(error) = &added {
                log::warn!("the handler {} is left out: {error}", spec.name);
            }
            added.is_ok()
        });
        Ok(Self {
            sandboxes,
            store,
            handlers,
            settings: SettingsFile::new(settings_path, settings),
        })
    }

    /// Adds a base.
    ///
    /// # Errors
    /// If there is one of this name, it cannot be mounted, or the settings cannot be written; then it is not there.
    pub fn add_base(&self, base: BaseSpec) -> Result<()> {
        self.sandboxes.add_base(&base)?;
        let name = base.name.clone();
        let kept = self.settings.change(|settings| settings.bases.push(base));
        kept.inspect_err(|_| undone(&name, &self.sandboxes.remove_base(&name)))
    }

    /// Removes a base.
    ///
    /// # Errors
    /// If there is none of this name, or the settings cannot be written; then it is there.
    pub fn remove_base(&self, name: &str) -> Result<()> {
        // First: one that is still in the settings would be back at the next start.
        self.settings
            .change(|settings| settings.bases.retain(|base| base.name != name))?;
        self.sandboxes.remove_base(name)
    }

    /// Returns the bases.
    pub fn bases(&self) -> Vec<BaseSpec> {
        let there = self.sandboxes.bases();
        let mut bases = self.settings.now().bases;
        bases.retain(|base| there.contains(&base.name));
        bases
    }

    /// Makes a Zygote.
    ///
    /// # Errors
    /// If it cannot be started, cannot import, or the settings cannot be written; then it is not there.
    pub fn add_zygote(&self, spec: ZygoteSpec) -> Result<ZygoteView> {
        let view = self.sandboxes.add_zygote(spec.clone())?;
        let live = self.sandboxes.count_zygotes(&spec);
        let kept = self
            .settings
            .change(|settings| settings.keep_zygote(spec, live));
        kept.inspect_err(|_| undone(&view.id, &self.sandboxes.evict(&view.id)))?;
        Ok(view)
    }

    /// Returns the Zygotes.
    pub fn zygotes(&self) -> Vec<ZygoteView> {
        self.sandboxes.zygotes()
    }

    /// Ends a Zygote, and removes it from the settings.
    ///
    /// # Errors
    /// If there is none of this id, or the settings cannot be written; then it is there.
    pub fn evict(&self, id: &str) -> Result<()> {
        if let Some(spec) = self.sandboxes.zygote_spec(id) {
            self.settings
                .change(|settings| settings.forget_zygote(&spec))?;
        }
        self.sandboxes.evict(id)
    }

    /// Makes a sandbox, and waits for its end if that is wanted.
    ///
    /// # Errors
    /// As [`Sandboxes::create`].
    pub fn create(&self, create: Create) -> Result<Created> {
        let (request, _claim) = self.with_packages(create.request, &create.requires)?;
        let sandbox = self.sandboxes.create(request, Stdio::Captured)?;
        let wait = Duration::from_millis(create.wait_ms.min(WAIT_MAX_MS));
        let ended = sandbox.wait(wait).is_some();
        Ok(Created {
            output: sandbox.written().filter(|_| ended).map(output),
            sandbox: SandboxView::of(&sandbox),
        })
    }

    /// Waits for the end of a sandbox.
    ///
    /// # Errors
    /// If there is none of this id.
    pub fn wait(&self, id: &str, wait_ms: u64) -> Result<Created> {
        let sandbox = self.sandboxes.get(id)?;
        sandbox.wait(Duration::from_millis(wait_ms.min(WAIT_MAX_MS)));
        Ok(Created {
            output: sandbox.written().map(output),
            sandbox: SandboxView::of(&sandbox),
        })
    }

    /// Returns all sandboxes that run, and the last ones that have ended.
    pub fn list(&self) -> Vec<SandboxView> {
        let all = self.sandboxes.list();
        all.iter().map(|sandbox| SandboxView::of(sandbox)).collect()
    }

    /// Freezes a sandbox.
    ///
    /// # Errors
    /// If there is none of this id, or it has ended.
    pub fn pause(&self, id: &str) -> Result<()> {
        self.sandboxes.get(id)?.pause()
    }

    /// Resumes a sandbox.
    ///
    /// # Errors
    /// As [`Self::pause`].
    pub fn resume(&self, id: &str) -> Result<()> {
        self.sandboxes.get(id)?.resume()
    }

    /// Kills a sandbox.
    ///
    /// # Errors
    /// If there is none of this id.
    pub fn kill(&self, id: &str) -> Result<()> {
        self.sandboxes.get(id)?.kill()
    }

    /// Runs another program in a sandbox to its end.
    ///
    /// # Errors
    /// If there is no such sandbox, or the program cannot be started.
    pub fn exec(&self, id: &str, exec: &Exec) -> Result<Executed> {
        let sandbox = self.sandboxes.get(id)?;
        let step = |source| sandbox::SandboxError::Step {
            doing: "making a pipe",
            source,
        };
        let null = fs::File::open("/dev/null").map_err(step)?;
        let (out, out_theirs) = std::io::pipe().map_err(step)?;
        let (err, err_theirs) = std::io::pipe().map_err(step)?;
        let stdio = [null.into(), out_theirs.into(), err_theirs.into()];
        let mut execution = self.sandboxes.exec(&sandbox, &exec.command, stdio)?;
        let readers = Readers::start([out, err]).map_err(step)?;
        let timeout = Duration::from_millis(exec.timeout_ms.min(WAIT_MAX_MS));
        let status = execution.wait(timeout)?;
        // Kills it if it still runs. What it has started may still have the pipes.
        drop(execution);
        let output = output(readers.finish());
        Ok(Executed { status, output })
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        let all = self.sandboxes.list();
        let live = all
            .iter()
            .filter(|one| !matches!(one.phase(), Phase::Ended(_)));
        Stats {
            sandboxes: self.sandboxes.counts(),
            zygotes: self.sandboxes.zygote_counts(),
            handlers: self.handlers.counts(),
            live: u64::try_from(live.count()).unwrap_or(0),
        }
    }
}

fn output([out, err]: [Written; 2]) -> Output {
    let text = |written: &Written| String::from_utf8_lossy(&written.bytes).into_owned();
    Output {
        stdout: text(&out),
        stderr: text(&err),
        dropped_bytes: out.dropped_bytes + err.dropped_bytes,
    }
}

/// Says of something that could not be made again that it is left out.
fn kept(name: &str, made: &Result<()>) -> bool {
    if let Err(error) = made {
        log::warn!("{name} is left out: {error}");
    }
    made.is_ok()
}

/// Says of something that was made and could not be taken away again that it stays.
pub(crate) fn undone<E: std::fmt::Display>(name: &str, undone: &std::result::Result<(), E>) {
    if let Err(error) = undone {
        log::error!("{name} is in use until the daemon ends: {error}");
    }
}
