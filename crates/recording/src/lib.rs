//! Recording a boot: the workload that is started ([`workload`]), when it counts as ready ([`until`]), and what
//! is undone behind a recorder that was killed ([`undo`]).

#![forbid(unsafe_code)]

pub mod line_watch;
pub mod net_probe;
pub mod not_ready;
pub mod undo;
pub mod until;
pub mod workload;
