//! The traps of containerd's configuration, each with its cure.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rawio::unix_socket::connect_within;
use toml::Value;

use super::{CRI_IMAGES, CRI_OLD, Containerd, DROP_IN, at, takes_in, text_at};
use crate::finding::Finding;
use crate::processes::{Process, running};

/// Where `yolofs snapshotter` listens, and where it keeps snapshots, unless told otherwise.
const ADDRESS: &str = "/run/yolofs/snapshotter.sock";
const ROOT: &str = "/var/lib/yolofs/snapshotter";

/// Where mirrors are configured.
const MIRRORS: &str = "certs.d";
/// How long a living snapshotter may take to have room for a connection.
const ACCEPTED: Duration = Duration::from_secs(5);

impl Containerd {
    /// Checks how it is configured, as far as yolofs is concerned.
    #[must_use]
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.drop_in_is_imported());
        findings.extend(self.drop_in_is_read());
        findings.extend(self.mirrors_are_read());
        let wanted = self.asked_for();
        let Some(proxy) = self.proxy() else {
            findings.push(self.without_proxy(&wanted));
            return findings;
        };
        let address = text_at(proxy, &["address"]).unwrap_or_default();
        findings.push(self.listens(address));
        findings.extend(self.lost(&wanted));
        findings.push(self.unpacks());
        findings.extend(self.image_disk(proxy, &running("yolofs")));
        if findings.iter().all(|finding| finding.cure.is_none()) {
            findings.push(self.used());
        }
        findings
    }

    /// Returns which file asks for our snapshotter for pods, in the words of any version.
    fn asked_for(&self) -> Option<&'static str> {
        let ours = |path: &[&str]| text_at(&self.main, path) == Some("yolofs");
        if ours(&["plugins", CRI_OLD, "containerd", "snapshotter"])
            || ours(&["plugins", "cri", "containerd", "snapshotter"])
        {
            return Some(CRI_OLD);
        }
        ours(&["plugins", CRI_IMAGES, "snapshotter"]).then_some(CRI_IMAGES)
    }

    /// A file in a directory that is not imported is ignored without a message.
    fn drop_in_is_imported(&self) -> Option<Finding> {
        let file = self.drop_ins().join(DROP_IN);
        if !file.exists() || self.imports().iter().any(|import| takes_in(import, &file)) {
            return None;
        }
        let (config, file) = (self.config.display(), file.display());
        Some(Finding::fault(
            "containerd-imports",
            format!(
                "{}: {file} is there, and nothing imports it: it is ignored",
                self.name()
            ),
            format!(
                "yolofs setup containerd --yes, or add imports = [\"{file}\"] at the top of {config}"
            ),
        ))
    }

    /// What is written while it runs counts from its next start on.
    fn drop_in_is_read(&self) -> Option<Finding> {
        let file = self.unread_drop_in()?;
        Some(Finding::fault(
            "containerd-restart",
            format!(
                "{}: {} was written after it had begun, so it does not know of it",
                self.name(),
                file.display()
            ),
            "systemctl restart containerd; containers go on running",
        ))
    }

    /// Pulls by the transfer service take the whole list of directories as the name of one.
    fn mirrors_are_read(&self) -> Option<Finding> {
        const CHECK: &str = "containerd-mirrors";
        if self.version < (2, 1) || self.pods_snapshotter().is_none() {
            return None;
        }
        let path = text_at(
            &self.effective,
            &["plugins", CRI_IMAGES, "registry", "config_path"],
        );
        let path = path.unwrap_or_default();
        let beside = self.config.with_file_name(MIRRORS);
        let there =
            |dir: &Path| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        let mut listed = path.split(':').map(Path::new).filter(|dir| there(dir));
        // An empty path means containerd's own list of two.
        let ignored = match (path.is_empty(), path.contains(':')) {
            (true, _) => there(&beside).then_some(beside.as_path()),
            (false, true) => listed.next(),
            (false, false) => None,
        }?;
        let shown = if path.is_empty() {
            "its default has a colon".to_owned()
        } else {
            format!("{path:?} has a colon")
        };
        Some(Finding::fault(
            CHECK,
            format!(
                "{}: mirrors in {} are ignored by pulls of pods: config_path is one directory \
                 there, and {shown}",
                self.name(),
                ignored.display()
            ),
            format!(
                "set config_path = \"{}\" in [plugins.\"{CRI_IMAGES}\".registry], as `yolofs setup \
                 kubernetes` does",
                ignored.display()
            ),
        ))
    }

    fn without_proxy(&self, wanted: &Option<&'static str>) -> Finding {
        let name = self.name();
        if wanted.is_some() {
            return Finding::fault(
                "containerd-proxy",
                format!("{name}: pods are to run on yolofs, and there is no proxy_plugins.yolofs"),
                "yolofs setup kubernetes --yes, then restart containerd",
            );
        }
        Finding::advice(
            "containerd-proxy",
            format!("{name} is not told of yolofs"),
            "yolofs setup containerd (or kubernetes) says what to change",
        )
    }

    /// Somebody must answer at the address, or every pull hangs until its deadline.
    fn listens(&self, address: &str) -> Finding {
        const CHECK: &str = "containerd-snapshotter";
        let name = self.name();
        match connect_within(Path::new(address), ACCEPTED) {
            Ok(_connected) => Finding::fine(
                CHECK,
                format!("{name}: the snapshotter answers at {address}"),
            ),
            Err(error) => Finding::fault(
                CHECK,
                format!("{name}: nobody answers at {address}: {error}"),
                unanswered(&error),
            ),
        }
    }

    /// A file of version 2 is migrated without its `snapshotter`.
    fn lost(&self, wanted: &Option<&'static str>) -> Option<Finding> {
        let wanted = (*wanted)?;
        let used = self.pods_snapshotter();
        if used == Some("yolofs") {
            return None;
        }
        let version = self
            .main
            .get("version")
            .and_then(Value::as_integer)
            .unwrap_or(1);
        Some(Finding::fault(
            "containerd-version",
            format!(
                "{}: the file of version {version} asks for yolofs in {wanted}, and pods run on {}",
                self.name(),
                used.unwrap_or("nothing")
            ),
            format!(
                "say it in a file of version 3, in [plugins.\"{CRI_IMAGES}\"], as `yolofs setup \
                 kubernetes` does"
            ),
        ))
    }

    /// From 2.0 on images are unpacked only where the list says so.
    fn unpacks(&self) -> Finding {
        const CHECK: &str = "containerd-unpack";
        let name = self.name();
        if !self.is_two() {
            return Finding::fine(CHECK, format!("{name} unpacks to any snapshotter"));
        }
        let names = self.unpacks_to().map(|list| {
            let names = list
                .iter()
                .filter_map(|entry| entry.get("snapshotter")?.as_str());
            names.map(str::to_owned).collect::<Vec<_>>()
        });
        let names = names.unwrap_or_else(|| vec!["overlayfs".to_owned()]);
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if !has("yolofs") {
            return Finding::fault(
                CHECK,
                format!(
                    "{name} does not unpack to yolofs: pulls fail with \"no unpack platforms defined\""
                ),
                "yolofs setup containerd --yes adds it to unpack_config, then restart containerd",
            );
        }
        if !has("overlayfs") {
            return Finding::advice(
                CHECK,
                format!(
                    "{name} unpacks to {} only: unpack_config replaced the default",
                    names.join(", ")
                ),
                "add an entry for overlayfs, as `yolofs setup containerd` does, to use both",
            );
        }
        Finding::fine(CHECK, format!("{name} unpacks to {}", names.join(" and ")))
    }

    /// The kubelet looks how full the disk of images is, and finds no directory, or another one.
    fn image_disk(&self, proxy: &toml::Table, ours: &[Process]) -> Option<Finding> {
        self.pods_snapshotter()?;
        if !self.is_two() {
            return None;
        }
        let name = self.name();
        let (what, cure) = match text_at(proxy, &["exports", "root"]) {
            None => (
                format!(
                    "{name}: exports.root is missing: a kubelet cannot tell how full the disk of images is"
                ),
                "yolofs setup containerd --yes, then restart containerd".to_owned(),
            ),
            Some(root) => {
                let address = Path::new(text_at(proxy, &["address"])?);
                let mut roots = ours.iter().filter_map(|process| root_at(process, address));
                let kept = roots.find(|kept| kept != Path::new(root))?;
                let kept = kept.display();
                (
                    format!(
                        "{name}: a kubelet looks at {root}, and the snapshotter keeps images in {kept}"
                    ),
                    format!("yolofs setup containerd --root {kept} --yes, then restart containerd"),
                )
            }
        };
        Some(Finding::advice("containerd-image-disk", what, cure))
    }

    fn used(&self) -> Finding {
        const CHECK: &str = "containerd-used";
        let name = self.name();
        let handlers = at(
            &self.effective,
            &[
                "plugins",
                "io.containerd.cri.v1.runtime",
                "containerd",
                "runtimes",
            ],
        );
        let old = at(
            &self.effective,
            &["plugins", CRI_OLD, "containerd", "runtimes"],
        );
        let handler = handlers
            .or(old)
            .and_then(Value::as_table)
            .and_then(|handlers| {
                let mut all = handlers.iter();
                all.find(|(_, handler)| {
                    let name = handler.get("snapshotter").and_then(Value::as_str);
                    name == Some("yolofs")
                })
            });
        match (self.pods_snapshotter(), handler) {
            (Some("yolofs"), _) => Finding::fine(CHECK, format!("{name}: pods run on yolofs")),
            (_, Some((handler, _))) => Finding::fine(
                CHECK,
                format!("{name}: pods of the runtime handler {handler} run on yolofs"),
            ),
            (Some(other), None) => Finding::advice(
                CHECK,
                format!("{name}: the snapshotter is configured, and pods run on {other}"),
                "fine for ctr, nerdctl and Docker; for pods: yolofs setup kubernetes",
            ),
            (None, None) => Finding::fine(CHECK, format!("{name} has yolofs, and no pods")),
        }
    }
}

