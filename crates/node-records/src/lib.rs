//! The node's records of its mounts: for the node after a restart, and for other programs, which must not
//! unmount the node's mounts ([`left`]).
//!
//! ```
//! use node_api::spec::MountSpec;
//! use node_records::instance::Records;
//!
//! let spec = r#"{"source": "/srv/web", "mountpoint": "/mnt/web", "store": "/var/lib/yolofs"}"#;
//! let spec: MountSpec = serde_json::from_str(spec)?;
//! let (run, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
//! Records::open(run.path(), state.path())?.keep_desired("web", &spec)?;
//! // After a reboot, the run directory is empty, and the mount is made again.
//! let run = tempfile::tempdir()?;
//! let records = Records::open(run.path(), state.path())?;
//! assert!(records.instances()?.records.is_empty());
//! let desired = records.desired_mounts()?.records;
//! assert_eq!(desired[0].1.spec, spec);
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod company;
pub mod dead;
pub mod hello;
pub mod hex;
pub mod instance;
pub mod left;
