//! What the source of a recording is: a path, or a container image.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use engine::{Docker, ImageName, check_reference};

/// How long to wait for Docker when the name does not say that the image is Docker's.
const THERE: Duration = Duration::from_secs(5);

/// What a source turned out to be.
#[derive(Debug)]
pub enum Located {
    /// A directory tree or a disk image.
    Path,
    /// A container image.
    Image(ImageName),
}

/// Classifies a source: one with the prefix of an image is an image; an existing path is that path;
/// any other name is looked up in Docker.
///
/// # Errors
/// If it is neither a path nor the name of an image.
pub fn locate(source: &Path, docker_host: Option<&str>) -> anyhow::Result<Located> {
    let Some(text) = source.to_str() else {
        return Ok(Located::Path);
    };
    if let Some(name) = ImageName::parse(text)? {
        return Ok(Located::Image(name));
    }
    let is_path = text.starts_with(['/', '.']) || source.symlink_metadata().is_ok();
    if is_path || check_reference(text).is_err() {
        return Ok(Located::Path);
    }
    let docker = Docker::new(docker_host.map(str::to_owned));
    match docker.info_within(THERE) {
        Ok(_) => Ok(Located::Image(ImageName::Docker {
            reference: text.to_owned(),
        })),
        Err(error) => Err(error).with_context(|| {
            format!("there is no file {text}, and no Docker to ask for an image of that name")
        }),
    }
}
