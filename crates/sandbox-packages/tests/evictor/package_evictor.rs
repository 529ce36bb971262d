//! A program that removes all packages of a store, until it is killed. Its arguments are the store, and a directory and
//! a control group for sandboxes, of which it makes none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::io::Write as _;

use sandbox::{Config, Sandboxes};
use sandbox_packages::Store;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let store = Store::open(&arguments[1]).unwrap();
    let sandboxes = Sandboxes::open(Config::new(&arguments[2], &arguments[3])).unwrap();
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).unwrap();
    store.evict(&sandboxes, 0, &BTreeSet::new()).unwrap();
}
