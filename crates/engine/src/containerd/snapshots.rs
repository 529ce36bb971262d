//! Where a snapshotter has the layers of an image.

use std::collections::HashMap;
use std::path::PathBuf;

use blocks::Digest;
use containerd_client::services::v1::snapshots::{
    RemoveSnapshotRequest, StatSnapshotRequest, ViewSnapshotRequest,
};
use containerd_client::types::Mount;

use super::{Containerd, PLAIN_LABEL, chain_ids};
use crate::error::EngineError;

impl Containerd {
    /// Returns the directory of each layer, the bottom one first: the lower directories of a view
    /// on the top one, which is removed again.
    ///
    /// # Errors
    /// If containerd does not respond, the image is not unpacked, or its snapshotter has no directories.
    pub fn layer_dirs(
        &self,
        reference: &str,
        diff_ids: &[Digest],
    ) -> Result<Vec<PathBuf>, EngineError> {
        let doing = format!("asking containerd where the layers of {reference} are");
        let chains = chain_ids(diff_ids);
        let Some(top) = chains.last() else {
            return Ok(Vec::new());
        };
        for chain in &chains {
            self.ensure_unpacked(&doing, reference, chain)?;
        }
        let key = format!("yolofs-look-{}-{}", std::process::id(), top.short());
        let remove = || {
            self.call(&doing, async |client| {
                let request = RemoveSnapshotRequest {
                    snapshotter: self.snapshotter.clone(),
                    key: key.clone(),
                };
                client.snapshots().remove(self.request(request)).await
            })
        };
        remove()?; // one of that name is what somebody with our pid left behind
        let mounts = self.call(&doing, async |client| {
            let request = ViewSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                key: key.clone(),
                parent: top.to_string(),
                labels: HashMap::from([(PLAIN_LABEL.to_owned(), "true".to_owned())]),
            };
            client.snapshots().view(self.request(request)).await
        });
        remove()?;
        let mounts = mounts?.map(|answer| answer.mounts).unwrap_or_default();
        let dirs = lower_dirs(&mounts).filter(|dirs| dirs.len() == diff_ids.len());
        dirs.ok_or_else(|| EngineError::Driver {
            engine: "containerd".to_owned(),
            driver: self.snapshotter.clone(),
            needed: "overlayfs",
        })
    }

    fn ensure_unpacked(
        &self,
        doing: &str,
        reference: &str,
        chain: &Digest,
    ) -> Result<(), EngineError> {
        let found = self.call(doing, async |client| {
            let request = StatSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                key: chain.to_string(),
            };
            client.snapshots().stat(self.request(request)).await
        })?;
        let (namespace, snapshotter) = (&self.namespace, &self.snapshotter);
        match found {
            Some(_) => Ok(()),
            None => Err(EngineError::NoImage {
                engine: format!("containerd's snapshotter {snapshotter}"),
                reference: reference.to_owned(),
                hint: format!(
                    "unpack it: ctr -n {namespace} images pull --snapshotter {snapshotter} {reference}"
                ),
            }),
        }
    }
}

/// Returns the lower directories of a read-only mount, the bottom one first. One layer alone is
/// not stacked but bound.
pub(super) fn lower_dirs(mounts: &[Mount]) -> Option<Vec<PathBuf>> {
    let [mount] = mounts else { return None };
    match mount.r#type.as_str() {
        "bind" => Some(vec![PathBuf::from(&mount.source)]),
        "overlay" => {
            let mut options = mount.options.iter();
            let lower = options.find_map(|option| option.strip_prefix("lowerdir="))?;
            let dirs = lower.split(':').map(PathBuf::from);
            Some(dirs.rev().collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, source: &str, options: &[&str]) -> Mount {
        Mount {
            r#type: kind.to_owned(),
            source: source.to_owned(),
            target: String::new(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        }
    }

    #[test]
    fn a_view_says_where_layers_are() {
        let stack = mount("overlay", "overlay", &["index=off", "lowerdir=/3:/2:/1"]);
        let dirs = lower_dirs(&[stack]).unwrap();
        assert_eq!(dirs, ["/1", "/2", "/3"].map(PathBuf::from));
        let one = mount("bind", "/1", &["ro", "rbind"]);
        assert_eq!(lower_dirs(&[one]).unwrap(), [PathBuf::from("/1")]);
        let device = mount("ext4", "/dev/mapper/x", &[]);
        assert_eq!(lower_dirs(&[device]), None);
        assert_eq!(lower_dirs(&[]), None);
    }
}
