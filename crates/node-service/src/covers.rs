//! What no mount may cover: files that the node, and whoever serves the mount after a crash, open by their path. They
//! would wait there for the mount that they are to serve.

use std::path::{Path, PathBuf};

use super::owner::Owner;
use node_api::boot_choice::BootChoice;
use node_api::control::NodeError;
use node_api::spec::{MountSpec, SourceLocation};
use serving::transport::Address;

/// Files and directories that are needed, with what they are.
type Needed<'a> = Vec<(&'static str, &'a Path)>;

/// Directories in the run directory.
const IN_RUN_DIR: [&str; 3] = ["node", "workers", "devices"];
/// No mount may lie in these, either.
const WHOLE: [&str; 2] = ["store", "state directory"];

impl Owner {
    /// Checks that a mount hides nothing that is needed to serve it, or to be the node.
    ///
    /// # Errors
    /// [`NodeError::Invalid`], with what it would hide.
    pub(crate) fn check_covers(&self, spec: &MountSpec) -> Result<(), NodeError> {
        self.check_run_dir(&spec.mountpoint)?;
        let mut needed = self.needed();
        needed.extend(needed_by(spec));
        let location = spec.place().ok();
        if let Some(location) = &location {
            needed.extend(needed_at(location));
        }
        covers_none(&spec.mountpoint, &needed)
    }

    /// The same for the file system of a device, which is mounted at `place`.
    ///
    /// # Errors
    /// As [`check_covers`](Self::check_covers).
    pub(crate) fn check_covers_at(&self, place: &Path, device: &Path) -> Result<(), NodeError> {
        self.check_run_dir(place)?;
        let mut needed = self.needed();
        needed.push(("device", device));
        covers_none(place, &needed)
    }

    /// The files of devices are mounted below it, so that not all of it is refused.
    fn check_run_dir(&self, place: &Path) -> Result<(), NodeError> {
        for part in IN_RUN_DIR {
            let part = self.run_dir.path().join(part);
            covers_none(place, &[("run directory", part.as_path())])?;
        }
        Ok(())
    }

    fn needed(&self) -> Needed<'_> {
        let mut needed = vec![
            ("state directory", self.records.desired_dir()),
            ("store", self.config.store.dir.as_path()),
        ];
        let tiers = self.config.store.tiers.as_deref();
        needed.extend(tiers.map(|file| ("tiers file", file)));
        needed
    }
}

fn needed_by(spec: &MountSpec) -> Needed<'_> {
    let mut needed = vec![("store", spec.store.as_path())];
    if let BootChoice::File(file) = &spec.boot {
        needed.push(("boot image", file));
    }
    needed
}

fn needed_at(location: &SourceLocation) -> Needed<'_> {
    let nic = match location {
        SourceLocation::Image(image, path) => {
            let cache = image.cache.as_deref().map(|cache| ("cache", cache));
            return [("image", path.as_path())]
                .into_iter()
                .chain(cache)
                .collect();
        }
        SourceLocation::Disk(None) => return Vec::new(),
        SourceLocation::Disk(Some(nic)) | SourceLocation::Nic(nic, _) => nic,
    };
    let files = [
        ("cache", nic.cache.as_deref()),
        ("key", nic.key.as_deref()),
        ("certificate", nic.tls.as_deref()),
        ("origin", nic.origin.as_deref()),
    ];
    let sockets = [&nic.address].into_iter().chain(&nic.others);
    let sockets = sockets.filter_map(|address| match address {
        Address::Unix(path) => Some(("socket of the block service", path.as_path())),
        _ => None,
    });
    let files = files
        .into_iter()
        .filter_map(|(what, path)| Some((what, path?)));
    files.chain(sockets).collect()
}

fn covers_none(place: &Path, needed: &[(&str, &Path)]) -> Result<(), NodeError> {
    for (what, path) in needed {
        let needed = resolved(path);
        let within = WHOLE.contains(what) && place.starts_with(&needed);
        if within || needed.starts_with(place) {
            return Err(NodeError::Invalid(format!(
                "a mount on {} would hide the {what} {}, which whoever serves it needs: have it elsewhere",
                place.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// Returns a path without symbolic links, as far as it exists: the mount point has none either.
fn resolved(path: &Path) -> PathBuf {
    for known in path.ancestors() {
        if let Ok(found) = known.canonicalize() {
            let rest = path.strip_prefix(known).unwrap_or(Path::new(""));
            return found.join(rest);
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(spec: &serde_json::Value) -> Option<String> {
        let spec: MountSpec = serde_json::from_value(spec.clone()).unwrap();
        let location = spec.place().unwrap();
        let mut needed = needed_by(&spec);
        needed.extend(needed_at(&location));
        covers_none(&spec.mountpoint, &needed)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn what_a_mount_needs_is_not_below_it() {
        let fine = serde_json::json!({"source": "/srv/web", "mountpoint": "/srv/web", "store": "/srv/website"});
        assert_eq!(said(&fine), None);
        let with = |field: &str, value: serde_json::Value| {
            let mut spec = fine.clone();
            spec[field] = value;
            said(&spec).unwrap()
        };
        assert!(with("store", "/srv/web".into()).contains("hide the store /srv/web"));
        assert!(with("store", "/srv/web/a/b".into()).contains("store"));
        assert!(with("store", "/srv".into()).contains("store"));
        assert!(with("boot", "/srv/web/x.img".into()).contains("boot image"));
        let nic = |more: serde_json::Value| {
            let mut nic = serde_json::json!({"address": "unix:/run/blocks"});
            nic.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let mut spec = fine.clone();
            spec["source"] = "nic:web".into();
            spec["nic"] = nic;
            said(&spec)
        };
        assert_eq!(nic(serde_json::json!({})), None);
        for (what, more) in [
            ("cache", serde_json::json!({"cache": "/srv/web/cache"})),
            ("key", serde_json::json!({"key": "/srv/web/key"})),
            ("origin", serde_json::json!({"origin": "/srv/web"})),
            ("socket", serde_json::json!({"address": "unix:/srv/web/s"})),
            ("socket", serde_json::json!({"others": ["unix:/srv/web/s"]})),
        ] {
            assert!(nic(more).unwrap().contains(what), "{what}");
        }
    }

    #[test]
    fn links_lead_to_what_would_be_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink(dir.join("real"), dir.join("link")).unwrap();
        let hides = |place: &Path, needed: &Path| covers_none(place, &[("store", needed)]).is_err();
        assert!(hides(&dir.join("real"), &dir.join("link")));
        assert!(hides(&dir.join("real"), &dir.join("link/not/made")));
        assert!(!hides(&dir.join("link"), &dir.join("real")));
    }
}
