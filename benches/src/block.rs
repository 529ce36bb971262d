//! Block images: how fast they are looked up, read, started from far away, and made.

pub mod convert;
pub mod fio;
pub mod index;
pub mod loading;
pub mod reads;
pub mod served;
pub mod starts;
pub mod subject;
pub mod trace;
