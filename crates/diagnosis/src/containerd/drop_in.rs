//! The configuration of the snapshotter, as a drop-in file of containerd.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use super::{
    CRI_IMAGES, CRI_OLD, Containerd, DROP_IN, TRANSFER, at, known, table_at, takes_in, text_at,
};
use crate::bounded;
use crate::plan::{Change, Plan};

/// The runtime of pods that need no other.
const RUNC: &str = "io.containerd.runc.v2";
/// From this version on layers can be unpacked at once, by a snapshotter that takes their parent late.
const AT_ONCE: (u32, u32) = (2, 4);
/// From this version on each file is migrated by itself, whatever the versions of the others.
const EACH_ITS_VERSION: (u32, u32) = (2, 4);
/// As many as are downloaded at once, unless somebody says otherwise.
const UNPACKS: i64 = 3;
/// The first lines of what we write.
const HEAD: &str = "\
# Written by `yolofs setup`, which writes it anew; `yolofs setup --undo` takes it away.
";

/// What uses yolofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Clients that request it: `ctr --snapshotter`, nerdctl, Docker.
    OnRequest,
    /// All pods.
    Pods,
    /// Pods of the runtime handler `yolofs` (a RuntimeClass).
    RuntimeHandler,
}

/// The settings of the snapshotter.
#[derive(Clone, Debug)]
pub struct Options {
    /// What uses it.
    pub used: Use,
    /// The socket of `yolofs snapshotter`.
    pub address: PathBuf,
    /// Its directory.
    pub root: PathBuf,
}

impl Containerd {
    /// Returns the changes that make this containerd use the snapshotter.
    ///
    /// # Errors
    /// If this configuration does not allow a drop-in; the message describes the manual change.
    pub fn plan(&self, options: &Options) -> anyhow::Result<Plan> {
        known(self.version)?;
        let mut plan = Plan::default();
        plan.saw(format!(
            "{}, {}",
            self.name(),
            if self.runs() {
                "running"
            } else {
                "not running"
            }
        ));
        let file = self.place(&mut plan)?;
        let used = match (options.used, used_by(&file)?) {
            (Use::OnRequest, Some(pods)) => {
                plan.note("pods stay on yolofs, as a former setup had it; yolofs setup --undo takes that back");
                pods
            }
            (used, _) => used,
        };
        let text = format!("{HEAD}{}", self.drop_in(options, used)?);
        let why = match used {
            Use::OnRequest => "tells containerd of the snapshotter",
            Use::Pods => "tells containerd of the snapshotter, and has pods run on it",
            Use::RuntimeHandler => {
                "tells containerd of the snapshotter, and has pods of the runtime handler yolofs run on it"
            }
        };
        plan.change(Change::to(&file, text, why)?);
        plan.then("systemctl enable --now yolofs-node yolofs-snapshotter");
        if !plan.changes.is_empty() || !self.runs() || self.unread_drop_in().is_some() {
            plan.then("systemctl restart containerd    # containers go on running");
        }
        Ok(plan)
    }

    /// Finds a place for the file that containerd reads, and has it read if nothing is imported yet.
    fn place(&self, plan: &mut Plan) -> anyhow::Result<PathBuf> {
        let imports = self.imports();
        let known = imports.iter().find_map(|import| {
            let file = import.parent()?.join(DROP_IN);
            takes_in(import, &file).then_some(file)
        });
        if let Some(file) = known {
            return Ok(file);
        }
        let (dir, config) = (self.drop_ins(), self.config.display());
        let pattern = format!("{}/*.toml", dir.display());
        let line = format!("imports = [{pattern:?}]");
        let why = "has containerd read drop-in files";
        match &self.main_text {
            None => {
                let version = if self.is_two() { 3 } else { 2 };
                let text = format!("{HEAD}version = {version}\n{line}\n");
                plan.change(Change::to(&self.config, text, why)?);
            }
            Some(_) if self.needs_a_version() && self.is_two() => bail!(
                "{config} has no version, so containerd reads it as one of 1.0: run `containerd \
                 config migrate`, put what it prints there, and run this again"
            ),
            Some(_) if self.needs_a_version() => bail!(
                "{config} has no version, so containerd reads it as one of 1.0: put `version = 2` at its top and \
                 the whole names of plugins into it (\"{CRI_OLD}\" for \"cri\"), and run this again"
            ),
            Some(text) if self.imports_nothing() => {
                let text = with_imports(text, &line).with_context(|| {
                    format!("{config} has imports on several lines: add {pattern:?} to them, and run this again")
                })?;
                plan.change(Change::to(&self.config, text, why)?);
            }
            Some(_) if self.main.contains_key("imports") => bail!(
                "{config} imports other files and no drop-ins: add {pattern:?} to its imports, and \
                 run this again"
            ),
            // At the top, where no table has begun.
            Some(text) => plan.change(Change::to(&self.config, format!("{line}\n{text}"), why)?),
        }
        Ok(dir.join(DROP_IN))
    }

