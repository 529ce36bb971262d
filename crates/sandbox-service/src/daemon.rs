//! The operations of the daemon.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use sandbox::{BaseSpec, Config, Phase, Result, Sandboxes, Stdio, Written, ZygoteSpec, ZygoteView};
use sandbox_handlers::{Budget, Handlers};
use sandbox_packages::Store;

use crate::bodies::{
    Create, Created, Exec, Executed, Output, SandboxView, Settings, Stats, WAIT_MAX_MS,
};
use crate::readers::Readers;

/// The sandboxes of a machine, and the settings that are restored at the next start.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) store: Arc<Store>,
    pub(crate) handlers: Handlers,
    settings: Mutex<Settings>,
    settings_path: PathBuf,
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
        let mut settings = read_settings(&settings_path)?;
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
            settings: Mutex::new(settings),
            settings_path,
        })
    }

    /// Adds a base.
    ///
    /// # Errors
    /// If there is one of this name, or it cannot be mounted.
    pub fn add_base(&self, base: BaseSpec) -> Result<()> {
        self.sandboxes.add_base(&base)?;
        self.change_settings(|settings| settings.bases.push(base));
        Ok(())
    }

    /// Removes a base.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn remove_base(&self, name: &str) -> Result<()> {
        self.sandboxes.remove_base(name)?;
        self.change_settings(|settings| settings.bases.retain(|base| base.name != name));
        Ok(())
    }

    /// Returns the bases.
    pub fn bases(&self) -> Vec<BaseSpec> {
        let there = self.sandboxes.bases();
        let settings = self.settings.lock();
        let bases = settings.bases.iter();
        bases
            .filter(|base| there.contains(&base.name))
            .cloned()
            .collect()
    }

    /// Makes a Zygote.
    ///
    /// # Errors
    /// If it cannot be started, or cannot import.
    pub fn add_zygote(&self, spec: ZygoteSpec) -> Result<ZygoteView> {
        let view = self.sandboxes.add_zygote(spec.clone())?;
        self.change_settings(|settings| {
            settings.zygotes.retain(|other| *other != spec);
            settings.zygotes.push(spec);
        });
        Ok(view)
    }

    /// Returns the Zygotes.
    pub fn zygotes(&self) -> Vec<ZygoteView> {
        self.sandboxes.zygotes()
    }

    /// Ends a Zygote, and removes it from the settings.
    ///
    /// # Errors
    /// If there is none of this id.
    pub fn evict(&self, id: &str) -> Result<()> {
        let all = self.sandboxes.zygotes();
        self.sandboxes.evict(id)?;
        if let Some(ended) = all.into_iter().find(|zygote| zygote.id == id) {
            let is_it =
                |spec: &ZygoteSpec| spec.base == ended.base && spec.packages == ended.packages;
            self.change_settings(|settings| settings.zygotes.retain(|spec| !is_it(spec)));
        }
        Ok(())
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

    /// Changes the settings that are restored at the next start. A failure to write them changes nothing now.
    pub(crate) fn change_settings(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.settings.lock();
        change(&mut settings);
        // Under the lock, so that an older state does not replace a newer one; the file is small, and
        // in memory where /run is.
        if let Err(error) = write_settings(&self.settings_path, &settings) {
            log::warn!("bases and Zygotes are forgotten at the next start: {error:#}");
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

fn read_settings(path: &Path) -> anyhow::Result<Settings> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| {
            format!(
                "reading {}: remove it to start without bases",
                path.display()
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Settings::default()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Replaces the settings: after a power cut they are the ones before, or these, and not a part of them.
fn write_settings(path: &Path, settings: &Settings) -> anyhow::Result<()> {
    let aside = path.with_extension("new");
    let mut file =
        fs::File::create(&aside).with_context(|| format!("making {}", aside.display()))?;
    file.write_all(&serde_json::to_vec_pretty(settings)?)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("writing {}", aside.display()))?;
    fs::rename(&aside, path).with_context(|| format!("replacing {}", path.display()))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let dir = fs::File::open(dir).with_context(|| format!("opening {}", dir.display()))?;
    dir.sync_all().context("writing the name of the settings")
}
