//! From a trace to bytes.

use std::collections::HashMap;

use blocks::{Event, Timestamp, Touch, Warmth};

use super::{
    CHECKSUM_BYTES, EVENT_BYTES, FILE_BYTES, FILE_LIMIT, HEADER_BYTES, INFO_BYTES, KIND_LIST,
    KIND_LOOKUP, KIND_READ, KIND_READ_LINK, LENGTH_BYTES, MAGIC, VERSION, WARMTH_COLD,
    WARMTH_UNKNOWN, WARMTH_WARM,
};
use crate::trace::{Trace, TraceError, TraceEvent, TracedFile, file_of};

pub(super) fn write(trace: &Trace) -> Result<Vec<u8>, TraceError> {
    trace.check()?;
    let strings = Strings::of(trace);
    let string_bytes: usize = strings.all.iter().map(|string| string.len()).sum();
    let len = HEADER_BYTES
        + INFO_BYTES
        + strings.all.len() * LENGTH_BYTES
        + trace.files.len() * FILE_BYTES
        + trace.events.len() * EVENT_BYTES
        + string_bytes
        + CHECKSUM_BYTES;
    if len as u64 > FILE_LIMIT {
        return Err(TraceError::TooLarge("events"));
    }
    let mut out = Out(Vec::with_capacity(len));
    out.bytes(&MAGIC);
    out.u32(VERSION);
    for no_feature_and_zero in [0; 3] {
        out.u32(no_feature_and_zero);
    }
    let counts = [
        len,
        strings.all.len(),
        trace.files.len(),
        trace.commands.len(),
        trace.events.len(),
        string_bytes,
        0,
    ];
    for count in counts {
        out.u64(count as u64);
    }
    info(&mut out, trace);
    for string in &strings.all {
        // No string is longer than the file, which is below 4 GiB.
        out.u32(u32::try_from(string.len()).map_err(|_| TraceError::TooLarge("strings"))?);
    }
    for traced in &trace.files {
        file(&mut out, traced);
    }
    for entry in &trace.events {
        event(&mut out, entry, &strings);
    }
    for string in &strings.all {
        out.bytes(string);
    }
    let checksum = blake3::hash(&out.0);
    out.bytes(checksum.as_bytes());
    Ok(out.0)
}

/// Every string of a trace, in the order in which they are stored.
struct Strings<'a> {
    all: Vec<&'a [u8]>,
    names: HashMap<&'a [u8], u64>,
}

impl<'a> Strings<'a> {
    fn of(trace: &'a Trace) -> Self {
        let mut all = vec![trace.info.label.as_slice()];
        all.extend(trace.files.iter().map(|file| file.path.as_slice()));
        all.extend(trace.commands.iter().map(Vec::as_slice));
        let mut names = HashMap::new();
        for entry in &trace.events {
            if let Event::Touch(Touch::Lookup { name, .. }) = &entry.what {
                names.entry(name.as_slice()).or_insert_with(|| {
                    all.push(name);
                    all.len() as u64 - 1
                });
            }
        }
        Self { all, names }
    }
}

struct Out(Vec<u8>);

impl Out {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn time(&mut self, time: Timestamp) {
        self.bytes(&time.secs.to_le_bytes());
        self.u32(time.nanos);
    }
}

fn info(out: &mut Out, trace: &Trace) {
    out.bytes(&trace.info.source.0.0);
    out.time(trace.info.started);
    out.u64(trace.lasted_us);
    out.u64(trace.lost);
    out.u64(0);
}

fn file(out: &mut Out, traced: &TracedFile) {
    out.u32(traced.file.0);
    out.u64(traced.version.size);
    out.time(traced.version.mtime);
    out.time(traced.version.ctime);
    out.u64(traced.version.inode);
    out.u32(0);
}

fn event(out: &mut Out, entry: &TraceEvent, strings: &Strings<'_>) {
    let (kind, warmth, a, b) = match &entry.what {
        Event::Read(access) => {
            let warmth = match access.warmth {
                Warmth::Unknown => WARMTH_UNKNOWN,
                Warmth::Cold => WARMTH_COLD,
                Warmth::Warm => WARMTH_WARM,
            };
            (KIND_READ, warmth, access.offset, access.len)
        }
        Event::Touch(Touch::Lookup { name, .. }) => {
            (KIND_LOOKUP, 0, strings.names[name.as_slice()], 0)
        }
        Event::Touch(Touch::List { .. }) => (KIND_LIST, 0, 0, 0),
        Event::Touch(Touch::ReadLink { .. }) => (KIND_READ_LINK, 0, 0, 0),
    };
    out.u64(entry.at_us);
    out.u64(a);
    out.u64(b);
    out.u32(entry.took_us);
    out.u32(entry.pid);
    out.u32(entry.command.0);
    out.u32(file_of(&entry.what).0);
    out.bytes(&[kind, warmth, 0, 0]);
}
