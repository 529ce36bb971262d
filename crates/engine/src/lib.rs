//! Docker and containerd, asked for their images and told to run them.

#![forbid(unsafe_code)]