    /// Returns whether the list of imports is there, and empty: so does `containerd config default` write it.
    fn imports_nothing(&self) -> bool {
        let list = self.main.get("imports").and_then(Value::as_array);
        list.is_some_and(Vec::is_empty)
    }

    /// Returns whether the main file can import nothing as it is. From 2.4 on each file has a version of its own: what
    /// Docker's packages install has none.
    fn needs_a_version(&self) -> bool {
        self.version < EACH_ITS_VERSION && !self.main.contains_key("version")
    }

    fn drop_in(&self, options: &Options, used: Use) -> anyhow::Result<String> {
        let mut table = Table::new();
        table.insert("version".to_owned(), Value::Integer(self.file_version()?));
        let mut yolofs = Table::new();
        yolofs.insert("type".to_owned(), "snapshot".into());
        yolofs.insert("address".to_owned(), text(&options.address)?.into());
        let mut plugins = Table::new();
        if self.is_two() {
            let mut exports = Table::new();
            exports.insert("root".to_owned(), text(&options.root)?.into());
            exports.insert(
                "enable_remote_snapshot_annotations".to_owned(),
                "true".into(),
            );
            yolofs.insert("exports".to_owned(), Value::Table(exports));
            let mut transfer = Table::new();
            transfer.insert("unpack_config".to_owned(), self.unpack_config());
            if self.version >= AT_ONCE {
                yolofs.insert(
                    "capabilities".to_owned(),
                    vec!["rebase", "remap-ids"].into(),
                );
                transfer.insert("max_concurrent_unpacks".to_owned(), self.unpacks_at_once());
            }
            plugins.insert(TRANSFER.to_owned(), Value::Table(transfer));
            self.pods(used, &mut plugins);
        } else if let Some(cri) = self.old_pods(used)? {
            plugins.insert(CRI_OLD.to_owned(), Value::Table(cri));
        }
        let mut proxies = Table::new();
        proxies.insert("yolofs".to_owned(), Value::Table(yolofs));
        table.insert("proxy_plugins".to_owned(), Value::Table(proxies));
        if !plugins.is_empty() {
            table.insert("plugins".to_owned(), Value::Table(plugins));
        }
        toml::to_string_pretty(&table).context("writing TOML")
    }

    /// Returns the version that the drop-in is to have.
    fn file_version(&self) -> anyhow::Result<i64> {
        let main = self.main.get("version").and_then(Value::as_integer);
        if !self.is_two() {
            return Ok(2);
        }
        match main {
            // Until 2.4 a file of a higher version than the main one keeps that from being migrated.
            Some(version) if version < 3 && self.version < EACH_ITS_VERSION => bail!(
                "{} is of version {version}: put there what `containerd config migrate` prints, and \
                 run this again",
                self.config.display()
            ),
            Some(version @ 3..) => Ok(version),
            _ => Ok(3),
        }
    }

