//! The messages of the CRI (`runtime.v1`), with those of their fields that the tests use.

use std::collections::HashMap;

use prost::Message;

/// A request, and where it goes.
pub(crate) trait Call: Message + std::fmt::Debug + 'static {
    const METHOD: &'static str;
    type Reply: Message + Default + 'static;
}

/// Declares requests: their method, their reply, and their fields.
macro_rules! calls {
    ($($service:literal $request:ident -> $reply:ty { $($fields:tt)* })*) => {$(
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $request { $($fields)* }

        impl Call for $request {
            const METHOD: &'static str =
                concat!("/runtime.v1.", $service, "/", stringify!($request));
            type Reply = $reply;
        }
    )*};
}

pub(crate) use calls;

calls! {
    "RuntimeService" Status -> StatusReply {}
    "RuntimeService" RunPodSandbox -> Made {
        #[prost(message, optional, tag = "1")]
        pub(crate) config: Option<PodSandboxConfig>,
    }
    "RuntimeService" StopPodSandbox -> Nothing {
        #[prost(string, tag = "1")]
        pub(crate) pod_sandbox_id: String,
    }
    "RuntimeService" RemovePodSandbox -> Nothing {
        #[prost(string, tag = "1")]
        pub(crate) pod_sandbox_id: String,
    }
    "RuntimeService" CreateContainer -> Made {
        #[prost(string, tag = "1")]
        pub(crate) pod_sandbox_id: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) config: Option<ContainerConfig>,
        #[prost(message, optional, tag = "3")]
        pub(crate) sandbox_config: Option<PodSandboxConfig>,
    }
    "RuntimeService" StartContainer -> Nothing {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
    }
    "RuntimeService" ContainerStatus -> ContainerStatusReply {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
    }
    "RuntimeService" ExecSync -> ExecSyncReply {
        #[prost(string, tag = "1")]
        pub(crate) container_id: String,
        #[prost(string, repeated, tag = "2")]
        pub(crate) cmd: Vec<String>,
        #[prost(int64, tag = "3")]
        pub(crate) timeout: i64,
    }
    "ImageService" PullImage -> PullImageReply {
        #[prost(message, optional, tag = "1")]
        pub(crate) image: Option<ImageSpec>,
        #[prost(message, optional, tag = "2")]
        pub(crate) auth: Option<AuthConfig>,
    }
    "ImageService" RemoveImage -> Nothing {
        #[prost(message, optional, tag = "1")]
        pub(crate) image: Option<ImageSpec>,
    }
    "ImageService" ImageFsInfo -> ImageFsInfoReply {}
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

/// A new sandbox's or container's ID.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Made {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullImageReply {
    #[prost(string, tag = "1")]
    pub(crate) image_ref: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthConfig {
    #[prost(string, tag = "1")]
    pub(crate) username: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(map = "string, string", tag = "7")]
    pub(crate) annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
}

/// `LinuxPodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<SecurityContext>,
}

/// `LinuxSandboxSecurityContext`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamespaceOption {
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub(crate) network: i32,
    #[prost(message, optional, tag = "5")]
    pub(crate) userns_options: Option<UserNamespace>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserNamespace {
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub(crate) mode: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) uids: Vec<IdMapping>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) gids: Vec<IdMapping>,
}

/// `IDMapping`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct IdMapping {
    #[prost(uint32, tag = "1")]
    pub(crate) host_id: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) container_id: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum NamespaceMode {
    Pod = 0,
    Node = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(map = "string, string", tag = "10")]
    pub(crate) annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "15")]
    pub(crate) linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<ContainerSecurityContext>,
}

/// `LinuxContainerSecurityContext`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerSecurityContext {
    #[prost(message, optional, tag = "3")]
    pub(crate) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<StatusOfContainer>,
}

/// `ContainerStatus`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusOfContainer {
    #[prost(enumeration = "ContainerState", tag = "3")]
    pub(crate) state: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum ContainerState {
    Created = 0,
    Running = 1,
    Exited = 2,
    Unknown = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecSyncReply {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusReply {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<RuntimeStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) handlers: Vec<RuntimeHandler>,
}

/// A runtime that pods may choose; the default one has no name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeHandler {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) features: Option<RuntimeHandlerFeatures>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeHandlerFeatures {
    #[prost(bool, tag = "2")]
    pub(crate) user_namespaces: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub(crate) conditions: Vec<RuntimeCondition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(bool, tag = "2")]
    pub(crate) holds: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageFsInfoReply {
    #[prost(message, repeated, tag = "1")]
    pub(crate) file_systems: Vec<FileSystemUsage>,
}

/// `FilesystemUsage`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FileSystemUsage {
    #[prost(message, optional, tag = "2")]
    pub(crate) id: Option<FileSystemId>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FileSystemId {
    #[prost(string, tag = "1")]
    pub(crate) mountpoint: String,
}
