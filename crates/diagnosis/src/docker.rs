//! A Docker: which store it has, and what has to be written for it to use yolofs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::bounded;
use crate::finding::Finding;
use crate::machine::version_of;
use crate::plan::{Change, Plan};
use crate::processes::{Process, installed, is_younger, running};

/// Where Docker looks for its configuration.
pub const DEFAULT_CONFIG: &str = "/etc/docker/daemon.json";
/// Where the packages' containerd listens, which Docker then uses.
const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// Where Docker keeps its data, unless told otherwise.
const DEFAULT_DATA_ROOT: &str = "/var/lib/docker";
/// From this version on a new Docker keeps images in containerd's store.
const NEW_STORE: u32 = 29;

/// Where Docker keeps the layers of its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerStore {
    /// In its own directories: layers are served in place.
    Classic,
    /// In a snapshotter of containerd, by its own choice.
    Containerd,
    /// In our snapshotter.
    Yolofs,
}

/// What becomes of layers that Docker keeps in containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// They are served where they are.
    Stay,
    /// Docker keeps them in our snapshotter.
    Move,
}

/// The Docker of this machine.
#[derive(Clone, Debug)]
pub struct Docker {
    config: PathBuf,
    text: Option<String>,
    settings: Map<String, Value>,
    version: Option<u32>,
    data_root: PathBuf,
    /// What its command line says of it, which its configuration must not say, too.
    driver: Option<String>,
    pid: Option<u32>,
    started: Option<SystemTime>,
    containerd: Option<PathBuf>,
}

impl Docker {
    /// Looks for the one that runs, or else for one that is installed. With `config`, for the one with that
    /// configuration.
    ///
    /// # Errors
    /// If its configuration cannot be read.
    pub fn find(config: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let file_of = |process: &Process| {
            process.path(process.flag(&["--config-file"]).unwrap_or(DEFAULT_CONFIG))
        };
        let mut all = running("dockerd").into_iter();
        let process = all.find(|one| config.is_none_or(|config| config == file_of(one)));
        let program = process.as_ref().and_then(|one| one.program.clone());
        let program = program.filter(|path| path.is_file());
        let Some(program) = program.or_else(|| installed("dockerd")) else {
            return Ok(None);
        };
        let file = match (&process, config) {
            (Some(process), _) => file_of(process),
            (None, Some(config)) => config.to_owned(),
            (None, None) => PathBuf::from(DEFAULT_CONFIG),
        };
        Self::of(&program, file, process.as_ref()).map(Some)
    }

    fn of(program: &Path, config: PathBuf, process: Option<&Process>) -> anyhow::Result<Self> {
        let text = bounded::read(&config)?;
        let settings = match text.as_deref().map(str::trim) {
            None | Some("") => Map::new(),
            Some(text) => serde_json::from_str(text)
                .with_context(|| format!("{} is no JSON object", config.display()))?,
        };
        let said = bounded::output(program, &["--version"])?;
        let flag = |name: &[&str]| process.and_then(|one| one.flag(name)).map(PathBuf::from);
        let setting = |name: &str| {
            settings
                .get(name)
                .and_then(Value::as_str)
                .map(PathBuf::from)
        };
        let data_root = flag(&["--data-root", "-g"]).or_else(|| setting("data-root"));
        let containerd = flag(&["--containerd"]).or_else(|| setting("containerd"));
        let driver = process.and_then(|one| one.flag(&["--storage-driver", "-s"]));
        Ok(Self {
            driver: driver.map(str::to_owned),
            version: said
                .split_whitespace()
                .nth(2)
                .and_then(version_of)
                .map(|(major, _)| major),
            data_root: data_root.unwrap_or_else(|| DEFAULT_DATA_ROOT.into()),
            containerd: containerd
                .or_else(|| Path::new(CONTAINERD).exists().then(|| CONTAINERD.into())),
            pid: process.map(|one| one.pid),
            started: process.and_then(Process::started),
            config,
            text,
            settings,
        })
    }

    /// Returns what to call it.
    #[must_use]
    pub fn name(&self) -> String {
        let version = self
            .version
            .map_or_else(String::new, |version| format!(" {version}"));
        format!("Docker{version} ({})", self.data_root.display())
    }

    /// Returns the socket of the containerd that it uses; none if it starts one itself.
    #[must_use]
    pub fn containerd(&self) -> Option<&Path> {
        self.containerd.as_deref()
    }

