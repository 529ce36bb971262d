//! turboOCI: block images whose data stays in the layers of a container image.

mod gzip_index;
mod gzip_tar;

pub use gzip_index::{AccessPoint, GzipIndex};
pub use gzip_tar::GzipTar;
