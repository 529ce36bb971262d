//! Python packages for sandboxes: resolved once, installed in a sandbox, read-only from then on.
//!
//! `pip` does the work, inside sandboxes. The first one resolves and downloads, and runs no code of any
//! package, since it takes wheels only. Each wheel is then unpacked in a sandbox of its own that has
//! only this wheel and no network. The result is checked, its owner changed to root, and renamed to its
//! place. So a hostile package can damage only itself. A source distribution runs its code to become
//! a wheel; it is built alone, and only if the user names it.
//!
//! ```no_run
//! use sandbox::{Config, Sandboxes};
//! use sandbox_packages::{Installer, Source, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sandboxes = Sandboxes::open(Config::new("/run/sandboxes", "sandboxes"))?;
//! let store = Store::open("/var/lib/sandbox/packages")?;
//! let installer = Installer::new("debian", "/usr/bin/python3");
//! let source = Source::Index("https://pypi.org/simple".into());
//! let packages = store.add(&sandboxes, &installer, &["django>=4".into()], &source)?;
//! println!("{packages:?} in {}", store.dir_of("debian").display());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod claims;
mod error;
mod names;
mod pip;
mod records;
mod store;
mod tree;

pub use claims::Claim;
pub use error::{PackageError, Result};
pub use pip::{Installer, Source};
pub use records::{Installed, Resolution};
pub use store::Store;
