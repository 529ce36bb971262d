//! The links that are the names of images.
//!
//! ext4 keeps a link of up to 59 bytes in its inode. A longer one has a block of the disk of its own, which the kernel never
//! reads ahead: the paths of 900 images, with 79 bytes each, were 900 requests. So a link has the id in base64, and leads to
//! no file. Earlier releases wrote the path, which is understood as before.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use blocks::ContentId;

use super::{IMAGES, id_of};
use crate::ImageId;

/// Returns what a link says that is a name of this image.
pub(super) fn target(id: &ImageId) -> PathBuf {
    Path::new("..").join(IMAGES).join(BASE64.encode(id.0.0))
}

/// Reads a link: the id that it names, if it can be one; `None` if it is no link that a store makes.
pub(super) fn read(path: &Path) -> io::Result<Option<Option<ImageId>>> {
    let target = fs::read_link(path)?;
    let into = Path::new("..").join(IMAGES);
    let file = match target.parent() {
        Some(parent) if parent == into => target.file_name(),
        _ => return Ok(None),
    };
    Ok(Some(file.and_then(named_by)))
}

fn named_by(file: &OsStr) -> Option<ImageId> {
    let encoded = || {
        let bytes = BASE64.decode(file.as_bytes()).ok()?;
        Some(ContentId(bytes.try_into().ok()?))
    };
    id_of(file, ".bimg").or_else(encoded).map(ImageId)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_fits_into_an_inode_and_those_of_earlier_releases_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let id = ImageId(ContentId::of(b"an image"));
        let said = |target: &Path| {
            let path = dir.path().join("name");
            symlink(target, &path).unwrap();
            let said = read(&path).unwrap();
            fs::remove_file(path).unwrap();
            said
        };
        assert!(target(&id).as_os_str().len() < 60);
        assert_eq!(said(&target(&id)), Some(Some(id)));
        let path = format!("../images/{id}.bimg");
        assert_eq!(said(path.as_ref()), Some(Some(id)));
        assert_eq!(said("../images/none.bimg".as_ref()), Some(None));
        assert_eq!(said("/etc/hosts".as_ref()), None);
    }
}
