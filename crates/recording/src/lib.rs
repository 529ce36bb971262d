//! Recording a boot, of a command on a directory tree or a disk image or of a virtual machine ([`tree_recording`],
//! [`machine`]), or of a container image ([`image_recording`]): the workload that is started ([`workload`], [`sandbox`], the engines), when it counts as
//! ready ([`until`]), where what it read is kept ([`keep`](mod@keep)), and what is undone behind a recorder that was
//! killed ([`undo`]). What a recording brings on this machine is measured in [`mod@bench`].
//!
//! A recorder executes its own program again: as `__enter`, `__init` and `__exec` (see [`sandbox`]), as `__guard`
//! ([`undo::guard`]) and as `unpack-image` ([`unpack`](mod@unpack)). A program that records must have these commands.
//!
//! ```
//! use std::net::TcpListener;
//!
//! use recording::until::{Until, port_answers};
//!
//! // A workload is ready when its port accepts connections.
//! let server = TcpListener::bind("127.0.0.1:0")?;
//! let port = server.local_addr()?.port();
//! let until: Until = format!("tcp:{port}").parse()?;
//! assert!(matches!(until, Until::Tcp(ready) if ready == port && port_answers(ready)));
//! // Or when it prints a line, or has read nothing for two seconds.
//! assert_eq!("quiet:2".parse::<Until>()?.to_string(), "2 s without a read");
//! assert!("line:[".parse::<Until>().is_err());
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod bench;
mod confined_program;
mod container_engine;
mod containerd_engine;
pub mod disk_names;
mod docker_engine;
pub mod image_recording;
pub mod keep;
pub mod layer_recorders;
pub mod line_watch;
pub mod locate;
pub mod machine;
pub mod net_probe;
pub mod not_ready;
mod own_check;
mod ready;
mod recorder_mount;
pub mod run;
pub mod sandbox;
mod scratch;
pub mod tree_recording;
pub mod undo;
pub mod unpack;
pub mod unpacked;
pub mod until;
mod words;
pub mod workload;
