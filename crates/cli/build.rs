//! Links the programs of debug builds to a fixed address.
//!
//! Tests start them some ten thousand times. One that may lie anywhere has a quarter of a million pointers to write when it starts,
//! which is half of what a start costs. Release builds are optimized, have far fewer of these, and lie anywhere.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if is("OPT_LEVEL", "0")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
    {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
