//! Devices of the node: block images that clients reach at a socket, as a file, or as a block device of the machine.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::image::{ImageSpec, StartStatus};
use crate::mount_state::MountState;

/// The longest name: it is a part of the names of files.
const NAME_MAX_BYTES: usize = 64;

/// A device, as asked for. Two requests with the same name are the same device if they are equal; unknown
/// fields are refused rather than ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Its name: up to 64 letters, digits, `.`, `_` and `-`, the first one a letter or a digit.
    pub name: String,
    /// A raw disk, or a block image: its configuration, or the directory that has it. Absolute.
    pub image: PathBuf,
    /// How clients reach it.
    pub kind: DeviceKind,
    /// Where: a socket; for [`DeviceKind::File`] the directory that the file appears in, and for [`DeviceKind::Ublk`] the
    /// symbolic link to the device. Absolute.
    pub at: PathBuf,
    /// Where the EROFS or ext4 in the file is mounted, too; an ext4 to be written to, if the file is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erofs: Option<PathBuf>,
    /// Whether a raw disk may be written to; an image with a writable layer always may. A file is served only if this
    /// says what it is.
    #[serde(default)]
    pub writable: bool,
    /// Whether set-user-id bits and device files count in what is mounted of a file that is written to: the root of a
    /// container. Left out unless requested: earlier releases refuse it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suid_dev: bool,
    /// Whether a file that is written to has a loop device, too, for somebody who mounts the ext4 in it by himself. Left
    /// out unless requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loop_device: bool,
    /// Where plans of starts are kept; absolute.
    pub store: PathBuf,
    /// How the image is opened.
    #[serde(default)]
    pub options: ImageSpec,
}

/// How clients reach a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// NBD on a unix socket.
    Nbd,
    /// vhost-user-blk on a unix socket.
    VhostUser,
    /// A block device of the machine, with a symbolic link to it.
    Ublk,
    /// A file in a mount.
    File,
}

impl DeviceKind {
    /// Returns the word, as it is shown and as it is in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::VhostUser => "vhost_user",
            Self::Ublk => "ublk",
            Self::File => "file",
        }
    }
}

impl DeviceSpec {
    /// Checks what it says, without looking at files.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn check(&self) -> anyhow::Result<()> {
        check_name(&self.name)?;
        self.options.check(&self.image)?;
        let erofs = self.erofs.as_deref().map(|erofs| ("mount point", erofs));
        let paths = [("address", &*self.at), ("store", &*self.store)];
        for (what, path) in paths.into_iter().chain(erofs) {
            let path_shown = path.display();
            ensure!(
                path.is_absolute(),
                "the {what} {path_shown} is not absolute"
            );
        }
        let is_file = self.kind == DeviceKind::File;
        ensure!(
            is_file || self.erofs.is_none(),
            "an EROFS is mounted of a file: choose the kind file"
        );
        ensure!(
            is_file || !self.options.record,
            "the start of a file can be recorded: choose the kind file, or leave `record` out"
        );
        ensure!(
            !self.suid_dev || (self.writable && self.erofs.is_some()),
            "suid_dev is for a file system that is mounted to be written to: say writable, and where it is mounted"
        );
        ensure!(
            !self.loop_device || (is_file && self.writable && self.erofs.is_none()),
            "a loop device is made of a file that is written to, and that is not mounted: it would be mounted twice"
        );
        ensure!(
            !(self.writable && self.options.record),
            "the start of what is written to is not recorded: leave `record` out"
        );
        Ok(())
    }
}

/// Checks the name of a device: it becomes a part of paths, labels and addresses.
///
/// # Errors
/// If it has other characters than a name may have, or too many.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let mut bytes = name.as_bytes().iter();
    let valid = bytes.next().is_some_and(is_plain)
        && bytes.all(|byte| is_plain(byte) || b"._-".contains(byte))
        && name.len() <= NAME_MAX_BYTES;
    ensure!(
        valid,
        "{name:?} is no name of a device: it takes up to {NAME_MAX_BYTES} letters, digits, `.`, `_` and `-`, \
         and begins with a letter or a digit"
    );
    Ok(())
}

/// One device of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceView {
    /// Its name.
    pub name: String,
    /// The image.
    pub image: PathBuf,
    /// How clients reach it.
    pub kind: DeviceKind,
    /// How clients name it.
    pub address: String,
    /// Where the EROFS in it is mounted, if it is.
    #[serde(default)]
    pub erofs: Option<PathBuf>,
    /// The loop device, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_device: Option<PathBuf>,
    /// As of a mount: `starting`, `serving`, `restarting` or `failed`.
    pub state: MountState,
    /// The process that serves it.
    pub pid: Option<u32>,
    /// How often its worker was replaced, upgrades not counted.
    pub restarts: u64,
    /// Milliseconds from the death of the last worker until its successor served.
    pub last_gap_ms: Option<u64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// What its worker tells of it.
    pub served: Option<DeviceStatus>,
}

