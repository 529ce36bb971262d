//! The layers of container images, each a source with a boot image and a mount of its own.

pub(crate) mod bind;
pub(crate) mod keep;
#[cfg(test)]
mod tests;
