//! What a user calls an image.

use std::path::PathBuf;

/// The longest reference that is taken: a name has at most 255 characters, a tag 128, and a
/// digest 71 (OCI distribution specification).
const REFERENCE_MAX: usize = 512;
/// The longest namespace of containerd (its `identifiers` package).
const NAMESPACE_MAX: usize = 76;

/// The location of an image, and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// `docker://REFERENCE`: in Docker's own store.
    Docker {
        /// A name with a tag or a digest, or an image ID.
        reference: String,
    },
    /// `containerd://NAMESPACE/REFERENCE`: in containerd's.
    Containerd {
        /// The namespace: `default`, `k8s.io`, `moby`.
        namespace: String,
        /// The name in it; containerd only accepts full ones, such as `docker.io/library/nginx:1.25`.
        reference: String,
    },
    /// `oci:DIR[:TAG]`: a directory with an OCI layout.
    OciLayout {
        /// The directory.
        dir: PathBuf,
        /// Which of its images, if it has several.
        tag: Option<String>,
    },
    /// `docker-archive:FILE[:REFERENCE]`: what `docker save` writes.
    DockerArchive {
        /// The tar file.
        file: PathBuf,
        /// Which of its images, if it has several.
        reference: Option<String>,
    },
}

/// Text that is no name of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the name of an image: {why}")]
pub struct ParseImageNameError {
    /// The text, truncated.
    pub text: String,
    /// The error, and the right form.
    pub why: &'static str,
}

impl ImageName {
    /// Parses a name with a location. `None` is a text without one: a path, or a
    /// name whose location is not given.
    ///
    /// # Errors
    /// If it has a location, but no name.
    pub fn parse(text: &str) -> Result<Option<Self>, ParseImageNameError> {
        let wrong = |why| ParseImageNameError::new(text, why);
        if let Some(reference) = text.strip_prefix("docker://") {
            check_reference(reference)?;
            let reference = reference.to_owned();
            return Ok(Some(Self::Docker { reference }));
        }
        if let Some(rest) = text.strip_prefix("containerd://") {
            return containerd(rest).map(Some);
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            let (dir, tag) = file_and_name(rest);
            let dir = dir.ok_or_else(|| wrong("use oci:DIR or oci:DIR:TAG"))?;
            return Ok(Some(Self::OciLayout { dir, tag }));
        }
        if let Some(rest) = text.strip_prefix("docker-archive:") {
            let (file, reference) = file_and_name(rest);
            let file =
                file.ok_or_else(|| wrong("use docker-archive:FILE or docker-archive:FILE:REF"))?;
            return Ok(Some(Self::DockerArchive { file, reference }));
        }
        if text.contains("://") {
            return Err(wrong(
                "use docker://REF, containerd://NAMESPACE/REF, oci:DIR[:TAG] or \
                 docker-archive:FILE[:REF]",
            ));
        }
        Ok(None)
    }
}

impl std::fmt::Display for ImageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (file, name) = match self {
            Self::Docker { reference } => return write!(f, "docker://{reference}"),
            Self::Containerd {
                namespace,
                reference,
            } => return write!(f, "containerd://{namespace}/{reference}"),
            Self::OciLayout { dir, tag } => {
                write!(f, "oci:")?;
                (dir, tag)
            }
            Self::DockerArchive { file, reference } => {
                write!(f, "docker-archive:")?;
                (file, reference)
            }
        };
        write!(f, "{}", file.display())?;
        name.iter().try_for_each(|name| write!(f, ":{name}"))
    }
}

impl ParseImageNameError {
    fn new(text: &str, why: &'static str) -> Self {
        let text = text.chars().take(80).collect();
        Self { text, why }
    }
}

/// Checks what goes to an engine as the reference of an image. It must not look like an option of
/// a client program.
///
/// # Errors
/// If it is empty, too long, or has other characters than references have.
pub fn check_reference(text: &str) -> Result<(), ParseImageNameError> {
    let wrong = |why| Err(ParseImageNameError::new(text, why));
    if text.len() > REFERENCE_MAX {
        return wrong("it is too long");
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return wrong("a reference begins with a letter or a digit, as in nginx:1.25");
    }
    if text.contains(|c: char| !c.is_ascii_alphanumeric() && !"._-/:@".contains(c)) {
        return wrong("a reference has letters, digits and . _ - / : @");
    }
    Ok(())
}

fn containerd(rest: &str) -> Result<ImageName, ParseImageNameError> {
    let wrong = |why| ParseImageNameError::new(&format!("containerd://{rest}"), why);
    let (namespace, reference) = rest.split_once('/').ok_or_else(|| {
        wrong(
            "use containerd://NAMESPACE/REF, as in containerd://default/docker.io/library/nginx:1",
        )
    })?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if namespace.is_empty() || namespace.len() > NAMESPACE_MAX || !namespace.chars().all(plain) {
        return Err(wrong("a namespace has letters, digits and . _ -"));
    }
    check_reference(reference)?;
    Ok(ImageName::Containerd {
        namespace: namespace.to_owned(),
        reference: reference.to_owned(),
    })
}

/// Splits at the first colon, as skopeo does: a path with a colon in it cannot be named.
fn file_and_name(rest: &str) -> (Option<PathBuf>, Option<String>) {
    let (file, name) = rest
        .split_once(':')
        .map_or((rest, None), |(file, name)| (file, Some(name)));
    let file = Some(file).filter(|file| !file.is_empty());
    let name = name.filter(|name| !name.is_empty());
    (file.map(PathBuf::from), name.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for text in [
            "docker://nginx:1.25",
            "docker://localhost:5000/a/b@sha256:0123",
            "containerd://k8s.io/docker.io/library/nginx:1.25",
            "oci:/srv/images",
            "oci:images:nginx",
            "docker-archive:/tmp/x.tar",
            "docker-archive:x.tar:docker.io/library/nginx:1.25",
        ] {
            let name = ImageName::parse(text).unwrap().unwrap();
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn what_says_no_place_is_left_to_others() {
        for text in [
            "nginx:1.25",
            "/srv/rootfs",
            "disk.raw",
            "",
            "docker:x",
            "-v",
        ] {
            assert_eq!(ImageName::parse(text), Ok(None), "{text}");
        }
    }

    #[test]
    fn halves_of_names_are_refused() {
        for text in [
            "docker://",
            "docker://--privileged",
            "docker://a b",
            "docker://ä",
            "containerd://default",
            "containerd:///nginx",
            "containerd://a b/nginx",
            "containerd://default/-x",
            "oci:",
            "oci::tag",
            "docker-archive:",
            "podman://nginx",
        ] {
            assert!(ImageName::parse(text).is_err(), "{text}");
        }
        let long = format!("docker://{}", "a".repeat(513));
        let error = ImageName::parse(&long).unwrap_err();
        assert!(error.to_string().len() < 200, "{error}");
    }
}
