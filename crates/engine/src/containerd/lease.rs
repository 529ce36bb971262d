//! What a pull puts into containerd: snapshots, documents and an image, under a lease that keeps
//! containerd from collecting them before the image names them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use blocks::Digest;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::services::v1::{
    AddResourceRequest, CreateImageRequest, CreateRequest, DeleteRequest, Image, InfoRequest,
    ListRequest, Resource, UpdateImageRequest, UpdateRequest, WriteAction, WriteContentRequest,
};
use containerd_client::tonic::metadata::{Ascii, MetadataValue};
use containerd_client::tonic::{Code, Request};
use containerd_client::types::Descriptor;

use super::Containerd;
use super::snapshots::lower_dirs;
use crate::error::EngineError;
use crate::time::rfc3339;

/// How long containerd may take for what changes its records, on a busy disk.
const CHANGE: Duration = Duration::from_secs(300);
/// containerd takes a lease away by itself after the time that this label says.
const EXPIRES: &str = "containerd.io/gc.expire";
/// The label under which an unpacked layer is known to containerd's clients.
const LAYER_LABEL: &str = "containerd.io/snapshot.ref";

/// Labels of an object in containerd.
pub type Labels = HashMap<String, String>;

/// A lease: while it exists, objects that were made under it are not garbage-collected.
#[derive(Debug)]
pub struct Lease<'a> {
    containerd: &'a Containerd,
    id: String,
    header: MetadataValue<Ascii>,
}

/// When a layer was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerAge(i64, i32);

/// When what a lease kept is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// Before the call returns.
    Now,
    /// At some later time.
    Later,
}

/// A document that containerd is to keep.
#[derive(Clone, Debug)]
pub struct KeptDocument<'a> {
    /// Its media type.
    pub media_type: &'a str,
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// References for containerd's garbage collector.
    pub labels: Labels,
}

/// A snapshot that was prepared for a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// It was made: its own directory, and those of the layers below, the nearest first.
    Made(Vec<std::path::PathBuf>),
    /// The layer exists already: another client was faster.
    AlreadyThere,
}

impl Containerd {
    /// Returns the socket of the snapshotter, if it is not containerd's own; `None` if there is no
    /// snapshotter of this name.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn snapshotter_socket(&self) -> Result<Option<Option<std::path::PathBuf>>, EngineError> {
        let doing = "asking containerd for its snapshotters";
        let answer = self.call(doing, async |client| {
            let filters = vec!["type==io.containerd.snapshotter.v1".to_owned()];
            let request = containerd_client::services::v1::PluginsRequest { filters };
            client.introspection().plugins(self.request(request)).await
        })?;
        let plugins = answer.map(|answer| answer.plugins).unwrap_or_default();
        let ours = plugins
            .into_iter()
            .find(|plugin| plugin.id == self.snapshotter);
        Ok(ours.map(|plugin| plugin.exports.get("address").map(Into::into)))
    }

    /// Returns the IDs of the leases that begin with these letters.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn leases(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let answer = self.call("asking containerd for its leases", async |client| {
            let filters = Vec::new();
            let request = self.request(ListRequest { filters });
            client.leases().list(request).await
        })?;
        let leases = answer.map(|answer| answer.leases).unwrap_or_default();
        let ids = leases.into_iter().map(|lease| lease.id);
        Ok(ids.filter(|id| id.starts_with(prefix)).collect())
    }

    /// Removes a lease: what only it kept is collected.
    ///
    /// # Errors
    /// If containerd does not do it.
    pub fn remove_lease(&self, id: &str, collected: Collected) -> Result<(), EngineError> {
        let doing = format!("removing the lease {id}");
        self.call_within(CHANGE, &doing, async |client| {
            let id = id.to_owned();
            let sync = collected == Collected::Now;
            let request = self.request(DeleteRequest { id, sync });
            client.leases().delete(request).await
        })
        .map(drop)
    }

    /// Makes a lease. If it is not ended, containerd ends it after `lasts`.
    ///
    /// # Errors
    /// If containerd fails, or there is one of this name.
    pub fn lease(&self, id: &str, lasts: Duration) -> Result<Lease<'_>, EngineError> {
        let expires = rfc3339(SystemTime::now() + lasts);
        let labels = Labels::from([(EXPIRES.to_owned(), expires)]);
        let (lease, made) = self.make_lease(id, &labels)?;
        match made {
            Made::New => Ok(lease),
            Made::Before => Err(EngineError::Failed {
                doing: format!("making the lease {id}"),
                said: "it is there already".to_owned(),
            }),
        }
    }

    /// Makes a lease that stays until it is removed, or opens the one of this name.
    ///
    /// # Errors
    /// If containerd fails.
    pub fn lasting_lease(&self, id: &str) -> Result<Lease<'_>, EngineError> {
        Ok(self.make_lease(id, &Labels::new())?.0)
    }

    fn make_lease(&self, id: &str, labels: &Labels) -> Result<(Lease<'_>, Made), EngineError> {
        let doing = format!("making the lease {id}");
        let header = id.parse().map_err(|_| EngineError::Failed {
            doing: doing.clone(),
            said: "a lease has a plain name".to_owned(),
        })?;
        let made = self.try_call(CHANGE, &doing, async |client| {
            let (id, labels) = (id.to_owned(), labels.clone());
            let request = self.request(CreateRequest { id, labels });
            client.leases().create(request).await
        })?;
        let lease = Lease {
            containerd: self,
            id: id.to_owned(),
            header,
        };
        let made = if made.is_ok() {
            Made::New
        } else {
            Made::Before
        };
        Ok((lease, made))
    }
}

