//! The protocol between the snapshotter and its recorder: one request and one response for each
//! connection, as with every daemon (`control.rs`).

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use blocks::Digest;
use serde::{Deserialize, Serialize};
use snapshotter::{LayerDir, SnapshotId};

use super::{Ending, FirstBootStatus};
use host::control::Reply;
use recording::until::Until;

/// How long a recorder may take until it listens, including the end of an earlier one.
pub(super) const START: Duration = Duration::from_secs(30);

/// A request of the snapshotter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", content = "of")]
pub(super) enum Request {
    /// Record for the process with this id, as long as it lives. The response is
    /// [`Response::Boots`].
    Hello(u32),
    /// Mount these layers with a recorder.
    Record(Box<Wanted>),
    /// The snapshot with this number was removed.
    Removed(u64),
    /// The snapshot with this number was committed.
    Committed(u64),
    /// Return all boots that are or were recorded.
    Boots,
}

/// A response of the recorder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer", content = "is")]
pub(super) enum Response {
    /// To [`Request::Hello`] and [`Request::Boots`].
    Boots(Boots),
    /// To [`Request::Record`]: where the layers are mounted, nearest first; `None` if this boot is not
    /// recorded.
    Places(Option<Vec<PathBuf>>),
    /// To [`Request::Removed`] and [`Request::Committed`].
    Done,
    /// The request failed.
    Failed(String),
}

impl Reply for Response {
    fn failed(why: String) -> Self {
        Self::Failed(why)
    }
}

/// All first boots.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Boots {
    /// Where the layers of containers that are there are mounted, by the snapshots' numbers.
    pub(super) places: Vec<(u64, Vec<PathBuf>)>,
    /// What became of all of them, the latest last.
    pub(super) status: Vec<FirstBootStatus>,
}

/// A boot that is to be recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Wanted {
    /// The number of the container's snapshot.
    pub(super) id: u64,
    /// Its name.
    pub(super) name: String,
    /// Its ancestors, nearest first.
    layers: Vec<Layer>,
    /// The chain ID of the whole image.
    pub(super) top: Digest,
    /// When it is over, as on the command line.
    until: String,
    /// The device of the node that records it, if that is not for us to do.
    #[serde(default)]
    pub(super) device: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Layer {
    id: u64,
    name: String,
    dir: PathBuf,
}

impl Wanted {
    pub(super) fn new(
        (id, name): (SnapshotId, &str),
        layers: &[LayerDir],
        top: Digest,
        ending: Ending,
    ) -> Self {
        let layers = layers.iter().map(|layer| Layer {
            id: layer.id.0,
            name: layer.name.clone(),
            dir: layer.dir.clone(),
        });
        Self {
            id: id.0,
            name: name.to_owned(),
            layers: layers.collect(),
            top,
            until: ending.to_string(),
            device: None,
        }
    }

    /// Has a device of the node record it.
    pub(super) fn on_device(self, name: &str) -> Self {
        Self {
            device: Some(name.to_owned()),
            ..self
        }
    }

    pub(super) fn layers(&self) -> Vec<LayerDir> {
        let layers = self.layers.iter().map(|layer| LayerDir {
            id: SnapshotId(layer.id),
            name: layer.name.clone(),
            dir: layer.dir.clone(),
        });
        layers.collect()
    }

    /// Returns the condition for its end, for people.
    pub(super) fn until(&self) -> &str {
        &self.until
    }

    /// Returns the condition for its end.
    ///
    /// # Errors
    /// If the snapshotter is of a release with other conditions.
    pub(super) fn ending(&self) -> anyhow::Result<Ending> {
        let until = self.until.parse::<Until>();
        until
            .and_then(|until| Ending::try_from(&until))
            .with_context(|| {
                format!(
                    "parsing the condition that ends a recording: {}",
                    self.until
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_request_to_record_arrives_as_it_was() {
        let layer = LayerDir {
            id: SnapshotId(3),
            name: "default/3/sha256:aa".to_owned(),
            dir: "/root/snapshots/3/fs".into(),
        };
        let ending = Ending::Quiet(Duration::from_millis(200));
        let top = Digest([7; 32]);
        let ask = Request::Record(Box::new(Wanted::new(
            (SnapshotId(9), "default/9/c"),
            std::slice::from_ref(&layer),
            top,
            ending,
        )));
        let text = serde_json::to_string(&ask).unwrap();
        let Request::Record(wanted) = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!((wanted.id, &*wanted.name), (9, "default/9/c"));
        assert_eq!((wanted.layers(), wanted.top), (vec![layer], top));
        assert_eq!(wanted.ending().unwrap(), ending);
        let told = Response::Places(Some(vec!["/a".into()]));
        let text = serde_json::to_string(&told).unwrap();
        let Response::Places(Some(places)) = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(places, [PathBuf::from("/a")]);
    }
}
