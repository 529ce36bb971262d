//! The containerd that stores a Docker's images, if Docker itself does not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::Docker;
use super::parse::{DockerInfo, Storage};
use crate::containerd::Containerd;
use crate::error::EngineError;

/// Where Docker listens by default.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
/// What a daemon says of itself has some kilobytes.
const INFO_MAX: u64 = 4 << 20;
/// How long a daemon may take to say it, from the connection to the last byte.
const INFO_PATIENCE: Duration = Duration::from_secs(30);

/// Where a Docker's images are, if they are in a containerd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageStore {
    /// The socket of containerd.
    pub address: PathBuf,
    /// Its namespace.
    pub namespace: String,
    /// Its snapshotter that has the layers.
    pub snapshotter: String,
}

impl ImageStore {
    /// Connects to it.
    ///
    /// # Errors
    /// If no process responds there.
    pub fn connect(&self) -> Result<Containerd, EngineError> {
        Containerd::connect(&self.address, &self.namespace, &self.snapshotter)
    }
}

impl Docker {
    /// Returns the containerd that has the images; `None` if Docker stores them in its own directories.
    ///
    /// # Errors
    /// If Docker does not respond, or does not report which containerd it is.
    pub fn image_store(&self) -> Result<Option<ImageStore>, EngineError> {
        self.store_of(&self.info()?)
    }

    /// Returns the containerd that has the images of a daemon.
    ///
    /// # Errors
    /// If it does not report which that is.
    pub fn store_of(&self, info: &DockerInfo) -> Result<Option<ImageStore>, EngineError> {
        let Storage::Containerd { snapshotter } = &info.storage else {
            return Ok(None);
        };
        let store = |(address, namespace)| ImageStore {
            address,
            namespace,
            snapshotter: snapshotter.clone(),
        };
        if let Some(found) = info.containerd.clone() {
            return Ok(Some(store(found)));
        }
        // A client of before 25 drops what it does not know.
        let doing = "asking Docker for its containerd";
        let socket = self.socket();
        let found = socket.map(|socket| info_at(doing, &socket, INFO_PATIENCE));
        match found.transpose()?.and_then(|info| info.containerd) {
            Some(found) => Ok(Some(store(found))),
            None => Err(EngineError::Failed {
                doing: doing.to_owned(),
                said: "it does not say where that listens; name its socket (`containerd`)"
                    .to_owned(),
            }),
        }
    }

    /// Returns the name of an image in containerd.
    ///
    /// # Errors
    /// If Docker or its containerd has no such image, or does not respond.
    pub fn name_in(&self, store: &ImageStore, reference: &str) -> Result<String, EngineError> {
        let id = self.image_id(reference)?;
        let mut names = store.connect()?.names()?;
        names.retain(|named| named.target == id);
        // An image may have several names; the one that was asked for is the best.
        let asked = names.iter().position(|named| {
            let rest = named.reference.strip_suffix(reference);
            let rest = rest.or_else(|| {
                let named = named.reference.strip_suffix(":latest")?;
                named.strip_suffix(reference)
            });
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        });
        let found = names.into_iter().nth(asked.unwrap_or(0));
        found
            .map(|named| named.reference)
            .ok_or_else(|| super::no_image(reference))
    }

    fn socket(&self) -> Option<PathBuf> {
        match &self.host {
            None => Some(PathBuf::from(DEFAULT_SOCKET)),
            Some(host) => host.strip_prefix("unix://").map(PathBuf::from),
        }
    }
}

/// Asks a daemon about itself at its socket, in the newest words that it has. All of it takes `patience` at most: a
/// daemon that sends a byte now and then is not waited for without end.
fn info_at(doing: &str, socket: &Path, patience: Duration) -> Result<DockerInfo, EngineError> {
    let at = || format!("{doing} at {}", socket.display());
    let failed = |error: std::io::Error| EngineError::Failed {
        doing: at(),
        said: error.to_string(),
    };
    let ask = async {
        let mut stream = UnixStream::connect(socket).await?;
        // The old version of HTTP: the response is one piece, and ends with the connection.
        stream
            .write_all(b"GET /info HTTP/1.0\r\nHost: docker\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        stream.take(INFO_MAX).read_to_end(&mut answer).await?;
        Ok(answer)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let asked = runtime.block_on(async { tokio::time::timeout(patience, ask).await });
    let answer = asked
        .map_err(|_| EngineError::TimedOut {
            doing: at(),
            after: patience,
        })?
        .map_err(failed)?;
    DockerInfo::parse(doing, body(doing, &answer)?)
}

/// Returns the body of a response that succeeded.
fn body<'a>(doing: &str, answer: &'a [u8]) -> Result<&'a [u8], EngineError> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let head = &answer[..end.unwrap_or(0)];
    let status = head.split(|byte| *byte == b' ').nth(1);
    match (end, status) {
        (Some(end), Some(b"200")) => Ok(&answer[end + 4..]),
        _ => Err(EngineError::Answer {
            doing: doing.to_owned(),
            why: String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_answers_without_end_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // It sends a byte now and then, for as long as somebody reads: no single read takes long.
        let daemon = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            while std::io::Write::write_all(&mut client, b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tell.send(info_at("asking", &path, Duration::from_millis(50)).map(drop))
        });
        let asked = told.recv_timeout(Duration::from_secs(30));
        let asked = asked.expect("it waits without end");
        assert!(
            matches!(asked, Err(EngineError::TimedOut { .. })),
            "{asked:?}"
        );
        daemon.join().unwrap();
    }

    #[test]
    fn only_the_body_of_a_success_is_read() {
        let read = |text: &'static str| body("asking", text.as_bytes());
        assert_eq!(read("HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}").unwrap(), b"{}");
        for bad in [
            "HTTP/1.0 404 Not Found\r\n\r\n{}",
            "HTTP/1.0 200 OK\r\n",
            "",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