    /// Returns where it keeps layers, by the rules of Docker 29 (`daemon/image_store_choice.go`).
    #[must_use]
    pub fn store(&self) -> LayerStore {
        let setting = || self.settings.get("storage-driver").and_then(Value::as_str);
        let driver = self.driver.as_deref().or_else(setting);
        if driver == Some("yolofs") {
            return LayerStore::Yolofs;
        }
        let features = self.settings.get("features").and_then(Value::as_object);
        let wished = features.and_then(|features| features.get("containerd-snapshotter"));
        match wished.and_then(Value::as_bool) {
            Some(true) => return LayerStore::Containerd,
            Some(false) => return LayerStore::Classic,
            None => {}
        }
        let used = |driver: &str| {
            let dir = fs::read_dir(self.data_root.join(driver));
            dir.is_ok_and(|mut entries| entries.next().is_some())
        };
        let classic = ["overlay2", "fuse-overlayfs", "btrfs", "zfs"];
        let remapped = self.settings.contains_key("userns-remap");
        let old = self.version.is_some_and(|version| version < NEW_STORE);
        let named = driver.is_some_and(|driver| classic.contains(&driver) || driver == "vfs");
        if old || remapped || named || classic.iter().any(|driver| used(driver)) {
            LayerStore::Classic
        } else {
            LayerStore::Containerd
        }
    }

    /// Checks how it is configured, as far as yolofs is concerned.
    #[must_use]
    pub fn check(&self) -> Vec<Finding> {
        self.check_beside(&running("yolofs"))
    }

    /// Checks it beside these processes of ours.
    fn check_beside(&self, ours: &[Process]) -> Vec<Finding> {
        const CHECK: &str = "docker-store";
        let name = self.name();
        let server = ours.iter().find(|process| self.is_served_by(process));
        let features = self.settings.get("features").and_then(Value::as_object);
        let embedded = features.and_then(|features| features.get("embedded-containerd"));
        let mut findings = Vec::new();
        findings.push(match (self.store(), server) {
            (LayerStore::Classic | LayerStore::Containerd, Some(server)) => Finding::fine(
                CHECK,
                format!("{name}: process {} serves its layers in place", server.pid),
            ),
            (LayerStore::Classic, None) => Finding::advice(
                CHECK,
                format!("{name} keeps layers itself, and nobody serves them in place"),
                "yolofs setup docker, then systemctl enable --now yolofs-docker",
            ),
            (LayerStore::Containerd, None) => Finding::advice(
                CHECK,
                format!("{name} keeps layers in containerd's overlayfs, where only `yolofs docker` serves them"),
                "yolofs setup docker --in-place, then systemctl enable --now yolofs-docker; or yolofs setup docker, which has \
                 it keep them in yolofs",
            ),
            (LayerStore::Yolofs, _) if self.containerd.is_none() => Finding::fault(
                CHECK,
                format!("{name} is to use yolofs, and starts a containerd of its own, which reads no configuration"),
                "start containerd.service, or name its socket as \"containerd\" in daemon.json",
            ),
            (LayerStore::Yolofs, _) => Finding::fine(CHECK, format!("{name} keeps layers in yolofs")),
        });
        if embedded.and_then(Value::as_bool) == Some(true) {
            findings.push(Finding::fault(
                "docker-containerd",
                format!("{name}: embedded-containerd knows no snapshotter but its own"),
                "remove features.embedded-containerd from daemon.json",
            ));
        }
        findings
    }

    /// Returns whether a process is one that serves its layers.
    fn is_served_by(&self, process: &Process) -> bool {
        let mut words = process.args.windows(2);
        let dir = process.flag(&["--data-root"]).map_or_else(
            || PathBuf::from(DEFAULT_DATA_ROOT),
            |named| process.path(named),
        );
        words.any(|pair| pair[0] == "docker" && pair[1] == "serve") && dir == self.data_root
    }

    /// Returns the changes that make it use yolofs.
    ///
    /// # Errors
    /// If this Docker cannot use yolofs as it is; the message describes what to do.
    pub fn plan(&self, layers: Layers, etc: &Path, systemd: &Path) -> anyhow::Result<Plan> {
        let mut plan = Plan::default();
        let running = self
            .pid
            .map_or_else(|| "not running".to_owned(), |pid| format!("process {pid}"));
        plan.saw(format!("{}, {running}", self.name()));
        match (self.store(), layers) {
            (LayerStore::Classic, _) | (LayerStore::Containerd, Layers::Stay) => {
                self.in_place(&mut plan, etc, systemd)?;
            }
            (LayerStore::Yolofs, Layers::Stay) => bail!(
                "{} keeps layers in yolofs, which serves them: nothing is to be served in place (yolofs setup --undo takes \
                 that back)",
                self.name()
            ),
            (LayerStore::Containerd | LayerStore::Yolofs, Layers::Move) => {
                self.snapshotter(&mut plan)?;
            }
        }
        Ok(plan)
    }

