//! What the node has written down of its mounts and devices: for itself, when it comes back, and for others, who must not
//! take away what is the node's ([`left`]).
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
pub mod devices;
pub mod hello;
pub mod hex;
pub mod instance;
pub mod left;
