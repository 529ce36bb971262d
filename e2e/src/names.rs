//! Names in the source that all runs share, and of its boot image.

/// The name of the boot image.
pub(crate) const IMAGE: &str = "soak";

/// A program that hashes what it is given, dynamically linked, which every system has.
pub(crate) const RUNNABLE: &str = "/usr/bin/sha256sum";

/// The directory of programs in the source.
pub(crate) const PROGRAM: &str = "bin/hash";

/// The directory of a virtual machine in the source, if one is to read.
pub(crate) const MACHINE: &str = "machine";
