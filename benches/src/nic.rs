//! nicfetch beside what it replaces: blocks over loopback, images over a slow line, starts of
//! containers whose image is elsewhere, and a thousand connections.

pub mod blocks;
pub mod certificates;
pub mod connections;
pub mod cpu_share;
pub mod crowd;
pub mod http;
pub mod lazy;
pub mod network;
pub mod pulls;
pub mod registry;
pub mod service;
pub mod site;
