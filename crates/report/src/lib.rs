//! One self-contained HTML page about a boot, from what was recorded and measured.

#![forbid(unsafe_code)]