    /// Returns the list of what images are unpacked to, with ours: a list of a drop-in replaces the one
    /// before it, and the default too.
    fn unpack_config(&self) -> Value {
        let platform = if cfg!(target_arch = "aarch64") {
            "linux/arm64"
        } else {
            "linux/amd64"
        };
        let entry = |snapshotter: &str, more: &[(&str, Value)]| {
            let mut entry = Table::new();
            entry.insert("platform".to_owned(), platform.into());
            entry.insert("snapshotter".to_owned(), snapshotter.into());
            let more = more
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.clone()));
            entry.extend(more);
            Value::Table(entry)
        };
        let mut list: Vec<Value> = match self.unpacks_to() {
            Some(known) => known
                .into_iter()
                .filter(|entry| text_at(entry, &["snapshotter"]) != Some("yolofs"))
                .map(|entry| Value::Table(said(entry)))
                .collect(),
            None => vec![entry("overlayfs", &[("differ", "walking".into())])],
        };
        // A snapshotter that is not there must not fail the pulls of the others. Before 2.4 the list knows no
        // such word, and a proxy counts as there.
        let optional = (self.version >= AT_ONCE).then_some(("optional", Value::Boolean(true)));
        let walking = ("differ", "walking".into());
        let more: Vec<_> = [walking].into_iter().chain(optional).collect();
        list.push(entry("yolofs", &more));
        Value::Array(list)
    }

    /// Returns how many layers are unpacked at once: containerd's default is one.
    fn unpacks_at_once(&self) -> Value {
        let known = at(
            &self.effective,
            &["plugins", TRANSFER, "max_concurrent_unpacks"],
        );
        let known = known
            .and_then(Value::as_integer)
            .filter(|number| *number > 1);
        Value::Integer(known.unwrap_or(UNPACKS))
    }

    /// Has pods of containerd 2 use it.
    fn pods(&self, used: Use, plugins: &mut Table) {
        let mut images = Table::new();
        match used {
            Use::OnRequest => return,
            Use::Pods => {
                images.insert("snapshotter".to_owned(), "yolofs".into());
            }
            Use::RuntimeHandler => {
                let platform = single(
                    "yolofs",
                    Value::Table(single("snapshotter", "yolofs".into())),
                );
                images.insert("runtime_platforms".to_owned(), Value::Table(platform));
                let mut handler = single("runtime_type", RUNC.into());
                handler.insert("snapshotter".to_owned(), "yolofs".into());
                let runtimes = single("yolofs", Value::Table(handler));
                let runtime = single("runtimes", Value::Table(runtimes));
                let runtime = single("containerd", Value::Table(runtime));
                plugins.insert(
                    "io.containerd.cri.v1.runtime".to_owned(),
                    Value::Table(runtime),
                );
            }
        }
        if let Some(mirrors) = self.one_directory_of_mirrors() {
            let registry = single("config_path", mirrors.into());
            images.insert("registry".to_owned(), Value::Table(registry));
        }
        plugins.insert(CRI_IMAGES.to_owned(), Value::Table(images));
    }

    /// Returns the directory of mirrors to name, where the default is a list that pulls take for one name.
    fn one_directory_of_mirrors(&self) -> Option<String> {
        let registry = table_at(&self.effective, &["plugins", CRI_IMAGES, "registry"])?;
        let path = text_at(registry, &["config_path"]).unwrap_or_default();
        let named = |key: &str| table_at(registry, &[key]).is_some_and(|table| !table.is_empty());
        let dir = self.config.with_file_name("certs.d");
        let default = path.is_empty() && !named("mirrors") && !named("configs");
        let ours = dir.to_str().is_some_and(|dir| dir == path);
        ((default && dir.is_dir()) || ours).then(|| dir.to_str().map(str::to_owned))?
    }

    /// Returns all that is configured of the pods of containerd 1, with ours: a drop-in's table of a plugin
    /// replaces the main file's.
    fn old_pods(&self, used: Use) -> anyhow::Result<Option<Table>> {
        if used == Use::OnRequest {
            return Ok(None);
        }
        let mut cri = table_at(&self.main, &["plugins", CRI_OLD])
            .cloned()
            .unwrap_or_default();
        let containerd = inner(&mut cri, "containerd")?;
        if used == Use::Pods {
            containerd.insert("snapshotter".to_owned(), "yolofs".into());
        } else {
            if self.version < (1, 7) {
                bail!("containerd 1.6 has one snapshotter for all pods: leave `runtime_class` out");
            }
            let handler = inner(inner(containerd, "runtimes")?, "yolofs")?;
            handler.insert("runtime_type".to_owned(), RUNC.into());
            handler.insert("snapshotter".to_owned(), "yolofs".into());
        }
        Ok(Some(cri))
    }

    /// Checks that containerd accepts the written configuration completely.
    ///
    /// # Errors
    /// If it cannot parse it, or drops a part.
    pub fn confirm(&mut self, options: &Options) -> anyhow::Result<()> {
        self.read()?;
        let address = self.proxy().and_then(|proxy| text_at(proxy, &["address"]));
        if address != options.address.to_str() {
            bail!(
                "{} does not see the snapshotter in its configuration",
                self.name()
            );
        }
        if options.used == Use::Pods && self.pods_snapshotter() != Some("yolofs") {
            bail!("{}: pods would not run on yolofs", self.name());
        }
        let handler = [
            "plugins",
            "io.containerd.cri.v1.runtime",
            "containerd",
            "runtimes",
            "yolofs",
        ];
        if options.used == Use::RuntimeHandler
            && self.is_two()
            && at(&self.effective, &handler).is_none()
        {
            bail!("{}: the runtime handler is not there", self.name());
        }
        Ok(())
    }
}

