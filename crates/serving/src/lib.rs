//! What the servers of this workspace share: streams, limits and load shedding.
//!
//! - [`transport`]: where a service listens ([`transport::Address`]), the streams that it accepts (TCP,
//!   unix sockets, TLS, vsock), and how one is closed so that its peer gets the last answer.
//! - [`seats`]: how many connections each client may have. [`pace`]: how many bytes in a second.
//! - [`load`]: how hard the machine is pressed, and what a server leaves undone for that.
//! - [`metrics`]: what a server tells Prometheus.
//!
//! ```
//! use std::sync::Arc;
//!
//! use serving::seats::Seats;
//! use serving::transport::Address;
//!
//! let address: Address = "unix:/run/nicfetch/blocks.sock".parse()?;
//! assert!(matches!(address, Address::Unix(_)));
//!
//! // One client may have two connections.
//! let seats = Arc::new(Seats::default());
//! let first = seats.take("10.0.0.7", 2);
//! let second = seats.take("10.0.0.7", 2);
//! assert!(second.is_some() && seats.take("10.0.0.7", 2).is_none());
//! drop(first);
//! assert!(seats.take("10.0.0.7", 2).is_some());
//! # Ok::<(), serving::transport::ParseAddressError>(())
//! ```

#![forbid(unsafe_code)]

pub mod load;
pub mod metrics;
pub mod pace;
pub mod seats;
pub mod transport;