    /// Docker's configuration stays as it is: its layers are served where they lie.
    fn in_place(&self, plan: &mut Plan, etc: &Path, systemd: &Path) -> anyhow::Result<()> {
        plan.saw(match self.store() {
            LayerStore::Containerd => {
                "it keeps layers in containerd's overlayfs: they are served in place, and its configuration stays"
            }
            LayerStore::Classic | LayerStore::Yolofs => {
                "it keeps layers itself: they are served in place, and its configuration stays"
            }
        });
        let text = format!(
            "# Written by `yolofs setup docker`; read by yolofs-docker.service.\nDATA_ROOT={}\n",
            self.data_root.display()
        );
        let why = "tells yolofs-docker.service where Docker's data is";
        plan.change(Change::to(&etc.join("docker.env"), text, why)?);
        let drop_in = systemd.join("docker.service.d/yolofs.conf");
        let text = include_str!("../../../packaging/docker/docker-clear.conf").to_owned();
        let why = "takes away what a killed yolofs left, before Docker starts";
        plan.change(Change::to(&drop_in, text, why)?);
        plan.then("systemctl daemon-reload");
        plan.then("systemctl enable --now yolofs-node yolofs-docker");
        Ok(())
    }

    fn snapshotter(&self, plan: &mut Plan) -> anyhow::Result<()> {
        plan.saw("it keeps layers in containerd: they are to be in its snapshotter yolofs");
        if self.containerd.is_none() {
            bail!(
                "{} starts a containerd of its own, which takes no snapshotter: start \
                 containerd.service, or name its socket as \"containerd\" in {}, and run this again",
                self.name(),
                self.config.display()
            );
        }
        if let Some(driver) = &self.driver
            && driver != "yolofs"
        {
            bail!(
                "{} has the storage driver {driver} on its command line, and would not start if {} named one, too: take the \
                 flag out of its unit (systemctl edit docker), restart it, and run this again",
                self.name(),
                self.config.display()
            );
        }
        let mut settings = self.settings.clone();
        if self.driver.is_none() {
            settings.insert("storage-driver".to_owned(), json!("yolofs"));
        }
        let features = settings.entry("features").or_insert_with(|| json!({}));
        let features = features.as_object_mut();
        let features =
            features.with_context(|| format!("features in {}", self.config.display()))?;
        features.insert("containerd-snapshotter".to_owned(), json!(true));
        let mut text = serde_json::to_string_pretty(&settings).context("writing JSON")?;
        text.push('\n');
        // Who wrote it otherwise and says the same has nothing to change.
        if settings != self.settings {
            let why = "has Docker keep layers in yolofs";
            plan.change(Change::to(&self.config, text, why)?);
            plan.note(
                "with Docker as it is, layers are served in place: yolofs setup docker --in-place (docs/docker.md)",
            );
            plan.note(
                "images and containers that Docker has now are not seen while it uses another \
                 store; they are back after yolofs setup --undo",
            );
        } else if self.text.is_none() {
            bail!("{} went away", self.config.display());
        }
        let is_read = self.pid.is_some() && !is_younger(&self.config, self.started);
        if !plan.changes.is_empty() || !is_read {
            plan.then(
                "systemctl restart docker        # ends its containers, unless live-restore is set",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docker(version: Option<u32>, settings: &Value, data_root: &Path) -> Docker {
        Docker {
            config: data_root.join("daemon.json"),
            text: None,
            settings: settings.as_object().unwrap().clone(),
            version,
            data_root: data_root.to_owned(),
            driver: None,
            pid: None,
            started: None,
            containerd: Some(CONTAINERD.into()),
        }
    }

    #[test]
    fn the_store_is_the_one_that_docker_would_choose() {
        let dir = tempfile::tempdir().unwrap();
        let store = |version, settings: &Value| docker(version, settings, dir.path()).store();
        let on = json!({"features": {"containerd-snapshotter": true}});
        let off = json!({"features": {"containerd-snapshotter": false}});
        assert_eq!(store(Some(20), &json!({})), LayerStore::Classic);
        assert_eq!(store(Some(28), &on), LayerStore::Containerd);
        for new in [Some(29), None] {
            assert_eq!(store(new, &json!({})), LayerStore::Containerd);
            assert_eq!(store(new, &off), LayerStore::Classic);
            assert_eq!(
                store(new, &json!({"userns-remap": "default"})),
                LayerStore::Classic
            );
            assert_eq!(
                store(new, &json!({"storage-driver": "overlay2"})),
                LayerStore::Classic
            );
            assert_eq!(
                store(new, &json!({"storage-driver": "yolofs"})),
                LayerStore::Yolofs
            );
        }
        fs::create_dir_all(dir.path().join("overlay2/l")).unwrap();
        assert_eq!(store(Some(29), &json!({})), LayerStore::Classic);
        assert_eq!(store(Some(29), &on), LayerStore::Containerd);
    }

    #[test]
    fn settings_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let settings = json!({"live-restore": true, "features": {"buildkit": true}});
        let plan = docker(Some(29), &settings, dir.path());
        let plan = plan.plan(Layers::Move, dir.path(), dir.path()).unwrap();
        let [change] = &plan.changes[..] else {
            panic!("{plan:?}");
        };
        let after: Value = serde_json::from_str(&change.after).unwrap();
        assert_eq!(
            after,
            json!({"live-restore": true, "storage-driver": "yolofs",
                   "features": {"buildkit": true, "containerd-snapshotter": true}})
        );
        let again = docker(Some(29), &after, dir.path());
        fs::write(&again.config, &change.after).unwrap();
        let again = Docker {
            text: Some(String::new()),
            ..again
        };
        assert!(
            again
                .plan(Layers::Move, dir.path(), dir.path())
                .unwrap()
                .changes
                .is_empty()
        );
    }

    #[test]
    fn layers_in_containerd_are_served_in_place_if_that_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let settings = json!({"live-restore": true});
        let plan = |docker: &Docker| docker.plan(Layers::Stay, dir.path(), dir.path());
        // Whoever runs containerd, Docker itself included.
        let alone = Docker {
            containerd: None,
            ..docker(Some(29), &settings, dir.path())
        };
        for docker in [alone, docker(Some(29), &settings, dir.path())] {
            let plan = plan(&docker).unwrap();
            let paths = plan.changes.iter().map(|change| change.path.as_path());
            let drop_in = dir.path().join("docker.service.d/yolofs.conf");
            let env = dir.path().join("docker.env");
            assert_eq!(paths.collect::<Vec<_>>(), [env, drop_in]);
            let then = plan.then.join("\n");
            assert!(
                then.contains("yolofs-docker") && !then.contains("restart"),
                "{then}"
            );
        }
        let ours = docker(Some(29), &json!({"storage-driver": "yolofs"}), dir.path());
        let error = plan(&ours).unwrap_err().to_string();
        assert!(
            error.contains("nothing is to be served in place"),
            "{error}"
        );
    }

    #[test]
    fn a_docker_with_a_containerd_of_its_own_is_told_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let alone = Docker {
            containerd: None,
            ..docker(Some(29), &json!({}), dir.path())
        };
        let error = alone
            .plan(Layers::Move, dir.path(), dir.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("start containerd.service"), "{error}");
        let wrong = json!({"storage-driver": "yolofs"});
        let alone = Docker {
            containerd: None,
            ..docker(Some(29), &wrong, dir.path())
        };
        assert_eq!(alone.check()[0].verdict, crate::Verdict::Fault);
    }

