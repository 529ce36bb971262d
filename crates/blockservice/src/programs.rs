//! What programs are linked with, and which files they name, read from their files.
//!
//! - [`elf`]: libraries of programs and of other libraries;
//! - [`python`]: modules that a compiled module of Python imports;
//! - `named`: files whose paths are in programs and in their configuration;
//! - `find`: the files of a source that these are, each with those it is linked with.
//!
//! The content of files is untrusted: parsers read bounded lengths, do not recurse, and end with an error.

pub mod elf;
mod find;
mod libraries;
mod modules;
mod named;
mod paths;
pub mod python;

pub use find::find;
