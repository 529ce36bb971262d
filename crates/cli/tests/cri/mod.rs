//! What a kubelet asks of a containerd, by way of the CRI.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test binary uses its own part of it")]

pub(crate) mod api;
pub(crate) mod kubelet;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use containerd_client::tonic::client::Grpc;
use containerd_client::tonic::codegen::http::uri::PathAndQuery;
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Request, Status};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic_prost::ProstCodec;

use crate::node::{Node, pack};
use api::{
    AuthConfig, Call, ContainerConfig, ContainerMetadata, ContainerSecurityContext, ContainerState,
    ContainerStatus, CreateContainer, ExecSync, IdMapping, ImageSpec, LinuxConfig,
    LinuxContainerConfig, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    PullImage, RemoveImage, RemovePodSandbox, RunPodSandbox, SecurityContext, StartContainer,
    StopPodSandbox, UserNamespace,
};
use lab::{Lab, ok, until};
use testkit::registries::{Kind, Proxy, Registry};

/// Long enough for several pulls at once on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A registry with an image, and with the one whose container holds a pod's namespaces.
pub(crate) struct Images {
    registry: Registry,
}

impl Images {
    /// Puts what `docker save` wrote into a registry of its own.
    pub(crate) fn new(lab: &Lab, archive: &Path) -> Self {
        let dir = lab.make_dir("pause");
        let root = lab.make_dir("pause/root");
        fs::copy("/bin/busybox", root.join("sleep")).unwrap();
        let pause = pack(&dir, "pause:1", &["/sleep", "1000000"], &["root"]);
        let images = Self {
            registry: Registry::start(Kind::Docker),
        };
        for (archive, image) in [(archive, images.app()), (&pause, images.pause())] {
            ok(Command::new("skopeo")
                .args(["copy", "--quiet", "--dest-tls-verify=false"])
                .arg(format!("docker-archive:{}", archive.display()))
                .arg(format!("docker://{image}")));
        }
        images
    }

    pub(crate) fn host(&self) -> String {
        self.registry.host()
    }

    pub(crate) fn port(&self) -> u16 {
        self.registry.port
    }

    /// Returns a line to the registry that counts bytes.
    pub(crate) fn line(&self) -> Proxy {
        Proxy::before(&self.registry)
    }

    pub(crate) fn app(&self) -> String {
        format!("{}/small:1", self.registry.host())
    }

    pub(crate) fn pause(&self) -> String {
        format!("{}/pause:1", self.registry.host())
    }

    /// Returns what containerd's configuration needs for pods: the part that `packaging` has, and
    /// what keeps it away from the machine's directories. Who runs the tests may have no right to
    /// give a process a lower OOM score, as containerd does unless told otherwise.
    pub(crate) fn config(&self, lab: &Lab) -> String {
        format!(
            r#"[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "yolofs"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni}"
conf_dir = "{cni}"
"#,
            pause = self.pause(),
            cni = lab.make_dir("cni").display()
        )
    }
}

impl Images {
    /// Returns the same for a containerd of today, whose snapshotter is in the configuration already.
    pub(crate) fn config_of_today(&self, lab: &Lab) -> String {
        format!(
            r#"[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{cni}"]
conf_dir = "{cni}"
"#,
            pause = self.pause(),
            cni = lab.make_dir("cni").display()
        )
    }
}

pub(crate) type Annotations = HashMap<String, String>;

/// A client of a containerd's CRI.
pub(crate) struct Cri {
    runtime: Runtime,
    channel: Channel,
}

impl Cri {
    pub(crate) fn of(node: &Node) -> Self {
        let runtime = Runtime::new().unwrap();
        let connecting = containerd_client::connect(node.containerd_socket());
        let channel = runtime.block_on(connecting).unwrap();
        Self { runtime, channel }
    }

    /// Asks, and waits for the reply.
    pub(crate) fn call<C: Call>(&self, request: C) -> C::Reply {
        let said = format!("{} {request:?}", C::METHOD);
        let reply = self.try_call(request);
        reply.unwrap_or_else(|error| panic!("{said}: {error}"))
    }

