//! Starts of programs whose root is far away: behind a line with a round trip and a rate.

mod cpu;
pub mod crowd;
pub mod faults;
pub mod frames;
pub mod lab;
pub mod plot;
pub mod programs;
pub mod sample;
pub mod table;
