//! A client that makes the calls of a kubelet (1.34) in its order: what it asks for when it starts, again and again
//! while it runs, for a pod from its sandbox to its end, and when it collects images.

pub(crate) mod messages;

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::api::{
    ContainerState, ExecSync, ImageSpec, PodSandboxConfig, RemoveImage, RemovePodSandbox,
    StartContainer, Status, StopPodSandbox,
};
use super::{Annotations, Cri, sandbox_config};
use crate::node::Node;
use messages::{
    Container, ContainerStats, ContainerStatus, DiskUsage, Image, ImageFsInfo, ImageStatus,
    ListContainerStats, ListContainers, ListImages, ListPodSandbox, PodImage, PodSandboxStatus,
    PullImage, RemoveContainer, RunPodSandbox, RuntimeConfig, Sandbox, StatsOfContainer,
    StopContainer, Version,
};

/// How often it lists all pods and containers, to learn of what changed.
const RELIST: Duration = Duration::from_secs(1);
/// A sandbox that is ready.
const READY: i32 = 0;
/// Seconds that a container has to end when it is asked to: of one that does not listen, the fewest.
const GRACE: i64 = 1;

/// A kubelet of a node, without its own part of a pod: volumes, control groups, and what it tells a cluster.
pub(crate) struct Kubelet<'a> {
    cri: &'a Cri,
}

/// A pod of one container that runs.
pub(crate) struct RunningPod {
    config: PodSandboxConfig,
    image: PodImage,
    pub(crate) sandbox: String,
    pub(crate) container: String,
}

impl<'a> Kubelet<'a> {
    /// Does what it does when it starts.
    pub(crate) fn start(cri: &'a Cri) -> Self {
        let version = cri.call(Version {});
        assert_eq!(version.runtime_name, "containerd");
        assert_eq!(version.runtime_api_version, "v1");
        assert!(cri.call(RuntimeConfig {}).linux.is_some());
        super::until_pods_are_possible(cri);
        Self { cri }
    }

    /// Returns how full the disk of images is: a kubelet takes the first one that it is told of.
    pub(crate) fn image_disk(&self) -> DiskUsage {
        let disks = self.cri.call(ImageFsInfo {});
        let [disk] = &disks.image_filesystems[..] else {
            panic!("one disk is expected: {disks:?}");
        };
        // Nothing is told of containers, or the same: or the kubelet believes in a disk of their own.
        let mut others = disks.container_filesystems.iter();
        assert!(others.all(|of| of.place() == disk.place()), "{disks:?}");
        disk.clone()
    }

    /// Lists all pods and containers, as it does each second.
    pub(crate) fn relist(&self) -> (Vec<Sandbox>, Vec<Container>) {
        relist(self.cri)
    }

    /// Starts a pod: its sandbox, its image, and its container.
    pub(crate) fn sync_pod(&self, name: &str, image: &str, runtime_handler: &str) -> RunningPod {
        let config = sandbox_config(name, &annotations_of(name));
        let sandbox = self.cri.call(RunPodSandbox {
            config: Some(config.clone()),
            runtime_handler: runtime_handler.to_owned(),
        });
        let sandbox = sandbox.id;
        assert_eq!(self.sandbox_state(&sandbox), READY);
        let image = PodImage {
            image: image.to_owned(),
            annotations: annotations_of(name),
            user_specified_image: String::new(),
            runtime_handler: runtime_handler.to_owned(),
        };
        let reference = self.ensure_image_exists(&image, &config);
        // The container is made of the image's ID, whatever its name points to by now.
        let container = self
            .cri
            .create_in(&sandbox, &config, &reference, &annotations_of(name))
            .unwrap();
        self.cri.call(StartContainer {
            container_id: container.clone(),
        });
        let pod = RunningPod {
            config,
            image,
            sandbox,
            container,
        };
        let (sandboxes, containers) = self.relist();
        assert!(sandboxes.iter().any(|one| one.id == pod.sandbox));
        let mut containers = containers.iter();
        let listed = containers.find(|one| one.id == pod.container).unwrap();
        assert_eq!(listed.pod_sandbox_id, pod.sandbox);
        assert_eq!(listed.image_ref, reference);
        let status = self.cri.call(ContainerStatus {
            container_id: pod.container.clone(),
        });
        let status = status.status.unwrap();
        assert_eq!(status.state, i32::from(ContainerState::Running));
        // Its reference is the name with the digest of the manifest.
        assert!(status.image_ref.contains("@sha256:"), "{status:?}");
        assert_eq!(status.image_id, reference);
        pod
    }

    /// Looks for an image, pulls it if it is not there, and returns its ID.
    fn ensure_image_exists(&self, image: &PodImage, config: &PodSandboxConfig) -> String {
        if let Some(known) = self.image_status(image) {
            return known.id;
        }
        let pulled = self.cri.call(PullImage {
            image: Some(image.clone()),
            auth: None,
            sandbox_config: Some(config.clone()),
        });
        let known = self.image_status(image).expect("it was pulled");
        assert_eq!(pulled.image_ref, known.id);
        assert!(known.size > 0, "{known:?}");
        known.id
    }

