//! Opening what may have been put into a directory by somebody else.

use std::fs::File;
use std::io;
use std::path::Path;

use rawio::regular::{self, Links};

/// Opens a regular file of a tier to read. Other users may write to its directory, so links are not followed.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular::open(path, Links::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::symlink;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use crate::medium::{DirMedium, Medium as _};

    /// A tier may be in a place where everybody makes files, and the names of copies are no secret.
    #[test]
    fn a_pipe_of_another_user_at_the_name_of_a_copy_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("copy");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let (tell, told) = channel();
        let medium = DirMedium::open(dir.path()).unwrap();
        std::thread::spawn(move || {
            let opened = open_regular(&pipe).map(drop);
            let read = medium.read_at("copy", 0, &mut [0]).map(drop);
            let _late = tell.send([opened, read, medium.sync("copy")]);
        });
        let refused = told.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "x").unwrap();
        symlink(&file, &link).unwrap();
        assert!(open_regular(&file).is_ok());
        assert!(open_regular(&link).is_err());
    }
}
