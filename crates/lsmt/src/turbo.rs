//! turboOCI: block images whose data is in the layers of a container image.

mod deflate;
mod gzip_index;
mod gzip_tar;
mod make_index;

pub use gzip_index::{AccessPoint, GzipIndex};
pub use gzip_tar::GzipTar;
pub use make_index::make_gzip_index;