    /// Asks somebody who may refuse, or not be there.
    pub(crate) fn try_call<C: Call>(&self, request: C) -> Result<C::Reply, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        let asking = async {
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(error.to_string()))?;
            let method = PathAndQuery::from_static(C::METHOD);
            let codec = ProstCodec::default();
            grpc.unary(Request::new(request), method, codec).await
        };
        let reply = self
            .runtime
            .block_on(async { timeout(PATIENCE, asking).await });
        let reply = reply.unwrap_or_else(|_| panic!("no reply from {}", C::METHOD));
        Ok(reply?.into_inner())
    }

    pub(crate) fn pull(&self, image: &str) {
        self.pull_as(image, None);
    }

    /// Pulls with what a pod's pull secret says, a name and a password.
    pub(crate) fn pull_as(&self, image: &str, user: Option<(&str, &str)>) {
        let auth = user.map(|(username, password)| AuthConfig {
            username: username.to_owned(),
            password: password.to_owned(),
        });
        let image = Some(spec(image));
        let reply = self.call(PullImage { image, auth });
        assert!(reply.image_ref.starts_with("sha256:"), "{reply:?}");
    }

    pub(crate) fn remove_image(&self, image: &str) {
        let image = Some(spec(image));
        self.call(RemoveImage { image });
    }

    /// Makes the sandbox of a pod, without a container, and returns its ID.
    pub(crate) fn sandbox(&self, config: &PodSandboxConfig) -> String {
        let config = Some(config.clone());
        self.call(RunPodSandbox { config }).id
    }

    /// Stops and removes a sandbox.
    pub(crate) fn remove_sandbox(&self, id: &str) {
        let id = || id.to_owned();
        self.call(StopPodSandbox {
            pod_sandbox_id: id(),
        });
        self.call(RemovePodSandbox {
            pod_sandbox_id: id(),
        });
    }

    /// Runs a pod of one container, which waits.
    pub(crate) fn pod(&self, name: &str, image: &str) -> Pod<'_> {
        self.annotated_pod(name, image, &HashMap::new(), &HashMap::new())
    }

    /// The same, with a network of its own and in a user namespace in which 0 is `base`.
    pub(crate) fn mapped_pod(&self, name: &str, image: &str, base: u32) -> Pod<'_> {
        let ids = vec![IdMapping {
            host_id: base,
            container_id: 0,
            length: 65_536,
        }];
        let config = sandbox_config_with(
            name,
            &Annotations::new(),
            Some(UserNamespace {
                mode: NamespaceMode::Pod.into(),
                uids: ids.clone(),
                gids: ids,
            }),
        );
        let sandbox = self.sandbox(&config);
        self.start_in(sandbox, &config, image, &Annotations::new())
    }

    /// The same, with annotations of the pod and of the container.
    pub(crate) fn annotated_pod(
        &self,
        name: &str,
        image: &str,
        of_pod: &Annotations,
        of_container: &Annotations,
    ) -> Pod<'_> {
        let config = sandbox_config(name, of_pod);
        let sandbox = self.sandbox(&config);
        self.start_in(sandbox, &config, image, of_container)
    }

    /// Runs a container, which waits, in a sandbox that is there.
    pub(crate) fn start_in(
        &self,
        sandbox: String,
        config: &PodSandboxConfig,
        image: &str,
        annotations: &Annotations,
    ) -> Pod<'_> {
        let container = self.create_in(&sandbox, config, image, annotations);
        let pod = Pod {
            cri: self,
            sandbox,
            container: container.unwrap(),
        };
        self.call(StartContainer {
            container_id: pod.container.clone(),
        });
        assert_eq!(pod.state(), ContainerState::Running);
        pod
    }
}

