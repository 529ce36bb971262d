//! The messages of the CRI that only a kubelet sends, and those that it sends with more fields than other tests do.

use std::collections::HashMap;

use prost::Message;

use crate::cri::api::{
    AuthConfig, Call, FileSystemId, ImageSpec, Made, Nothing, PodSandboxConfig, PodSandboxMetadata,
    PullImageReply, calls,
};

calls! {
    "RuntimeService" Version -> VersionReply {}
    "RuntimeService" RuntimeConfig -> RuntimeConfigReply {}
    "RuntimeService" ListPodSandbox -> Sandboxes {}
    "RuntimeService" ListContainers -> Containers {}
    "RuntimeService" RunPodSandbox -> Made {
        #[prost(message, optional, tag = "1")]
        pub(crate) config: Option<PodSandboxConfig>,
        #[prost(string, tag = "2")]
        pub(crate) runtime_handler: String,
    }
    "RuntimeService" PodSandboxStatus -> PodSandboxStatusReply {
        #[prost(string, tag = "1")]
        pub(crate) pod_sandbox_id: String,
    }
    "RuntimeService" ContainerStatus -> ContainerStatusReply {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
    }
    "RuntimeService" ContainerStats -> ContainerStatsReply {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
    }
    "RuntimeService" ListContainerStats -> AllContainerStats {}
    "RuntimeService" StopContainer -> Nothing {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
        #[prost(int64, tag = "2")]
        pub(crate) timeout: i64,
    }
    "RuntimeService" RemoveContainer -> Nothing {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
    }
    "ImageService" PullImage -> PullImageReply {
        #[prost(message, optional, tag = "1")]
        pub(crate) image: Option<PodImage>,
        #[prost(message, optional, tag = "2")]
        pub(crate) auth: Option<AuthConfig>,
        #[prost(message, optional, tag = "3")]
        pub(crate) sandbox_config: Option<PodSandboxConfig>,
    }
    "ImageService" ImageStatus -> ImageStatusReply {
        #[prost(message, optional, tag = "1")]
        pub(crate) image: Option<PodImage>,
    }
    "ImageService" ListImages -> Images {}
    "ImageService" ImageFsInfo -> ImageFsInfoReply {}
}

/// An `ImageSpec` as it is written in a pod.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodImage {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
    #[prost(map = "string, string", tag = "2")]
    pub(crate) annotations: HashMap<String, String>,
    #[prost(string, tag = "18")]
    pub(crate) user_specified_image: String,
    #[prost(string, tag = "19")]
    pub(crate) runtime_handler: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionReply {
    #[prost(string, tag = "2")]
    pub(crate) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(crate) runtime_version: String,
    #[prost(string, tag = "4")]
    pub(crate) runtime_api_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeConfigReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) linux: Option<Nothing>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<Sandbox>,
}

/// `PodSandbox`, and the status of one, which begin with the same fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    /// 0 is ready.
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxStatusReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, tag = "5")]
    pub(crate) image_ref: String,
    #[prost(int32, tag = "6")]
    pub(crate) state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<StatusOfContainer>,
}

/// `ContainerStatus`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusOfContainer {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
    #[prost(string, tag = "9")]
    pub(crate) image_ref: String,
    #[prost(string, tag = "17")]
    pub(crate) image_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatsReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) stats: Option<StatsOfContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllContainerStats {
    #[prost(message, repeated, tag = "1")]
    pub(crate) stats: Vec<StatsOfContainer>,
}

/// `ContainerStats`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatsOfContainer {
    #[prost(message, optional, tag = "1")]
    pub(crate) attributes: Option<Attributes>,
    #[prost(message, optional, tag = "4")]
    pub(crate) writable_layer: Option<DiskUsage>,
}

/// `ContainerAttributes`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attributes {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageStatusReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Images {
    #[prost(message, repeated, tag = "1")]
    pub(crate) images: Vec<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) repo_tags: Vec<String>,
    #[prost(uint64, tag = "4")]
    pub(crate) size: u64,
    #[prost(bool, tag = "8")]
    pub(crate) pinned: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageFsInfoReply {
    #[prost(message, repeated, tag = "1")]
    pub(crate) image_filesystems: Vec<DiskUsage>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) container_filesystems: Vec<DiskUsage>,
}

/// `FilesystemUsage`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiskUsage {
    #[prost(message, optional, tag = "2")]
    pub(crate) id: Option<FileSystemId>,
    #[prost(message, optional, tag = "3")]
    pub(crate) used_bytes: Option<Number>,
    #[prost(message, optional, tag = "4")]
    pub(crate) inodes_used: Option<Number>,
}

/// `UInt64Value`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Number {
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

impl DiskUsage {
    pub(crate) fn bytes(&self) -> u64 {
        self.used_bytes.map_or(0, |number| number.value)
    }

    pub(crate) fn inodes(&self) -> u64 {
        self.inodes_used.map_or(0, |number| number.value)
    }

    pub(crate) fn place(&self) -> &str {
        self.id.as_ref().map_or("", |id| &id.mountpoint)
    }
}
