//! Layers of block images: those that are not downloaded, and the directory that serves a stack of them.

use std::path::PathBuf;
use std::sync::Arc;

use super::State;
use super::place::Reserved;
use super::reuse::STACKED_LATER;
use crate::block::{BlockDir, image_of, layer_of};
use crate::block_layer::BlockLayer;
use crate::catalog::NewSnapshot;
use crate::error::{Result, SnapshotError};
use crate::known::Unpacker;
use crate::lowers::Lowers;
use crate::snapshot::{Kind, Labels, Snapshot, Stack, Usage};
use crate::unpacks::UNPACKED_AS;

impl<L: Lowers> State<L> {
    /// Returns the layer of a block image that a new snapshot is for, if it is for one: with the place of its blob if
    /// that need not be downloaded.
    ///
    /// # Errors
    /// If the layer need not be unpacked into this snapshot, because another one has it now.
    pub(super) fn block_layer(
        &self,
        key: &str,
        parent: Option<&str>,
        labels: &Labels,
    ) -> Result<Option<BlockLayer>> {
        let (Some(blocks), Some(chain)) = (&self.blocks, labels.get(UNPACKED_AS)) else {
            return Ok(None);
        };
        let Some(mut layer) = layer_of(labels)? else {
            return Ok(None);
        };
        if let Some(blob) = layer.digest.filter(|_| layer.target.is_some()) {
            layer.blobs = blocks.blobs_of(key, &blob, image_of(labels));
            if layer.blobs.is_none() {
                return Err(SnapshotError::BadBlockLayer {
                    digest: blob.to_string(),
                    why: "it refers to data in a registry, and it is not known which".to_owned(),
                });
            }
            return Ok(Some(layer));
        }
        let is_stacked_later = parent.is_none() && labels.contains_key(STACKED_LATER);
        let takes = |unpacker: &Arc<dyn Unpacker>| unpacker.takes_read_only_for_unpacked();
        if is_stacked_later && !self.unpacker.as_ref().is_some_and(takes) {
            return Ok(Some(layer));
        }
        layer.blobs = layer
            .digest
            .and_then(|blob| blocks.blobs_of(key, &blob, image_of(labels)));
        if layer.is_elsewhere() && !is_stacked_later {
            let name = key.rsplit_once('/');
            let name = name.map_or_else(|| chain.clone(), |(place, _)| format!("{place}/{chain}"));
            self.commit_at_once(&name, key, parent, labels.clone(), layer)?;
            let key = key.to_owned();
            return Err(SnapshotError::AlreadyExists { key });
        }
        Ok(Some(layer))
    }

    /// Makes a layer whose directory stays empty.
    fn commit_at_once(
        &self,
        name: &str,
        key: &str,
        parent: Option<&str>,
        labels: Labels,
        layer: BlockLayer,
    ) -> Result<()> {
        let reserved = Reserved::next(self);
        let made = self.root.create(reserved.id, Kind::View, None);
        let made = made.and_then(|()| {
            self.catalog.create(NewSnapshot {
                key: key.to_owned(),
                id: reserved.id,
                kind: Kind::Active,
                parent: parent.map(str::to_owned),
                labels: labels.clone(),
                tier: None,
                shares: None,
                block: Some(layer),
                device: None,
            })
        });
        let committed = made.and_then(|_| {
            let names = (name, key);
            self.catalog
                .commit(names, None, labels, Usage::default(), None)
        });
        match committed {
            Ok(committed) => {
                self.known.add(&committed);
                Ok(())
            }
            Err(error) => {
                // The directory without a record is garbage for the next sweep.
                drop(self.catalog.remove(key));
                Err(error)
            }
        }
    }

    /// Splits the parents of a snapshot, the nearest first, into those that are directories and the directory of the
    /// block image below them, if there is one. A blob is unpacked without its parents: it is one file.
    pub(super) fn above_blocks<'a>(
        &self,
        stack: &'a Stack,
    ) -> Result<(&'a [Snapshot], Option<PathBuf>)> {
        if stack.snapshot.block.is_some() {
            return Ok((&[], None));
        }
        let parents = &stack.parents;
        let first = parents.iter().position(|parent| parent.block.is_some());
        let Some(first) = first else {
            return Ok((parents, None));
        };
        let (above, image) = parents.split_at(first);
        let container = Some(&stack.snapshot).filter(|snapshot| snapshot.kind == Kind::Active);
        Ok((above, Some(self.directory_of(image, container)?)))
    }

    /// Returns the directory with the files of a block image, if its topmost layer is one's.
    pub(super) fn image_root(&self, top: &Snapshot) -> Result<Option<PathBuf>> {
        if top.block.is_none() {
            return Ok(None);
        }
        let stack = self.catalog.stack(&top.name)?;
        let image: Vec<_> = [stack.snapshot].into_iter().chain(stack.parents).collect();
        self.directory_of(&image, None).map(Some)
    }

    fn directory_of(&self, image: &[Snapshot], container: Option<&Snapshot>) -> Result<PathBuf> {
        let layers = self.layers_of(image)?;
        let directory = match &self.blocks {
            Some(blocks) => blocks.directory(&layers, container),
            None => Err("this snapshotter serves no block images".into()),
        };
        directory.map_err(|source| SnapshotError::BlockImage {
            key: image[0].name.clone(),
            source,
        })
    }

    /// Returns the layers of a stack, all of which must be of block images.
    pub(super) fn layers_of(&self, image: &[Snapshot]) -> Result<Vec<BlockDir>> {
        let mut layers = Vec::new();
        for snapshot in image {
            let layer = snapshot.block.clone();
            let layer = layer.ok_or_else(|| SnapshotError::MixedLayers {
                key: image[0].name.clone(),
                below: snapshot.name.clone(),
            })?;
            layers.push(BlockDir {
                id: snapshot.id,
                name: snapshot.name.clone(),
                layer,
                dir: self.root.fs(snapshot.id),
            });
        }
        Ok(layers)
    }
}
