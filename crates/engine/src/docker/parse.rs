//! What Docker's client prints, understood.

use std::path::PathBuf;

use blocks::Digest;
use distribution::image::{LAYERS_MAX, RunConfig};
use serde::Deserialize;

use crate::error::EngineError;
use crate::image::{LocalImage, LocalLayer};

/// The namespace of Docker's images in containerd, unless it says another.
const NAMESPACE: &str = "moby";

/// How Docker stores layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// The graph driver overlay2: a directory for each layer.
    Overlay2,
    /// The containerd image store, with this snapshotter.
    Containerd {
        /// The snapshotter.
        snapshotter: String,
    },
    /// Another graph driver.
    Other {
        /// Its name.
        driver: String,
    },
}

/// What concerns the whole daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerInfo {
    /// The daemon's version.
    pub version: String,
    /// The directory with everything it keeps.
    pub data_root: PathBuf,
    /// How it stores layers.
    pub storage: Storage,
    /// The socket of its containerd and the namespace of its containers there, if the client reports it.
    pub containerd: Option<(PathBuf, String)>,
    /// Whether it runs without root, in namespaces of its own.
    pub is_rootless: bool,
    /// Whether users of containers are mapped to others on the host (`userns-remap`).
    pub remaps_users: bool,
    /// Whether containers continue while the daemon is not running.
    pub has_live_restore: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct InfoAnswer {
    server_version: String,
    docker_root_dir: PathBuf,
    driver: String,
    driver_status: Option<Vec<Vec<String>>>,
    security_options: Option<Vec<String>>,
    live_restore_enabled: bool,
    server_errors: Option<Vec<String>>,
    containerd: Option<ContainerdAnswer>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerdAnswer {
    address: PathBuf,
    namespaces: NamespacesAnswer,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NamespacesAnswer {
    containers: String,
}

impl ContainerdAnswer {
    fn place(self) -> Option<(PathBuf, String)> {
        let namespace = Some(self.namespaces.containers).filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        (!self.address.as_os_str().is_empty()).then_some((self.address, namespace))
    }
}

impl DockerInfo {
    /// Parses the output of `docker info`.
    ///
    /// # Errors
    /// If it cannot be parsed, or reports that the daemon does not respond.
    pub(super) fn parse(doing: &str, stdout: &[u8]) -> Result<Self, EngineError> {
        let answer: InfoAnswer = json(doing, stdout)?;
        // Older clients end with 0 although the daemon is away.
        if let Some(errors) = answer.server_errors.filter(|errors| !errors.is_empty()) {
            let (doing, said) = (doing.to_owned(), errors.join("; "));
            return Err(EngineError::Failed { doing, said });
        }
        let has_option = |name: &str| {
            let options = answer.security_options.iter().flatten();
            options.into_iter().any(|option| {
                option.split(',').next().unwrap_or_default() == format!("name={name}")
            })
        };
        let by_snapshotter = answer.driver_status.iter().flatten().any(|pair| {
            matches!(pair.as_slice(), [key, value]
                if key == "driver-type" && value.starts_with("io.containerd.snapshotter"))
        });
        let (is_rootless, remaps_users) = (has_option("rootless"), has_option("userns"));
        let storage = match answer.driver {
            snapshotter if by_snapshotter => Storage::Containerd { snapshotter },
            driver if driver == "overlay2" => Storage::Overlay2,
            driver => Storage::Other { driver },
        };
        Ok(Self {
            version: answer.server_version,
            data_root: answer.docker_root_dir,
            storage,
            containerd: answer.containerd.and_then(ContainerdAnswer::place),
            is_rootless,
            remaps_users,
            has_live_restore: answer.live_restore_enabled,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ImageAnswer {
    id: Digest,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    repo_digests: Option<Vec<String>>,
    #[serde(default)]
    config: Option<RunConfig>,
    #[serde(default)]
    graph_driver: Option<GraphDriver>,
    #[serde(rename = "RootFS")]
    root_fs: RootFs,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GraphDriver {
    name: String,
    #[serde(default)]
    data: Option<GraphData>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct GraphData {
    lower_dir: String,
    upper_dir: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RootFs {
    #[serde(default)]
    layers: Option<Vec<Digest>>,
}

/// Reads what `docker image inspect --format '{{json .}}'` prints: an image a line.
///
/// # Errors
/// If it is not understood, or if layers have no directories.
pub(super) fn images(doing: &str, stdout: &[u8]) -> Result<Vec<LocalImage>, EngineError> {
    let lines = stdout.split(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| image(doing, json(doing, line)?))
        .collect()
}

fn image(doing: &str, answer: ImageAnswer) -> Result<LocalImage, EngineError> {
    let diff_ids = answer.root_fs.layers.unwrap_or_default();
    let driver = answer.graph_driver.ok_or(EngineError::ContainerdStore)?;
    if driver.name != "overlay2" {
        // Up to version 28, Docker names the snapshotter here when containerd has its images.
        return Err(if driver.name == "overlayfs" {
            EngineError::ContainerdStore
        } else {
            EngineError::Driver {
                engine: "Docker".to_owned(),
                driver: driver.name,
                needed: "overlay2",
            }
        });
    }
    let layers = layers(doing, diff_ids, &driver.data.unwrap_or_default())?;
    let names = answer.repo_tags.unwrap_or_default();
    let digests = answer.repo_digests.unwrap_or_default();
    let manifest = digests
        .iter()
        .find_map(|name| name.rsplit_once('@')?.1.parse().ok());
    let reference = names.first().or(digests.first());
    Ok(LocalImage {
        reference: reference.map_or_else(|| answer.id.to_string(), String::clone),
        names,
        image: answer.id,
        manifest,
        layers,
        config: answer.config.unwrap_or_default(),
    })
}

/// Brings layers and directories together: Docker gives the top one apart, the others from the top
/// down, as overlayfs requires them.
fn layers(
    doing: &str,
    diff_ids: Vec<Digest>,
    data: &GraphData,
) -> Result<Vec<LocalLayer>, EngineError> {
    let lower = data.lower_dir.split(':').filter(|dir| !dir.is_empty());
    let mut dirs: Vec<PathBuf> = Some(data.upper_dir.as_str())
        .filter(|dir| !dir.is_empty())
        .into_iter()
        .chain(lower)
        .map(PathBuf::from)
        .collect();
    dirs.reverse();
    if dirs.len() != diff_ids.len() || dirs.len() > LAYERS_MAX {
        let (have, want) = (dirs.len(), diff_ids.len());
        return Err(EngineError::Answer {
            doing: doing.to_owned(),
            why: format!("{want} layers have {have} directories (at most {LAYERS_MAX} are taken)"),
        });
    }
    let pairs = diff_ids.into_iter().zip(dirs);
    Ok(pairs
        .map(|(diff_id, dir)| LocalLayer { diff_id, dir })
        .collect())
}

/// Returns whether a client's errors are only about missing images.
pub(super) fn only_missing(complaint: &str) -> bool {
    // A hint of a newer client may come behind; an empty line between the two.
    let mut lines = complaint.lines().filter(|line| !line.trim().is_empty());
    let is_missing = |line: &str| {
        let line = line.to_ascii_lowercase();
        line.contains("no such image") || line.contains("no such object")
    };
    lines.clone().next().is_some() && lines.all(is_missing)
}

/// Returns the lines of a list, without the empty ones.
pub(super) fn lines(stdout: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stdout);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// Parses one JSON document.
///
/// # Errors
/// If it is invalid, or has another form.
pub(super) fn json<T: for<'de> Deserialize<'de>>(
    doing: &str,
    bytes: &[u8],
) -> Result<T, EngineError> {
    serde_json::from_slice(bytes).map_err(|error| EngineError::Answer {
        doing: doing.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: u8) -> String {
        format!("sha256:{}", format!("{byte:02x}").repeat(32))
    }

    fn answer(graph_driver: &str, layers: &[u8]) -> String {
        let layers: Vec<_> = layers.iter().map(|byte| digest(*byte)).collect();
        let layers = serde_json::to_string(&layers).unwrap();
        let id = digest(0xff);
        format!(
            r#"{{"Id":"{id}","RepoTags":["a:1","b:2"],"RepoDigests":["a@{}"],{graph_driver}
            "Config":{{"User":"u"}},"RootFS":{{"Type":"layers","Layers":{layers}}}}}"#,
            digest(0xee)
        )
        .replace('\n', "")
    }

    fn overlay2(upper: &str, lower: &str) -> String {
        format!(
            r#""GraphDriver":{{"Name":"overlay2","Data":{{"UpperDir":"{upper}","LowerDir":"{lower}"}}}},"#
        )
    }

    #[test]
    fn layers_come_from_the_bottom() {
        let text = answer(&overlay2("/3", "/2:/1"), &[1, 2, 3]);
        let images = images("asking", format!("{text}\n{text}\n").as_bytes()).unwrap();
        assert_eq!(images.len(), 2);
        let image = &images[0];
        let layers: Vec<_> = image
            .layers
            .iter()
            .map(|layer| (layer.diff_id.0[0], layer.dir.to_str().unwrap()))
            .collect();
        assert_eq!(layers, [(1, "/1"), (2, "/2"), (3, "/3")]);
        assert_eq!(image.reference, "a:1");
        assert_eq!(image.manifest, Some(digest(0xee).parse().unwrap()));
        assert_eq!(image.config.user, "u");
    }

    #[test]
    fn an_image_without_layers_is_an_image() {
        let text = answer(r#""GraphDriver":{"Name":"overlay2","Data":null},"#, &[]);
        assert!(
            images("asking", text.as_bytes()).unwrap()[0]
                .layers
                .is_empty()
        );
    }

    #[test]
    fn directories_that_do_not_fit_are_refused() {
        let text = answer(&overlay2("/2", "/1"), &[1, 2, 3]);
        let error = images("asking", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("3 layers have 2 directories"), "{error}");
    }

    #[test]
    fn other_stores_are_told_apart() {
        let of = |driver: &str| images("asking", answer(driver, &[1]).as_bytes()).unwrap_err();
        assert!(matches!(of(""), EngineError::ContainerdStore));
        let containerd = r#""GraphDriver":{"Name":"overlayfs","Data":null},"#;
        assert!(matches!(of(containerd), EngineError::ContainerdStore));
        let vfs = r#""GraphDriver":{"Name":"vfs","Data":null},"#;
        assert!(of(vfs).to_string().contains("vfs"));
    }

    #[test]
    fn missing_images_are_no_other_error() {
        assert!(only_missing(
            "Error: No such image: a\nError: No such image: b\n"
        ));
        assert!(only_missing(
            "Error response from daemon: No such image: a:latest\n"
        ));
        assert!(!only_missing("Cannot connect to the Docker daemon\n"));
        assert!(!only_missing(""));
    }

    #[test]
    fn a_daemon_is_known_by_its_storage() {
        let info = |json: &str| DockerInfo::parse("asking", json.as_bytes());
        let plain = info(
            r#"{"ServerVersion":"20.10","DockerRootDir":"/d","Driver":"overlay2","DriverStatus":
            [["Backing Filesystem","extfs"]],"SecurityOptions":["name=seccomp,profile=default"]}"#,
        )
        .unwrap();
        assert_eq!(plain.storage, Storage::Overlay2);
        assert!(!plain.is_rootless && !plain.remaps_users && !plain.has_live_restore);
        let other = info(
            r#"{"Driver":"overlayfs","DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],
            "SecurityOptions":["name=rootless","name=userns"],"LiveRestoreEnabled":true}"#,
        )
        .unwrap();
        assert!(matches!(other.storage, Storage::Containerd { .. }));
        assert_eq!(other.containerd, None);
        let newer = info(
            r#"{"Driver":"overlayfs","DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],
            "Containerd":{"Address":"/c.sock","Namespaces":{"Containers":"moby","Plugins":"p"}}}"#,
        );
        let place = ("/c.sock".into(), "moby".to_owned());
        assert_eq!(newer.unwrap().containerd, Some(place));
        assert!(other.is_rootless && other.remaps_users && other.has_live_restore);
        let away = info(r#"{"ServerErrors":["Cannot connect"]}"#).unwrap_err();
        assert!(away.to_string().contains("Cannot connect"));
    }
}
