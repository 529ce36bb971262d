//! What became of the chunks that machines asked for, and how long they waited for their turn.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::wire::{Priority, Status};

/// Machines that are told apart; all others are one. Who connects says its name itself on a link
/// that is trusted, and may say many.
const MACHINES: usize = 256;

/// What the machines beyond [`MACHINES`] are called.
const OTHERS: &str = "(others)";

/// Ends of what is told apart of the time that chunks wait, in seconds.
const WAITS: [(&str, Duration); 5] = [
    ("0.0001", Duration::from_micros(100)),
    ("0.001", Duration::from_millis(1)),
    ("0.01", Duration::from_millis(10)),
    ("0.1", Duration::from_millis(100)),
    ("1", Duration::from_secs(1)),
];

/// What may become of a chunk that was asked for, with a word for it.
const ANSWERS: [(Status, &str); 5] = [
    (Status::Here, "sent"),
    (Status::Absent, "absent"),
    (Status::Busy, "busy"),
    (Status::Late, "late"),
    (Status::Failed, "failed"),
];

/// Why a chunk is asked for, with a word for it.
const PRIORITIES: [(Priority, &str); 3] = [
    (Priority::Demand, "demand"),
    (Priority::Readahead, "readahead"),
    (Priority::Prefetch, "prefetch"),
];

/// Counts of chunks since the service began.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    classes: [ClassTally; PRIORITIES.len()],
    machines: Mutex<BTreeMap<Vec<u8>, Arc<Machine>>>,
    others: Arc<Machine>,
}

/// Counts of what was asked for with one priority.
#[derive(Debug, Default)]
struct ClassTally {
    answers: [AtomicU64; ANSWERS.len()],
    bytes: AtomicU64,
    /// By the first of [`WAITS`] that is not shorter; the last has no end.
    waits: [AtomicU64; WAITS.len() + 1],
    waited_micros: AtomicU64,
}

/// What one machine got.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    chunks: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    /// Returns the counts of a machine.
    pub(crate) fn machine(&self, name: &[u8]) -> Arc<Machine> {
        let mut machines = self.machines.lock();
        if let Some(machine) = machines.get(name) {
            return Arc::clone(machine);
        }
        if machines.len() >= MACHINES {
            return Arc::clone(&self.others);
        }
        let machine = Arc::default();
        machines.insert(name.to_vec(), Arc::clone(&machine));
        machine
    }

    /// Notes what became of a chunk.
    pub(crate) fn count(&self, priority: Priority, answer: Status) {
        self.classes[priority as usize].answers[answer as usize].fetch_add(1, Relaxed);
    }

    /// Notes that a chunk of so many bytes, as stored, was sent to a machine.
    pub(crate) fn sent(&self, priority: Priority, machine: &Machine, bytes: u64) {
        self.count(priority, Status::Here);
        self.classes[priority as usize]
            .bytes
            .fetch_add(bytes, Relaxed);
        machine.chunks.fetch_add(1, Relaxed);
        machine.bytes.fetch_add(bytes, Relaxed);
    }

    /// Notes how long a chunk waited until it was read or found late.
    pub(crate) fn waited(&self, priority: Priority, time: Duration) {
        let class = &self.classes[priority as usize];
        let place = WAITS.iter().position(|(_, end)| time <= *end);
        class.waits[place.unwrap_or(WAITS.len())].fetch_add(1, Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        class.waited_micros.fetch_add(micros, Relaxed);
    }

    /// Returns how many chunks were answered like this.
    pub(crate) fn total(&self, answer: Status) -> u64 {
        let classes = self.classes.iter();
        let all = classes.map(|class| class.answers[answer as usize].load(Relaxed));
        all.sum()
    }

    /// Returns the bytes that were sent.
    pub(crate) fn bytes(&self) -> u64 {
        let classes = self.classes.iter();
        classes.map(|class| class.bytes.load(Relaxed)).sum()
    }

    /// Returns the page for Prometheus.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        let classes = || PRIORITIES.iter().map(|(_, word)| *word).zip(&self.classes);
        head(
            &mut page,
            ("answers_total", "counter"),
            "Chunks that were asked for, by why, and what became of them.",
        );
        for (priority, class) in classes() {
            for ((_, answer), count) in ANSWERS.iter().zip(&class.answers) {
                let labels = format!("priority=\"{priority}\",answer=\"{answer}\"");
                line(&mut page, "answers_total", &labels, count.load(Relaxed));
            }
        }
        head(
            &mut page,
            ("answered_bytes_total", "counter"),
            "Bytes of chunks that were sent, compressed.",
        );
        for (priority, class) in classes() {
            let labels = format!("priority=\"{priority}\"");
            line(
                &mut page,
                "answered_bytes_total",
                &labels,
                class.bytes.load(Relaxed),
            );
        }
        head(
            &mut page,
            ("wait_seconds", "histogram"),
            "How long chunks waited for their turn.",
        );
        for (priority, class) in classes() {
            class.histogram(&mut page, priority);
        }
        self.machines_page(&mut page);
        page
    }

    fn machines_page(&self, page: &mut String) {
        let mut machines: Vec<_> = {
            let machines = self.machines.lock();
            let told = machines.iter();
            told.map(|(name, machine)| (escaped(name), Arc::clone(machine)))
                .collect()
        };
        machines.push((OTHERS.to_owned(), Arc::clone(&self.others)));
        for (name, help, value) in [
            (
                "machine_chunks_total",
                "Chunks that a machine got.",
                (|machine| &machine.chunks) as fn(&Machine) -> &AtomicU64,
            ),
            (
                "machine_bytes_total",
                "Bytes of these, compressed.",
                |machine| &machine.bytes,
            ),
        ] {
            head(page, (name, "counter"), help);
            for (machine, counts) in &machines {
                let labels = format!("machine=\"{machine}\"");
                line(page, name, &labels, value(counts).load(Relaxed));
            }
        }
    }
}