/// Returns where a process keeps snapshots, if it is the snapshotter that listens at this address.
fn root_at(process: &Process, address: &Path) -> Option<PathBuf> {
    let has = |word: &str| process.args.iter().any(|arg| arg == word);
    if !has("snapshotter") || has("status") {
        return None;
    }
    let place = |flag: &str, default: &str| match process.flag(&[flag]) {
        Some(named) => process.path(named),
        None => PathBuf::from(default),
    };
    (place("--address", ADDRESS) == address).then(|| place("--root", ROOT))
}

/// Returns what to do about a snapshotter that does not answer: whoever has no right to ask it learns nothing of it.
fn unanswered(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run this as root",
        _ => "systemctl enable --now yolofs-snapshotter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_snapshotter_is_found_by_its_address() {
        let process = |line: &str| Process {
            pid: 0,
            parent: None,
            program: None,
            args: line.split(' ').map(str::to_owned).collect(),
        };
        let root = |line: &str, address: &str| root_at(&process(line), Path::new(address));
        assert_eq!(root("yolofs snapshotter", ADDRESS), Some(ROOT.into()));
        let elsewhere = "yolofs snapshotter --root /data --address=/run/other.sock";
        assert_eq!(root(elsewhere, "/run/other.sock"), Some("/data".into()));
        assert_eq!(root(elsewhere, ADDRESS), None);
        for other in ["yolofs snapshotter status", "yolofs node"] {
            assert_eq!(root(other, ADDRESS), None, "{other}");
        }
    }

    #[test]
    fn who_may_not_ask_is_told_so() {
        let denied = unanswered(&io::ErrorKind::PermissionDenied.into());
        assert_eq!(denied, "run this as root");
        let absent = unanswered(&io::ErrorKind::NotFound.into());
        assert!(absent.contains("yolofs-snapshotter"), "{absent}");
    }
}