/// Returns which pods a file that setup wrote has run on yolofs; `None` if it has none, or is not there.
fn used_by(file: &Path) -> anyhow::Result<Option<Use>> {
    let Some(text) = bounded::read(file)?.filter(|text| text.starts_with(HEAD)) else {
        return Ok(None);
    };
    let table: Table = text
        .parse()
        .with_context(|| format!("{} is no TOML", file.display()))?;
    let is_ours = |path: &[&str]| text_at(&table, path) == Some("yolofs");
    let of_all = is_ours(&["plugins", CRI_IMAGES, "snapshotter"])
        || is_ours(&["plugins", CRI_OLD, "containerd", "snapshotter"]);
    let handler = ["containerd", "runtimes", "yolofs", "snapshotter"];
    let of_some = ["io.containerd.cri.v1.runtime", CRI_OLD]
        .iter()
        .any(|plugin| is_ours(&[&["plugins", *plugin], &handler[..]].concat()));
    Ok(match (of_all, of_some) {
        (true, _) => Some(Use::Pods),
        (false, true) => Some(Use::RuntimeHandler),
        (false, false) => None,
    })
}

/// Returns a file whose empty list of imports has become this line; `None` if the list is not on a line of its own. All
/// other lines stay.
fn with_imports(text: &str, line: &str) -> Option<String> {
    let is_empty_list = |candidate: &str| {
        let table = candidate.parse::<Table>().unwrap_or_default();
        table.len() == 1 && table.contains_key("imports")
    };
    let mut lines: Vec<&str> = text.lines().collect();
    let list = lines
        .iter()
        .position(|candidate| is_empty_list(candidate))?;
    lines[list] = line;
    Some(lines.join("\n") + "\n")
}

/// Returns the values of an entry that are set: the dump also shows empty ones.
fn said(entry: &Table) -> Table {
    let empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Boolean(set) => !set,
        _ => false,
    };
    let said = entry.iter().filter(|(_, value)| !empty(value));
    said.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not text", path.display()))?;
    Ok(text.to_owned())
}

fn single(key: &str, value: Value) -> Table {
    [(key.to_owned(), value)].into_iter().collect()
}

/// Returns the table within a table, made if it is not there.
fn inner<'t>(table: &'t mut Table, key: &str) -> anyhow::Result<&'t mut Table> {
    let value = table
        .entry(key.to_owned())
        .or_insert_with(|| Value::Table(Table::new()));
    value
        .as_table_mut()
        .with_context(|| format!("{key} is no table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_former_setup_had_pods_run_on_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("yolofs.toml");
        assert_eq!(used_by(&file).unwrap(), None);
        let all = format!("[plugins.\"{CRI_IMAGES}\"]\nsnapshotter = \"yolofs\"\n");
        let some = format!(
            "[plugins.\"{CRI_OLD}\".containerd.runtimes.yolofs]\nsnapshotter = \"yolofs\"\n"
        );
        for (text, expected) in [
            (format!("{HEAD}version = 3\n"), None),
            (format!("{HEAD}{all}"), Some(Use::Pods)),
            (format!("{HEAD}{some}"), Some(Use::RuntimeHandler)),
            // Of somebody else.
            (all, None),
        ] {
            std::fs::write(&file, &text).unwrap();
            assert_eq!(used_by(&file).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn an_empty_list_of_imports_is_replaced_and_all_else_stays() {
        let file = "# Ours.\nversion = 2\nimports = []  # none\n\n[a]\n  b = 1 # c\n";
        let new = with_imports(file, "imports = ['x']").unwrap();
        assert_eq!(
            new,
            "# Ours.\nversion = 2\nimports = ['x']\n\n[a]\n  b = 1 # c\n"
        );
        assert_eq!(with_imports("imports = [\n]\n", "x"), None);
    }
}