/// A device, as the process that serves it tells of it. Counters begin at 0 again with that process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Bytes of the device.
    pub size: u64,
    /// Whether clients may write.
    pub writable: bool,
    /// Clients that are connected.
    pub clients: u64,
    /// Requests that were answered, the failed ones included.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written, zeroed or trimmed.
    pub bytes_written: u64,
    /// Requests to registries, for all devices that share the cache.
    #[serde(default)]
    pub fetches: u64,
    /// Bytes that were fetched for all devices that share the cache.
    #[serde(default)]
    pub fetched_bytes: u64,
    /// Bytes in the cache.
    #[serde(default)]
    pub cached_bytes: u64,
    /// How its start goes, if it is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartStatus>,
    /// Wanted chunks of the cache that were on their way for somebody else already.
    #[serde(default)]
    pub joined: u64,
    /// Chunks that were requested a second time because they were late.
    #[serde(default)]
    pub hedged: u64,
    /// Chunks that were requested once more because a reader waited for them, and they were far behind in a long request.
    #[serde(default)]
    pub overtaken: u64,
    /// Chunks that were requested again after a failure.
    #[serde(default)]
    pub retried: u64,
    /// How often a registry or a mirror fell silent.
    #[serde(default)]
    pub stalls: u64,
    /// How often fetching in the background was paused, because the cache could not be written.
    #[serde(default)]
    pub pauses: u64,
}

/// A device that was asked for.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The device, as it is now.
    pub device: DeviceView,
    /// Whether it was not there before.
    pub new: bool,
}

impl DeviceSpec {
    /// Returns how clients name it.
    #[must_use]
    pub fn address(&self) -> String {
        let at = self.at.display();
        match self.kind {
            DeviceKind::Nbd => format!("nbd+unix:///disk?socket={at}"),
            DeviceKind::VhostUser | DeviceKind::Ublk => at.to_string(),
            DeviceKind::File => self.file().display().to_string(),
        }
    }

    /// Returns the path of the file of a [`DeviceKind::File`].
    #[must_use]
    pub fn file(&self) -> PathBuf {
        Path::new(&self.at).join("disk")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(more: &str) -> anyhow::Result<()> {
        let text = format!(
            r#"{{"name": "web", "image": "/images/web", "at": "/run/web.sock", "store": "/store"{more}}}"#
        );
        serde_json::from_str::<DeviceSpec>(&text)?.check()
    }

    #[test]
    fn hostile_names_are_refused() {
        for name in ["a", "web-1", "0.a_b", &"x".repeat(64)] {
            check_name(name).unwrap();
        }
        let long = "x".repeat(65);
        let hostile = [
            "", ".", "..", "../x", "a/b", "-x", "a b", "a\n", "a\0b", "\u{e4}", "a\"b", "a{b",
            &long,
        ];
        for name in hostile {
            check_name(name).unwrap_err();
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        spec(r#", "kind": "nbd""#).unwrap();
        spec(r#", "kind": "file", "erofs": "/mnt""#).unwrap();
        spec(r#", "kind": "ublk", "writable": true"#).unwrap();
        spec(r#", "kind": "file", "writable": true"#).unwrap();
        spec(r#", "kind": "file", "writable": true, "loop_device": true"#).unwrap();
        spec(r#", "kind": "file", "erofs": "/mnt", "writable": true, "suid_dev": true"#).unwrap();
        for wrong in [
            "",
            r#", "kind": "tcmu""#,
            r#", "kind": "nbd", "erofs": "/mnt""#,
            r#", "kind": "ublk", "erofs": "/mnt""#,
            r#", "kind": "file", "erofs": "mnt""#,
            r#", "kind": "file", "erofs": "/mnt", "suid_dev": true"#,
            r#", "kind": "file", "writable": true, "suid_dev": true"#,
            r#", "kind": "file", "loop_device": true"#,
            r#", "kind": "nbd", "writable": true, "loop_device": true"#,
            r#", "kind": "file", "writable": true, "loop_device": true, "erofs": "/mnt""#,
            r#", "kind": "file", "writable": true, "options": {"record": true}"#,
            r#", "kind": "nbd", "options": {"cache": "cache"}"#,
            r#", "kind": "nbd", "color": 1"#,
            r#", "kind": "nbd", "options": {"record": true}"#,
        ] {
            spec(wrong).unwrap_err();
        }
    }
}
