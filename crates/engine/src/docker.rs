//! Docker, through its own client program.
//!
//! The client finds the daemon by the user's configuration (`DOCKER_HOST`, contexts, TLS), and uses
//! the newest common version of the API. It costs some 15 to 30 ms a call, so queries about
//! many images are made in one call.

mod container;
mod events;
mod parse;
mod store;

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

pub use container::{Container, Health, RunRequest};
pub use events::{Event, EventKind, Events};
pub use parse::{DockerInfo, Storage};
pub use store::ImageStore;

use blocks::Digest;

use crate::call::{ProgramOutput, call};
use crate::error::EngineError;
use crate::image::LocalImage;

/// How long Docker may take for what it only has to look up. A daemon that is busy with a build
/// takes seconds.
const LOOK_UP: Duration = Duration::from_secs(30);
/// How many images are described by one call: their names must fit a command line.
const IMAGES_PER_CALL: usize = 256;

/// A Docker daemon.
#[derive(Clone, Debug)]
pub struct Docker {
    host: Option<String>,
}

impl Docker {
    /// Returns the daemon at `host`, such as `unix:///run/docker.sock`, or the one that the client
    /// finds by itself.
    #[must_use]
    pub const fn new(host: Option<String>) -> Self {
        Self { host }
    }

    /// Requests the description of the daemon. Also a check whether there is one; with
    /// a shorter deadline than other requests, if that is all that is needed.
    ///
    /// # Errors
    /// If it does not respond within `patience`.
    pub fn info_within(&self, patience: Duration) -> Result<DockerInfo, EngineError> {
        let doing = "asking Docker about itself";
        let answer = self.ask(doing, ["info", "--format", "{{json .}}"], patience)?;
        DockerInfo::parse(doing, &answer.success()?)
    }

    /// Requests the description of the daemon.
    ///
    /// # Errors
    /// If it does not respond.
    pub fn info(&self) -> Result<DockerInfo, EngineError> {
        self.info_within(LOOK_UP)
    }

    /// Returns all images that have a name, or that no image is built on.
    ///
    /// # Errors
    /// If Docker does not respond, or stores its images without a directory for each
    /// layer.
    pub fn images(&self) -> Result<Vec<LocalImage>, EngineError> {
        let doing = "asking Docker for its images";
        let args = ["image", "ls", "--no-trunc", "--quiet"];
        let ids = self.ask(doing, args, LOOK_UP)?.success()?;
        let mut ids = parse::lines(&ids);
        ids.sort_unstable();
        ids.dedup(); // an image with two names is listed twice
        self.described(&ids)
    }

    /// Returns an image by name, or by (the beginning of) its ID.
    ///
    /// # Errors
    /// If there is none, or as [`images`](Self::images).
    pub fn image(&self, reference: &str) -> Result<LocalImage, EngineError> {
        let mut found = self.described(&[reference.to_owned()])?;
        let mut image = found.pop().ok_or_else(|| no_image(reference))?;
        reference.clone_into(&mut image.reference);
        Ok(image)
    }

    /// Returns the ID of an image by name, or by the beginning of its ID.
    ///
    /// # Errors
    /// If there is none, or Docker does not respond.
    pub fn image_id(&self, reference: &str) -> Result<Digest, EngineError> {
        let doing = format!("asking Docker for the image {reference}");
        let args = ["image", "inspect", "--format", "{{json .Id}}", "--"];
        let answer = self.ask(&doing, args.into_iter().chain([reference]), LOOK_UP)?;
        if !answer.is_success() && parse::only_missing(&answer.stderr) {
            return Err(no_image(reference));
        }
        parse::json(&doing, &answer.success()?)
    }

    /// Returns those of some images that are there.
    ///
    /// # Errors
    /// As [`images`](Self::images).
    pub fn described(&self, references: &[String]) -> Result<Vec<LocalImage>, EngineError> {
        let mut images = Vec::new();
        for some in references.chunks(IMAGES_PER_CALL) {
            let doing = match some {
                [one] => format!("asking Docker for the image {one}"),
                many => format!("asking Docker for {} images", many.len()),
            };
            let args = ["image", "inspect", "--format", "{{json .}}", "--"];
            let args = args.into_iter().chain(some.iter().map(String::as_str));
            let answer = self.ask(&doing, args, LOOK_UP)?;
            // Docker describes those that are there, complains about the others, and fails.
            let stdout = if answer.is_success() || parse::only_missing(&answer.stderr) {
                answer.stdout
            } else {
                answer.success()?
            };
            images.extend(parse::images(&doing, &stdout)?);
        }
        Ok(images)
    }

    /// Returns the client with the daemon chosen.
    fn client<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("docker");
        if let Some(host) = &self.host {
            command.arg("--host").arg(host);
        }
        command.args(args);
        command
    }

    fn ask<S: AsRef<OsStr>>(
        &self,
        doing: &str,
        args: impl IntoIterator<Item = S>,
        patience: Duration,
    ) -> Result<ProgramOutput, EngineError> {
        call(doing, self.client(args), patience)
    }
}

fn no_image(reference: &str) -> EngineError {
    EngineError::NoImage {
        engine: "Docker".to_owned(),
        reference: reference.to_owned(),
        hint: format!("try docker pull {reference}, or docker image ls"),
    }
}
