//! What reading an image leaves in the page cache, and how it is dropped.

use rawio::resident::Resident;

use crate::Image;
use crate::backing::Backing;

/// What the page cache had of an image's data at a moment.
///
/// Memory (tmpfs) and media that are mapped directly (DAX) are left alone: there the pages are the
/// only copy. Where the kernel does not tell what it has, nothing is ever dropped.
#[derive(Debug)]
pub struct Residue(Vec<(Backing, Resident)>);

impl Image {
    /// Notes what the page cache has of the data now.
    #[must_use]
    pub fn residue(&self) -> Residue {
        let files = self.data.files().iter();
        Residue(
            files
                .filter_map(|file| Some((file.clone(), file.resident()?)))
                .collect(),
        )
    }
}

impl Residue {
    /// Has the kernel drop what has come into the page cache since.
    pub fn drop_since(&self) {
        for (file, before) in &self.0 {
            file.drop_since(before);
        }
    }
}