impl Cri {
    /// Makes a container, which would wait, and returns its name.
    pub(crate) fn create_in(
        &self,
        sandbox: &str,
        config: &PodSandboxConfig,
        image: &str,
        annotations: &Annotations,
    ) -> Result<String, Status> {
        // As a kubelet says it: the container's namespaces are the pod's.
        let of_pod = config.linux.clone().unwrap_or_default().security_context;
        let security_context = of_pod.map(|of_pod| ContainerSecurityContext {
            namespace_options: of_pod.namespace_options,
        });
        let made = self.try_call(CreateContainer {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: "main".to_owned(),
                }),
                image: Some(spec(image)),
                command: ["/bin/sleep", "1000000"].map(str::to_owned).to_vec(),
                annotations: annotations.clone(),
                linux: Some(LinuxContainerConfig { security_context }),
            }),
            sandbox_config: Some(config.clone()),
        });
        made.map(|made| made.id)
    }
}

/// Waits until a containerd that was just started takes pods.
pub(crate) fn until_pods_are_possible(cri: &Cri) {
    until("pods to be possible", || {
        let Ok(reply) = cri.try_call(api::Status {}) else {
            return false;
        };
        let status = reply.status.unwrap();
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.kind == "RuntimeReady" && condition.holds)
    });
}

/// Returns what a kubelet says of a pod's sandbox.
pub(crate) fn sandbox_config(name: &str, annotations: &Annotations) -> PodSandboxConfig {
    sandbox_config_with(name, annotations, None)
}

/// The same, of a pod with a user namespace.
fn sandbox_config_with(
    name: &str,
    annotations: &Annotations,
    userns_options: Option<UserNamespace>,
) -> PodSandboxConfig {
    // In the machine's network, unless Kubernetes refuses that: there is no plugin that would make one.
    let network = match userns_options {
        Some(_) => NamespaceMode::Pod,
        None => NamespaceMode::Node,
    };
    let namespace_options = Some(NamespaceOption {
        network: network.into(),
        userns_options,
    });
    let security_context = Some(SecurityContext { namespace_options });
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: name.to_owned(),
            namespace: "tests".to_owned(),
        }),
        annotations: annotations.clone(),
        linux: Some(LinuxConfig { security_context }),
    }
}

fn spec(image: &str) -> ImageSpec {
    let image = image.to_owned();
    ImageSpec { image }
}

/// A sandbox and its container.
pub(crate) struct Pod<'a> {
    cri: &'a Cri,
    sandbox: String,
    pub(crate) container: String,
}

impl Pod<'_> {
    pub(crate) fn state(&self) -> ContainerState {
        let container_id = self.container.clone();
        let reply = self.cri.call(ContainerStatus { container_id });
        reply.status.unwrap().state()
    }

    /// Returns the lower directories of the container's root.
    pub(crate) fn lowers(&self) -> String {
        let mounts = self.exec("cat /proc/mounts");
        let root = mounts
            .lines()
            .find(|line| line.split(' ').nth(1) == Some("/"));
        let options = root.unwrap().split(' ').nth(3).unwrap().split(',');
        let mut lowers = options.filter_map(|option| option.strip_prefix("lowerdir="));
        lowers.next().unwrap().to_owned()
    }

    /// Runs a shell in the container and returns what it said.
    pub(crate) fn exec(&self, script: &str) -> String {
        let reply = self.cri.call(ExecSync {
            container_id: self.container.clone(),
            cmd: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            timeout: 30,
        });
        let [out, err] = [&reply.stdout, &reply.stderr].map(|said| String::from_utf8_lossy(said));
        assert_eq!(reply.exit_code, 0, "{script}: {out}{err}");
        out.trim_end().to_owned()
    }

    pub(crate) fn remove(self) {
        let id = || self.sandbox.clone();
        self.cri.call(StopPodSandbox {
            pod_sandbox_id: id(),
        });
        assert_eq!(self.state(), ContainerState::Exited);
        self.cri.call(RemovePodSandbox {
            pod_sandbox_id: id(),
        });
    }
}