/// Whether a lease is new.
enum Made {
    New,
    Before,
}

impl Containerd {
    /// Returns whether the layer of this chain is unpacked.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn has_layer(&self, chain: &Digest) -> Result<bool, EngineError> {
        Ok(self.layer_age(chain)?.is_some())
    }

    /// Returns when the layer of this chain was unpacked; `None` if it is not. One that was removed and
    /// unpacked again, to another directory, has another age.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn layer_age(&self, chain: &Digest) -> Result<Option<LayerAge>, EngineError> {
        let doing = format!("asking containerd for the layer {}", chain.short());
        let found = self.call(&doing, async |client| {
            let request = StatSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                key: chain.to_string(),
            };
            client.snapshots().stat(self.request(request)).await
        })?;
        Ok(found.map(|found| {
            let created = found.info.and_then(|info| info.created_at);
            let created = created.unwrap_or_default();
            LayerAge(created.seconds, created.nanos)
        }))
    }
}

impl Lease<'_> {
    /// Adds a layer and all below it to the lease, if it is unpacked, and returns whether it is.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn keep_layer(&self, chain: &Digest) -> Result<bool, EngineError> {
        if !self.containerd.has_layer(chain)? {
            return Ok(false);
        }
        let doing = format!("keeping the layer {}", chain.short());
        self.containerd.call(&doing, async |client| {
            let resource = Resource {
                id: chain.to_string(),
                r#type: format!("snapshots/{}", self.containerd.snapshotter),
            };
            let request = AddResourceRequest {
                id: self.id.clone(),
                resource: Some(resource),
            };
            client.leases().add_resource(self.request(request)).await
        })?;
        // It may have been collected just before.
        self.containerd.has_layer(chain)
    }

    /// Prepares a snapshot into which the layer of this chain is unpacked.
    ///
    /// # Errors
    /// If containerd does not do it.
    pub fn prepare(
        &self,
        key: &str,
        chain: &Digest,
        parent: Option<&Digest>,
        mut labels: Labels,
    ) -> Result<Prepared, EngineError> {
        labels.insert(LAYER_LABEL.to_owned(), chain.to_string());
        let doing = format!("preparing a snapshot for the layer {}", chain.short());
        let answer = self.containerd.try_call(CHANGE, &doing, async |client| {
            let request = PrepareSnapshotRequest {
                snapshotter: self.containerd.snapshotter.clone(),
                key: key.to_owned(),
                parent: parent.map(ToString::to_string).unwrap_or_default(),
                labels: labels.clone(),
            };
            client.snapshots().prepare(self.request(request)).await
        })?;
        match answer {
            Ok(answer) => Ok(Prepared::Made(lower_dirs_of(&answer.mounts))),
            Err(Code::AlreadyExists) => Ok(Prepared::AlreadyThere),
            Err(_) => Err(EngineError::Failed {
                doing,
                said: "the layer below is gone".to_owned(),
            }),
        }
    }

    /// Makes a snapshot the layer of this chain. If there is one by now, the snapshot is removed.
    ///
    /// # Errors
    /// If containerd does not do it.
    pub fn commit(&self, key: &str, chain: &Digest) -> Result<(), EngineError> {
        let doing = format!("committing the layer {}", chain.short());
        let answer = self.containerd.try_call(CHANGE, &doing, async |client| {
            let request = CommitSnapshotRequest {
                snapshotter: self.containerd.snapshotter.clone(),
                name: chain.to_string(),
                key: key.to_owned(),
                labels: HashMap::from([(LAYER_LABEL.to_owned(), chain.to_string())]),
            };
            client.snapshots().commit(self.request(request)).await
        })?;
        match answer {
            Ok(_) => Ok(()),
            Err(Code::AlreadyExists) => self.remove(key),
            Err(_) => Err(EngineError::Failed {
                doing,
                said: "its snapshot is gone".to_owned(),
            }),
        }
    }

    /// Removes a snapshot, if there is one.
    ///
    /// # Errors
    /// If containerd does not do it.
    pub fn remove(&self, key: &str) -> Result<(), EngineError> {
        let doing = format!("removing the snapshot {key}");
        self.containerd
            .call_within(CHANGE, &doing, async |client| {
                let request = RemoveSnapshotRequest {
                    snapshotter: self.containerd.snapshotter.clone(),
                    key: key.to_owned(),
                };
                client.snapshots().remove(self.request(request)).await
            })
            .map(drop)
    }

    /// Stores a document, or adds these labels to the existing one.
    ///
    /// # Errors
    /// If containerd fails.
    pub fn put(&self, document: &KeptDocument<'_>) -> Result<(), EngineError> {
        let doing = format!("keeping the document {}", document.digest.short());
        let size = i64::try_from(document.bytes.len()).unwrap_or(i64::MAX);
        let written = self.containerd.try_call(CHANGE, &doing, async |client| {
            let request = WriteContentRequest {
                action: WriteAction::Commit.into(),
                r#ref: format!("yolofs-{}-{}", self.id, document.digest),
                total: size,
                expected: document.digest.to_string(),
                offset: 0,
                data: document.bytes.to_vec(),
                labels: document.labels.clone(),
            };
            let stream = self.request(tokio_stream::once(request));
            let mut answers = client.content().write(stream).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok(containerd_client::tonic::Response::new(()))
        })?;
        match written {
            Ok(()) => Ok(()),
            Err(Code::AlreadyExists) => self.label(&doing, &document.digest, &document.labels),
            Err(_) => Err(EngineError::Failed {
                doing,
                said: "it is gone".to_owned(),
            }),
        }
    }

    /// Adds these labels to an existing object.
    pub(super) fn label(
        &self,
        doing: &str,
        digest: &Digest,
        labels: &Labels,
    ) -> Result<(), EngineError> {
        let digest = digest.to_string();
        let info = self.containerd.call(doing, async |client| {
            let digest = digest.clone();
            let request = self.request(InfoRequest { digest });
            client.content().info(request).await
        })?;
        let Some(mut info) = info.and_then(|answer| answer.info) else {
            return Err(EngineError::Failed {
                doing: doing.to_owned(),
                said: "it was there, and is gone; try again".to_owned(),
            });
        };
        info.labels.extend(labels.clone());
        let mut request = UpdateRequest {
            info: Some(info),
            update_mask: Some(Default::default()),
        };
        if let Some(mask) = &mut request.update_mask {
            let paths = labels.keys().map(|name| format!("labels.{name}"));
            mask.paths = paths.collect();
        }
        self.containerd
            .call_within(CHANGE, doing, async |client| {
                client.content().update(self.request(request)).await
            })
            .map(drop)
    }

    /// Sets the target of an image's name.
    ///
    /// # Errors
    /// If containerd fails.
    pub fn name_image(&self, name: &str, target: &KeptDocument<'_>) -> Result<(), EngineError> {
        let doing = format!("naming the image {name}");
        let image = Image {
            name: name.to_owned(),
            labels: Labels::new(),
            target: Some(Descriptor {
                media_type: target.media_type.to_owned(),
                digest: target.digest.to_string(),
                size: i64::try_from(target.bytes.len()).unwrap_or(i64::MAX),
                annotations: Labels::new(),
            }),
            ..Image::default()
        };
        let created = self.containerd.try_call(CHANGE, &doing, async |client| {
            let request = CreateImageRequest {
                image: Some(image.clone()),
                source_date_epoch: None,
            };
            client.images().create(self.request(request)).await
        })?;
        if created.is_ok() {
            return Ok(());
        }
        // What others say of the name stays: its labels.
        let mut request = UpdateImageRequest {
            image: Some(image),
            update_mask: Some(Default::default()),
            source_date_epoch: None,
        };
        if let Some(mask) = &mut request.update_mask {
            mask.paths = vec!["target".to_owned()];
        }
        self.containerd
            .call_within(CHANGE, &doing, async |client| {
                client.images().update(self.request(request)).await
            })
            .map(drop)
    }

    /// Ends the lease: what nothing else names goes.
    ///
    /// # Errors
    /// If containerd does not do it; it does when the lease expires.
    pub fn end(self, collected: Collected) -> Result<(), EngineError> {
        self.containerd.remove_lease(&self.id, collected)
    }

    pub(super) fn containerd(&self) -> &Containerd {
        self.containerd
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn request<T>(&self, body: T) -> Request<T> {
        let mut request = self.containerd.request(body);
        let header = self.header.clone();
        request.metadata_mut().insert("containerd-lease", header);
        request
    }
}

/// Returns the directory of a snapshot that can be written to, and below it those of its parents, the
/// nearest first.
fn lower_dirs_of(mounts: &[containerd_client::types::Mount]) -> Vec<std::path::PathBuf> {
    let upper = mounts.iter().find_map(|mount| {
        let mut options = mount.options.iter();
        let upper = options.find_map(|option| option.strip_prefix("upperdir="));
        upper.map(Into::into)
    });
    let mut lowers = lower_dirs(mounts).unwrap_or_default();
    lowers.reverse();
    upper.into_iter().chain(lowers).collect()
}
