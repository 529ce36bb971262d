//! Checking a file system that was not unmounted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ImageError;
use crate::error::file;

/// Where an ext4 says how it was left.
const STATE_AT: u64 = 1024 + 0x3a;
/// It was unmounted. One with a journal says so always: the kernel reads the journal when it is mounted.
const VALID: u16 = 1;
/// The kernel found errors.
const ERRORS: u16 = 2;

/// What repairs it.
const PROGRAM: &str = "e2fsck";
/// Of its exit status: it repaired something.
const REPAIRED: i32 = 1;

/// Checks the file system on a device, if it was not unmounted or has errors.
pub(super) fn check_if_needed(device: &File, path: &Path) -> Result<(), ImageError> {
    match is_checked_first(device).map_err(file("reading", path))? {
        true => check(PROGRAM, path),
        false => Ok(()),
    }
}

fn is_checked_first(device: &File) -> io::Result<bool> {
    let mut state = [0; 2];
    device.read_exact_at(&mut state, STATE_AT)?;
    let state = u16::from_le_bytes(state);
    Ok(state & VALID == 0 || state & ERRORS != 0)
}

fn check(program: &str, path: &Path) -> Result<(), ImageError> {
    let mut command = Command::new(program);
    let command = command.arg("-p").arg(path).stdin(Stdio::null());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ImageError::Unchecked {
                path: path.to_owned(),
                why: format!("{program} is not there: install e2fsprogs"),
            });
        }
        Err(error) => return Err(file("running e2fsck on", path)(error)),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(()),
        Some(REPAIRED) => {
            log::warn!("{}: repaired: {}", path.display(), said.trim());
            Ok(())
        }
        _ => Err(ImageError::Unchecked {
            path: path.to_owned(),
            why: format!(
                "e2fsck -p does not repair it: {}",
                said.lines().last().unwrap_or_default()
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_unmounted_is_checked() {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(4096).unwrap();
        for (state, is_checked) in [(0_u16, true), (1, false), (3, true), (2, true)] {
            disk.write_all_at(&state.to_le_bytes(), STATE_AT).unwrap();
            assert_eq!(is_checked_first(&disk).unwrap(), is_checked, "{state}");
        }
        let why = check("/nonexistent/e2fsck", Path::new("/dev/loop0"));
        let why = why.unwrap_err().to_string();
        assert!(why.contains("install e2fsprogs"), "{why}");
    }
}
