//! One start from far away, and where it was measured.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::frames::Seen;

/// From where the programs are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The page cache of this machine: no line at all
    Native,
    /// The service, which has a boot image
    BootImage,
    /// The service, which has none
    OnDemand,
    /// The service, which has none, while a boot image is recorded for it
    Recording,
    /// The service: 2 000 random files are read one after the other, instead of the programs
    Files,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native warm",
            Self::BootImage => "boot image",
            Self::OnDemand => "on demand",
            Self::Recording => "first recording",
            Self::Files => "2 000 files",
        })
    }
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Point {
    /// Round trip in milliseconds.
    pub rtt_ms: u64,
    /// Millions of bits a second.
    pub mbit: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms, {} Mbit/s", self.rtt_ms, self.mbit)
    }
}

/// One start.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// From where.
    pub way: Way,
    /// Over which line.
    pub point: Point,
    /// Milliseconds of `yolofs mount`.
    pub mount_ms: f64,
    /// Milliseconds from the first program's start to the last one's end.
    pub after_ms: f64,
    /// Milliseconds of each program.
    pub each_ms: Vec<f64>,
    /// What went over the line until then.
    pub wire: Wire,
    /// Milliseconds of processor time that the daemon of the mount had taken then.
    pub daemon_cpu_ms: f64,
    /// What `yolofs status` said then.
    pub status: serde_json::Value,
}

/// What went over the line until the last program had ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Wire {
    /// Bytes to the machine.
    pub down: u64,
    /// Bytes to the service.
    pub up: u64,
    /// Connections.
    pub connections: u64,
    /// Requests after the handshakes.
    pub requests: u64,
    /// Frames in both directions, by kind.
    pub frames: BTreeMap<&'static str, u64>,
    /// Chunks that came.
    pub chunks: u64,
    /// Their bytes as they were sent.
    pub chunk_bytes: u64,
    /// Of these chunks, ones that had come before.
    pub twice: u64,
    /// Their bytes.
    pub twice_bytes: u64,
}

impl Wire {
    /// Puts together what was counted on a line and what its frames say.
    #[must_use]
    pub fn new(counts: link_emulator::Counts, seen: Seen) -> Self {
        Self {
            down: counts.to_client,
            up: counts.to_server,
            connections: counts.connections,
            requests: seen.requests,
            frames: seen.frames,
            chunks: seen.chunks,
            chunk_bytes: seen.chunk_bytes,
            twice: seen.twice,
            twice_bytes: seen.twice_bytes,
        }
    }
}

impl Sample {
    /// Returns the milliseconds from the call of `yolofs mount` to the end of the last program, without
    /// what the container's own mounts took.
    #[must_use]
    pub fn from_call_ms(&self) -> f64 {
        self.mount_ms + self.after_ms
    }
}

/// What no start can beat: the programs' own time, and the transfer of the chunks that they touch.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Floor {
    /// Milliseconds of the programs from the page cache.
    pub own_ms: f64,
    /// Bytes of the chunks that they touch, compressed as they are stored.
    pub touched_bytes: u64,
    /// How many these are.
    pub touched_chunks: u64,
}

impl Floor {
    /// Returns the larger of both on a line, in milliseconds.
    #[must_use]
    pub fn ms(&self, point: Point) -> f64 {
        let bits = crate::report::count(self.touched_bytes) * 8.0;
        let transfer = bits / (crate::report::count(point.mbit.max(1)) * 1e3);
        transfer.max(self.own_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_larger_of_programs_and_transfer() {
        let floor = Floor {
            own_ms: 250.0,
            touched_bytes: 10_000_000,
            touched_chunks: 200,
        };
        let point = |mbit| Point { rtt_ms: 20, mbit };
        assert_eq!(floor.ms(point(100)), 800.0);
        assert_eq!(floor.ms(point(1000)), 250.0);
    }
}