    #[test]
    fn layers_are_served_when_somebody_serves_them() {
        let dir = tempfile::tempdir().unwrap();
        let docker = docker(Some(20), &json!({}), dir.path());
        let verdict = |line: &str| {
            let process = Process {
                pid: 7,
                parent: None,
                program: None,
                args: line.split(' ').map(str::to_owned).collect(),
            };
            docker.check_beside(&[process])[0].verdict
        };
        let place = dir.path().display();
        let serves = format!("yolofs docker serve --all --data-root {place}");
        assert_eq!(verdict(&serves), crate::Verdict::Fine);
        for other in [
            "yolofs docker serve --all".to_owned(),
            format!("yolofs docker status --data-root {place}"),
        ] {
            assert_eq!(verdict(&other), crate::Verdict::Advice, "{other}");
        }
    }

    /// It does not start if both its command line and its configuration name a driver.
    #[test]
    fn a_driver_of_the_command_line_is_not_named_a_second_time() {
        let dir = tempfile::tempdir().unwrap();
        let started_with = |driver: &str, settings: &Value| Docker {
            driver: Some(driver.to_owned()),
            ..docker(Some(29), settings, dir.path())
        };
        let classic = started_with("overlay2", &json!({}));
        assert_eq!(classic.store(), LayerStore::Classic);
        let other = started_with("overlayfs", &json!({}));
        let error = other
            .plan(Layers::Move, dir.path(), dir.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("storage driver overlayfs"), "{error}");
        let ours = started_with("yolofs", &json!({}));
        let plan = ours.plan(Layers::Move, dir.path(), dir.path()).unwrap();
        assert!(!plan.changes[0].after.contains("storage-driver"));
    }
}
