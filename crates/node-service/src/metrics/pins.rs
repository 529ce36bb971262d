//! The metrics of the process that locks pages of the host's own files.

use super::{Kind, Metric, Read, Sample, Value};
use pinning::talk::PinStatus;

use Kind::{Counter, Gauge};

const fn of_pins(
    (name, kind, unit): (&'static str, Kind, &'static str),
    help: &'static str,
    question: &'static str,
    read: fn(&PinStatus) -> u64,
) -> Metric {
    Metric {
        name,
        kind,
        unit,
        labels: &[],
        help,
        question,
        read: Read::Pins(read),
    }
}

/// Their part of the table.
pub(super) static METRICS: &[Metric] = &[
    of_pins(
        ("yolofs_pin_locked_bytes", Gauge, "bytes"),
        "Bytes of the host's own files that `yolofs pin serve` has locked; no process, no value.",
        "Are the engines' programs in memory?",
        |pins| pins.locked_bytes,
    ),
    of_pins(
        ("yolofs_pin_wanted_bytes", Gauge, "bytes"),
        "Bytes of the applied profiles that their files have now.",
        "How much should be locked?",
        |pins| pins.wanted_bytes,
    ),
    of_pins(
        ("yolofs_pin_refused_bytes", Gauge, "bytes"),
        "Of these, bytes for which the budget, the memory cgroup or RLIMIT_MEMLOCK has no room.",
        "Is a limit too low? `yolofs pin status` says which.",
        |pins| pins.left_out_bytes,
    ),
    of_pins(
        ("yolofs_pin_followed_files_total", Counter, "files"),
        "Files that were put in place of others, and locked instead.",
        "Was a package upgraded, so that profiles are to be recorded again?",
        |pins| pins.followed_files,
    ),
    of_pins(
        ("yolofs_pin_errors_total", Counter, "errors"),
        "Profiles and files that could not be read or locked, counted at each look.",
        "Is a profile damaged?",
        |pins| pins.errors,
    ),
];

/// The value of the process, if there is one.
pub(super) fn samples(pins: Option<&PinStatus>, read: fn(&PinStatus) -> u64) -> Vec<Sample> {
    let sample = |pins| Sample {
        labels: Vec::new(),
        value: Value::Count(read(pins)),
    };
    pins.map(sample).into_iter().collect()
}
