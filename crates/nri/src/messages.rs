//! The messages of the interface, with the fields that are used here. Decoding skips all others.

use std::collections::HashMap;

/// A pod whose sandbox was made.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pod {
    /// Its ID in the runtime.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its namespace in Kubernetes.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its labels.
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
    /// Its annotations.
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
}

/// A container that is about to be made.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// Its ID in the runtime.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its image: runtimes before containerd 2.4 do not send it.
    #[prost(message, optional, tag = "22")]
    pub image: Option<Image>,
}

/// The image of a container. Unknown fields are empty.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Image {
    /// Its name in full.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The digest of its index or manifest.
    #[prost(string, tag = "2")]
    pub digest: String,
    /// The digest of its configuration.
    #[prost(string, tag = "3")]
    pub config_digest: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegisterPlugin {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) index: String,
    #[prost(string, tag = "3")]
    pub(crate) nri_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Configured {
    #[prost(int32, tag = "2")]
    pub(crate) events: i32,
}

/// Pods and containers that are there already, in one message or several.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Synchronize {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pods: Vec<Pod>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) containers: Vec<SyncedContainer>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
}

/// An existing container.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SyncedContainer {
    #[prost(string, tag = "2")]
    pub(crate) pod: String,
    #[prost(message, optional, tag = "22")]
    pub(crate) image: Option<Image>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Synchronized {
    #[prost(bool, tag = "2")]
    pub(crate) more: bool,
}

/// The request of each event: of those of pods, the container is absent.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Event {
    #[prost(message, optional, tag = "1")]
    pub(crate) pod: Option<Pod>,
    #[prost(message, optional, tag = "2")]
    pub(crate) container: Option<Container>,
}

/// The form that events of pods had before NRI 0.11.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StateChange {
    #[prost(int32, tag = "1")]
    pub(crate) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) pod: Option<Pod>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Empty {}