    fn image_status(&self, image: &PodImage) -> Option<Image> {
        let image = Some(image.clone());
        self.cri.call(ImageStatus { image }).image
    }

    fn sandbox_state(&self, id: &str) -> i32 {
        let status = self.cri.call(PodSandboxStatus {
            pod_sandbox_id: id.to_owned(),
        });
        status.status.unwrap().state
    }

    /// Runs a shell in a container, as a probe does, and returns what it said.
    pub(crate) fn probe(&self, pod: &RunningPod, script: &str) -> String {
        let reply = self.cri.call(ExecSync {
            container_id: pod.container.clone(),
            cmd: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            timeout: 30,
        });
        assert_eq!(reply.exit_code, 0, "{reply:?}");
        String::from_utf8_lossy(&reply.stdout).trim_end().to_owned()
    }

    /// Returns what a container's own layer takes, in both ways in which that is asked for. Statistics of a whole pod come
    /// from its control group, which a kubelet makes, and are not asked for by default.
    pub(crate) fn writable_layers(&self, pod: &RunningPod) -> Vec<DiskUsage> {
        let one = self.cri.call(ContainerStats {
            container_id: pod.container.clone(),
        });
        let all = self.cri.call(ListContainerStats {}).stats;
        let own = |stats: Vec<StatsOfContainer>| {
            let mut stats = stats.into_iter();
            let own = stats.find(|of| {
                let attributes = of.attributes.as_ref();
                attributes.is_some_and(|attributes| attributes.id == pod.container)
            });
            own.expect("it is in the list").writable_layer.unwrap()
        };
        [vec![one.stats.unwrap()], all].map(own).into()
    }

    /// Ends a pod, and later, when its containers are collected, removes what is left of it.
    pub(crate) fn end_pod(&self, pod: RunningPod) {
        self.cri.call(StopContainer {
            container_id: pod.container.clone(),
            timeout: GRACE,
        });
        let status = self.cri.call(ContainerStatus {
            container_id: pod.container.clone(),
        });
        let status = status.status.unwrap();
        assert_eq!(status.state, i32::from(ContainerState::Exited));
        self.stop_sandbox(&pod.sandbox);
        assert_ne!(self.sandbox_state(&pod.sandbox), READY);
        self.relist();
        self.cri.call(RemoveContainer {
            container_id: pod.container,
        });
        // It stops it again before it is removed.
        self.stop_sandbox(&pod.sandbox);
        self.cri.call(RemovePodSandbox {
            pod_sandbox_id: pod.sandbox.clone(),
        });
        let (sandboxes, _) = self.relist();
        assert!(sandboxes.iter().all(|one| one.id != pod.sandbox));
        let image = self.image_status(&pod.image);
        assert!(image.is_some(), "an image outlives its pods");
        drop(pod.config);
    }

    fn stop_sandbox(&self, id: &str) {
        self.cri.call(StopPodSandbox {
            pod_sandbox_id: id.to_owned(),
        });
    }

    /// Collects the images that no container uses, and returns the names of those that went.
    pub(crate) fn collect_images(&self) -> Vec<String> {
        self.image_disk();
        let images = self.cri.call(ListImages {}).images;
        let (_, containers) = self.relist();
        let used: Vec<_> = containers.into_iter().map(|one| one.image_ref).collect();
        let unused = images
            .into_iter()
            .filter(|image| !image.pinned && !used.contains(&image.id));
        let mut removed = Vec::new();
        for image in unused {
            self.cri.call(RemoveImage {
                image: Some(ImageSpec {
                    image: image.id.clone(),
                }),
            });
            removed.extend(image.repo_tags);
        }
        removed
    }

    /// Asks whether the runtime is as it should be, as it does every few seconds.
    pub(crate) fn is_ready(&self) -> bool {
        let status = self.cri.call(Status {}).status.unwrap();
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.kind == "RuntimeReady" && condition.holds)
    }
}

fn relist(cri: &Cri) -> (Vec<Sandbox>, Vec<Container>) {
    let sandboxes = cri.call(ListPodSandbox {}).items;
    (sandboxes, cri.call(ListContainers {}).containers)
}

/// Returns what a kubelet says of a pod that a file or the API server told it of.
fn annotations_of(name: &str) -> Annotations {
    let said = [
        ("kubernetes.io/config.seen", "2026-11-29T02:00:00.0Z"),
        ("kubernetes.io/config.source", "api"),
        ("example.test/pod", name),
    ];
    said.map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Lists all pods and containers each second, beside what else is asked; ends when it is dropped.
pub(crate) struct Relists {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<u32>>,
}

impl Relists {
    pub(crate) fn start(node: &Node<'_>) -> Self {
        let cri = Cri::of(node);
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut relists = 0;
            while stopped.recv_timeout(RELIST) == Err(RecvTimeoutError::Timeout) {
                relist(&cri);
                relists += 1;
            }
            relists
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Ends them, and returns how many there were.
    pub(crate) fn stop(mut self) -> u32 {
        drop(self.stop.take());
        let thread = self.thread.take().unwrap();
        thread.join().expect("a kubelet could not list its pods")
    }
}
