//! Loads layers into memory when a pod's sandbox is created, before its containers.
//!
//! containerd reports every sandbox to the plugins of its NRI. The images of the pod's containers are not
//! known then: an annotation of the pod may name them; otherwise the images of earlier containers of
//! the same workload are used ([`seen`]).

mod seen;

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nri::{Ended, Identity, Image, Listener, NriError, Pod, Session};

use super::served::ServedLowers;
use host::interrupt::Interrupt;
use seen::SeenImages;

/// How long it takes until a runtime is looked for that is not there, or that ended the session: at first,
/// and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// Its place among plugins: after those that change containers.
const INDEX: u8 = 90;

/// Warms layers for the pods of the containerd whose NRI is at `socket`, until the interrupt.
///
/// # Errors
/// If no thread can be started.
pub(super) fn start(
    socket: PathBuf,
    served: ServedLowers,
    interrupt: Interrupt,
) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("pods".to_owned())
        .spawn(move || {
            let mut pods = Pods {
                served,
                seen: SeenImages::default(),
            };
            pods.listen(&socket, &interrupt);
        })
        .context("starting the thread that listens for pods")
}

/// Hears of pods.
struct Pods {
    served: ServedLowers,
    seen: SeenImages,
}

impl Pods {
    /// Registers again whenever a session ends: containerd is restarted, and closes the connection of a
    /// plugin that answered too late.
    fn listen(&mut self, socket: &Path, interrupt: &Interrupt) {
        let mut pause = AGAIN[0];
        while interrupt.check().is_ok() {
            match self.session(socket, interrupt) {
                Ok(Ended::Asked) => return,
                Ok(Ended::Shutdown) => pause = AGAIN[0],
                Err(NriError::Connect { socket, source }) => {
                    log::debug!("no NRI at {}: {source}", socket.display());
                }
                Err(error) => {
                    log::warn!("layers are not warmed for pods meanwhile: {error}");
                }
            }
            wait(interrupt, pause);
            pause = (pause * 2).min(AGAIN[1]);
        }
    }

    fn session(&mut self, socket: &Path, interrupt: &Interrupt) -> Result<Ended, NriError> {
        let mut session = Session::register(socket, &Identity::new("yolofs", INDEX))?;
        log::info!(
            "layers are warmed for pods, as told at {}",
            socket.display()
        );
        session.serve(self, &|| interrupt.check().is_err())
    }
}

impl Listener for Pods {
    fn pod_runs(&mut self, pod: &Pod) {
        for image in self.seen.images_of(pod) {
            let layers = self.served.warm_image(&image);
            log::debug!(
                "pod {}/{}: {layers} layers of {image} are warmed",
                pod.namespace,
                pod.name
            );
        }
    }

    fn container_is_made(&mut self, pod: &Pod, image: &Image) {
        self.seen.note(pod, image);
    }
}

/// Waits, unless we are asked to end.
fn wait(interrupt: &Interrupt, time: Duration) {
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    let mut waits = [PollFd::new(interrupt.fd(), PollFlags::POLLIN)];
    // Ended early by a signal, which is asked for next.
    let _events = poll(&mut waits, time);
}
