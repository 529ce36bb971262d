//! What the servers of this workspace share: streams, limits and load shedding.
//!
//! - [`transport`]: where a service listens ([`transport::Address`]), the streams that it accepts (TCP,
//!   unix sockets, TLS, vsock), and how one is closed so that its peer gets the last answer.
//! - [`connections`]: how many connections each client may have. [`places`]: how many, where those that wait for their
//!   client make room for others. [`rate`]: how many bytes in a second.
//! - [`load`]: the load of the machine, and the work that a server does not do under load.
//! - [`api`]: the socket, the thread and the connections of an HTTP API.
//! - [`metrics`]: the metrics of a server for Prometheus.
//!
//! ```
//! use std::sync::Arc;
//!
//! use serving::connections::ConnectionCounts;
//! use serving::transport::Address;
//!
//! let address: Address = "unix:/run/nicfetch/blocks.sock".parse()?;
//! assert!(matches!(address, Address::Unix(_)));
//!
//! // One client may have two connections.
//! let counts = Arc::new(ConnectionCounts::default());
//! let first = counts.take("10.0.0.7", 2);
//! let second = counts.take("10.0.0.7", 2);
//! assert!(second.is_some() && counts.take("10.0.0.7", 2).is_none());
//! drop(first);
//! assert!(counts.take("10.0.0.7", 2).is_some());
//! # Ok::<(), serving::transport::ParseAddressError>(())
//! ```

#![forbid(unsafe_code)]

pub mod api;
pub mod connections;
pub mod load;
pub mod metrics;
pub mod places;
pub mod rate;
pub mod transport;
