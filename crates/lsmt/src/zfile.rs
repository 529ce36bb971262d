//! ZFile: a file in compressed blocks that can be read at any place.

mod codec;
mod header;
mod press;
mod reader;
mod recent;
mod scratch;
mod writer;

pub use codec::Codec;
pub use reader::ZFile;
pub use writer::{Verify, ZFileOptions, ZFileStyle, ZFileWriter};
