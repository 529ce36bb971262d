//! What programs are linked with, read from their files.
//!
//! - [`elf`]: libraries of programs and of other libraries;
//! - [`python`]: modules that a compiled module of Python imports;
//! - `find`: the files of a source that these are, each with those it is linked with.
//!
//! The content of files is untrusted: parsers read bounded lengths, do not recurse, and end with an error.

pub mod elf;
mod find;
mod libraries;
mod modules;
mod paths;
pub mod python;

pub use find::find;
