//! Counts of chunks by the outcome of requests, and of the time that they were queued.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::wire::{Priority, Status};

/// The most machines with counters of their own; all others share one. Without authentication a
/// client may use any number of names.
const MACHINES: usize = 256;

/// The label of machines beyond [`MACHINES`].
const OTHERS: &str = "(others)";

/// Upper bounds of the histogram's buckets, in seconds.
const WAITS: [f64; 5] = [0.0001, 0.001, 0.01, 0.1, 1.0];

/// The outcomes of a request for a chunk, with their labels.
const ANSWERS: [(Status, &str); 5] = [
    (Status::Here, "sent"),
    (Status::Absent, "absent"),
    (Status::Busy, "busy"),
    (Status::Late, "late"),
    (Status::Failed, "failed"),
];

/// The priorities of requests, with their labels.
const PRIORITIES: [(Priority, &str); 3] = [
    (Priority::Demand, "demand"),
    (Priority::Readahead, "readahead"),
    (Priority::Prefetch, "prefetch"),
];

/// A count by the name of a machine.
type ByMachine = Family<[(&'static str, String); 1], Counter>;
/// The label of a priority.
type PriorityLabel = [(&'static str, &'static str); 1];

/// Counts of chunks since the service began.
#[derive(Debug)]
pub(crate) struct ChunkCounters {
    classes: [PriorityCounters; PRIORITIES.len()],
    machines: Mutex<BTreeMap<Vec<u8>, Arc<MachineCounters>>>,
    others: Arc<MachineCounters>,
    // What is exposed: the counts above, by their labels.
    answers: Family<[(&'static str, &'static str); 2], Counter>,
    answered_bytes: Family<PriorityLabel, Counter>,
    waits: Family<PriorityLabel, Histogram, fn() -> Histogram>,
    machine_chunks: ByMachine,
    machine_bytes: ByMachine,
}

/// Counts of requests with one priority.
#[derive(Debug)]
struct PriorityCounters {
    answers: [Counter; ANSWERS.len()],
    bytes: Counter,
    waits: Histogram,
}

/// Counts of chunks that one machine received.
#[derive(Debug)]
pub(crate) struct MachineCounters {
    chunks: Counter,
    bytes: Counter,
}

impl MachineCounters {
    fn new(name: &str, chunks: &ByMachine, bytes: &ByMachine) -> Arc<Self> {
        let labels = [("machine", name.to_owned())];
        Arc::new(Self {
            chunks: chunks.get_or_create_owned(&labels),
            bytes: bytes.get_or_create_owned(&labels),
        })
    }
}

impl Default for ChunkCounters {
    fn default() -> Self {
        let answers = Family::<[_; 2], Counter>::default();
        let answered_bytes = Family::<[_; 1], Counter>::default();
        let new: fn() -> Histogram = || Histogram::new(WAITS);
        let waits = Family::<[_; 1], Histogram, _>::new_with_constructor(new);
        let classes = PRIORITIES.map(|(_, word)| {
            let priority = [("priority", word)];
            let answer = |(_, answer)| [priority[0], ("answer", answer)];
            PriorityCounters {
                answers: ANSWERS.map(|named| answers.get_or_create_owned(&answer(named))),
                bytes: answered_bytes.get_or_create_owned(&priority),
                waits: waits.get_or_create_owned(&priority),
            }
        });
        let (machine_chunks, machine_bytes) = (ByMachine::default(), ByMachine::default());
        Self {
            classes,
            machines: Mutex::default(),
            others: MachineCounters::new(OTHERS, &machine_chunks, &machine_bytes),
            answers,
            answered_bytes,
            waits,
            machine_chunks,
            machine_bytes,
        }
    }
}

impl ChunkCounters {
    /// Returns the counters of a machine.
    pub(crate) fn machine(&self, name: &[u8]) -> Arc<MachineCounters> {
        let mut machines = self.machines.lock();
        if let Some(machine) = machines.get(name) {
            return Arc::clone(machine);
        }
        if machines.len() >= MACHINES {
            return Arc::clone(&self.others);
        }
        let label = String::from_utf8_lossy(name);
        let machine = MachineCounters::new(&label, &self.machine_chunks, &self.machine_bytes);
        machines.insert(name.to_vec(), Arc::clone(&machine));
        machine
    }

    /// Counts the outcome of a request for a chunk.
    pub(crate) fn count(&self, priority: Priority, answer: Status) {
        self.classes[priority as usize].answers[answer as usize].inc();
    }

    /// Counts a chunk that was sent to a machine, with its stored bytes.
    pub(crate) fn sent(&self, priority: Priority, machine: &MachineCounters, bytes: u64) {
        self.count(priority, Status::Here);
        self.classes[priority as usize].bytes.inc_by(bytes);
        machine.chunks.inc();
        machine.bytes.inc_by(bytes);
    }

    /// Records how long a request was queued.
    pub(crate) fn waited(&self, priority: Priority, time: Duration) {
        let waits = &self.classes[priority as usize].waits;
        waits.observe(time.as_secs_f64());
    }

    /// Returns the number of requests with this outcome.
    pub(crate) fn total(&self, answer: Status) -> u64 {
        let classes = self.classes.iter();
        let all = classes.map(|class| class.answers[answer as usize].get());
        all.sum()
    }

    /// Returns the bytes that were sent.
    pub(crate) fn bytes(&self) -> u64 {
        let classes = self.classes.iter();
        classes.map(|class| class.bytes.get()).sum()
    }

    /// Registers the counts.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "answers",
            "Chunks that were asked for, by why, and what became of them",
            self.answers.clone(),
        );
        registry.register(
            "answered_bytes",
            "Bytes of chunks that were sent, compressed",
            self.answered_bytes.clone(),
        );
        registry.register(
            "wait_seconds",
            "How long chunks waited for their turn",
            self.waits.clone(),
        );
        registry.register(
            "machine_chunks",
            "Chunks that a machine got",
            self.machine_chunks.clone(),
        );
        registry.register(
            "machine_bytes",
            "Bytes of these, compressed",
            self.machine_bytes.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(tally: &ChunkCounters) -> String {
        let mut registry = Registry::with_prefix("nicfetch_blocks");
        tally.register(&mut registry);
        serving::metrics::exposition(&registry)
    }

    #[test]
    fn words_are_in_the_order_of_numbers() {
        for (number, (answer, _)) in ANSWERS.iter().enumerate() {
            assert_eq!(*answer as usize, number);
        }
        for (number, (priority, _)) in PRIORITIES.iter().enumerate() {
            assert_eq!(*priority as usize, number);
        }
    }

    #[test]
    fn what_was_counted_is_on_the_page() {
        let tally = ChunkCounters::default();
        let machine = tally.machine(b"vm \"1\"\n");
        tally.sent(Priority::Demand, &machine, 700);
        tally.sent(Priority::Prefetch, &machine, 300);
        tally.count(Priority::Demand, Status::Busy);
        tally.waited(Priority::Demand, Duration::from_micros(100));
        tally.waited(Priority::Demand, Duration::from_millis(1500));
        assert_eq!((tally.total(Status::Here), tally.bytes()), (2, 1000));
        let page = page(&tally);
        for line in [
            r#"answers_total{priority="demand",answer="sent"} 1"#,
            r#"answers_total{priority="demand",answer="busy"} 1"#,
            r#"answers_total{priority="readahead",answer="sent"} 0"#,
            r#"answered_bytes_total{priority="prefetch"} 300"#,
            r#"wait_seconds_bucket{le="0.0001",priority="demand"} 1"#,
            r#"wait_seconds_bucket{le="1.0",priority="demand"} 1"#,
            r#"wait_seconds_bucket{le="+Inf",priority="demand"} 2"#,
            r#"wait_seconds_sum{priority="demand"} 1.5001"#,
            r#"wait_seconds_count{priority="demand"} 2"#,
            r#"machine_chunks_total{machine="vm \"1\"\n"} 2"#,
            r#"machine_bytes_total{machine="(others)"} 0"#,
        ] {
            let line = format!("nicfetch_blocks_{line}\n");
            assert!(page.contains(&line), "{line}{page}");
        }
    }

    #[test]
    fn machines_beyond_the_bound_are_one() {
        let tally = ChunkCounters::default();
        for n in 0..MACHINES + 10 {
            let machine = tally.machine(n.to_string().as_bytes());
            tally.sent(Priority::Demand, &machine, 1);
        }
        let first = tally.machine(b"0");
        tally.sent(Priority::Demand, &first, 1);
        let page = page(&tally);
        let lines = page.lines();
        let machines = lines.filter(|line| line.starts_with("nicfetch_blocks_machine_bytes_total"));
        assert_eq!(machines.count(), MACHINES + 1);
        assert!(page.contains("machine_bytes_total{machine=\"0\"} 2\n"));
        assert!(page.contains("machine_bytes_total{machine=\"(others)\"} 10\n"));
    }
}