impl ClassTally {
    fn histogram(&self, page: &mut String, priority: &str) {
        let ends = WAITS.iter().map(|(word, _)| *word).chain(["+Inf"]);
        let mut count = 0;
        for (end, waits) in ends.zip(&self.waits) {
            count += waits.load(Relaxed);
            let labels = format!("priority=\"{priority}\",le=\"{end}\"");
            line(page, "wait_seconds_bucket", &labels, count);
        }
        let micros = self.waited_micros.load(Relaxed);
        let labels = format!("priority=\"{priority}\"");
        let sum = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        line(page, "wait_seconds_sum", &labels, sum);
        line(page, "wait_seconds_count", &labels, count);
    }
}

/// Returns a name as the value of a label.
fn escaped(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn head(page: &mut String, (name, kind): (&str, &str), help: &str) {
    let _infallible = writeln!(
        page,
        "# HELP nicfetch_blocks_{name} {help}\n# TYPE nicfetch_blocks_{name} {kind}"
    );
}

fn line(page: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _infallible = writeln!(page, "nicfetch_blocks_{name}{{{labels}}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let tally = Tally::default();
        let machine = tally.machine(b"vm \"1\"\n");
        tally.sent(Priority::Demand, &machine, 700);
        tally.sent(Priority::Prefetch, &machine, 300);
        tally.count(Priority::Demand, Status::Busy);
        tally.waited(Priority::Demand, Duration::from_micros(100));
        tally.waited(Priority::Demand, Duration::from_millis(1500));
        assert_eq!((tally.total(Status::Here), tally.bytes()), (2, 1000));
        let page = tally.page();
        for line in [
            r#"answers_total{priority="demand",answer="sent"} 1"#,
            r#"answers_total{priority="demand",answer="busy"} 1"#,
            r#"answers_total{priority="readahead",answer="sent"} 0"#,
            r#"answered_bytes_total{priority="prefetch"} 300"#,
            r#"wait_seconds_bucket{priority="demand",le="0.0001"} 1"#,
            r#"wait_seconds_bucket{priority="demand",le="1"} 1"#,
            r#"wait_seconds_bucket{priority="demand",le="+Inf"} 2"#,
            r#"wait_seconds_sum{priority="demand"} 1.500100"#,
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
        let tally = Tally::default();
        for n in 0..MACHINES + 10 {
            let machine = tally.machine(n.to_string().as_bytes());
            tally.sent(Priority::Demand, &machine, 1);
        }
        let first = tally.machine(b"0");
        tally.sent(Priority::Demand, &first, 1);
        let page = tally.page();
        let lines = page.lines();
        let machines = lines.filter(|line| line.starts_with("nicfetch_blocks_machine_bytes"));
        assert_eq!(machines.count(), MACHINES + 1);
        assert!(page.contains("machine_bytes_total{machine=\"0\"} 2\n"));
        assert!(page.contains("machine_bytes_total{machine=\"(others)\"} 10\n"));
    }
}
