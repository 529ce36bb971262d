//! What reading an image leaves in the page cache, and how it is dropped.

use rawio::resident::Resident;

use crate::Image;
use crate::backing::Backing;

/// The pages of an image's data that were in the page cache at a moment.
///
/// Memory (tmpfs) and media that are mapped directly (DAX) are ignored: there the pages are the
/// only copy. Where the kernel does not report its pages, nothing is ever dropped.
#[derive(Debug)]
pub struct Residue(Vec<(Backing, Resident)>);

impl Image {
    /// Records which pages of the data are in the page cache now.
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
