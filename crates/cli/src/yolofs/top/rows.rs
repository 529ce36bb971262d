//! What is shown of each mount: counts of two moments become rates.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::output::{count, percent, table};
use host::size::Size;
use node_api::client::{CallError, NodeClient};
use node_api::mount_state::MountState;
use node_api::view::{MountView, NodeView};

/// What the node told at one moment.
#[derive(Clone, Debug)]
pub(super) struct NodeSnapshot {
    pub(super) at: Instant,
    pub(super) node: NodeView,
    pub(super) mounts: Vec<MountView>,
}

impl NodeSnapshot {
    pub(super) fn take(client: &NodeClient) -> Result<Self, CallError> {
        Ok(Self {
            node: client.node()?,
            mounts: client.mounts()?,
            at: Instant::now(),
        })
    }

    fn find(&self, mountpoint: &MountView) -> Option<&MountView> {
        let id = &mountpoint.status.id;
        self.mounts.iter().find(|mount| mount.status.id == *id)
    }
}

/// One mount. What is not known is absent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) mountpoint: String,
    pub(super) state: MountState,
    reads_per_second: Option<f64>,
    /// Bytes from the boot image, and all bytes, since it was mounted.
    from_boot: Option<(u64, u64)>,
    source_bytes_per_second: Option<f64>,
    pub(super) divergence_permille: Option<u64>,
    restarts: u64,
}

impl Row {
    fn of(before: Option<&NodeSnapshot>, now: &NodeSnapshot, mount: &MountView) -> Self {
        let served = mount.status.served.as_ref();
        let earlier = before.and_then(|before| {
            let served = before.find(mount)?.status.served.as_ref()?;
            Some((served, now.at.duration_since(before.at)))
        });
        let rate = |count: fn(&node_api::status::ServedStatus) -> u64| {
            let (earlier, time) = earlier?;
            Some(per_second(count(earlier), count(served?), time))
        };
        Self {
            mountpoint: mount.status.mountpoint.to_string_lossy().into_owned(),
            state: mount.status.state,
            reads_per_second: rate(|served| served.requests.get("read").copied().unwrap_or(0)),
            from_boot: from_boot(mount),
            source_bytes_per_second: rate(|served| served.fallthrough_bytes),
            divergence_permille: served.map(|served| served.divergence_permille),
            restarts: mount.restarts,
        }
    }

    fn boot_share(&self) -> f64 {
        match self.from_boot {
            Some((boot, all)) if all > 0 => boot as f64 / all as f64,
            _ => -1.0,
        }
    }
}

/// Returns how many bytes came from the boot image, and how many there were. What was pushed into
/// the page cache counts as having come from it: the kernel does not tell who reads it there.
fn from_boot(mount: &MountView) -> Option<(u64, u64)> {
    let (boot, served) = (mount.status.boot.as_ref()?, mount.status.served.as_ref()?);
    let from_boot = boot.injected_pages * PAGE_BYTES + served.hit_bytes;
    Some((from_boot, from_boot + served.fallthrough_bytes))
}

const PAGE_BYTES: u64 = 4096;

/// Counts begin at 0 again with each worker.
fn per_second(before: u64, now: u64, time: Duration) -> f64 {
    let more = now.checked_sub(before).unwrap_or(now);
    more as f64 / time.as_secs_f64().max(0.001)
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SortBy {
    /// The mount point
    Name,
    /// What is wrong first
    State,
    /// The most reads first
    Reads,
    /// The smallest share from the boot image first
    Boot,
    /// The most bytes from the source first
    Source,
    /// The farthest from its recording first
    Divergence,
    /// The most restarts first
    Restarts,
}

/// One column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) by: SortBy,
    pub(super) key: char,
    pub(super) title: &'static str,
    pub(super) width: u16,
    pub(super) cell: fn(&Row) -> String,
    order: fn(&Row, &Row) -> Ordering,
}

/// All columns, from the left.
pub(super) static COLUMNS: [Column; 7] = [
    Column {
        by: SortBy::Name,
        key: 'n',
        title: "MOUNT POINT",
        width: 12,
        cell: |row| row.mountpoint.clone(),
        order: |_, _| Ordering::Equal,
    },
    Column {
        by: SortBy::State,
        key: 't',
        title: "STATE",
        width: 10,
        cell: |row| row.state.to_string(),
        order: |a, b| is_serving(a).cmp(&is_serving(b)),
    },
    Column {
        by: SortBy::Reads,
        key: 'r',
        title: "READS/S",
        width: 9,
        cell: |row| known(row.reads_per_second, |rate| format!("{rate:.0}")),
        order: |a, b| most(a.reads_per_second, b.reads_per_second),
    },
    Column {
        by: SortBy::Boot,
        key: 'b',
        title: "FROM BOOT",
        width: 9,
        cell: |row| known(row.from_boot, |(boot, all)| percent(boot, all)),
        order: |a, b| a.boot_share().total_cmp(&b.boot_share()),
    },
    Column {
        by: SortBy::Source,
        key: 's',
        title: "SOURCE/S",
        width: 10,
        cell: |row| {
            known(row.source_bytes_per_second, |rate| {
                Size(whole(rate)).to_string()
            })
        },
        order: |a, b| most(a.source_bytes_per_second, b.source_bytes_per_second),
    },
    Column {
        by: SortBy::Divergence,
        key: 'd',
        title: "DIVERGED",
        width: 9,
        cell: |row| known(row.divergence_permille, |permille| percent(permille, 1000)),
        order: |a, b| b.divergence_permille.cmp(&a.divergence_permille),
    },
    Column {
        by: SortBy::Restarts,
        key: 'x',
        title: "RESTARTS",
        width: 8,
        cell: |row| row.restarts.to_string(),
        order: |a, b| b.restarts.cmp(&a.restarts),
    },
];

fn is_serving(row: &Row) -> bool {
    row.state == MountState::Serving
}

fn known<T>(value: Option<T>, write: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), write)
}

fn most(a: Option<f64>, b: Option<f64>) -> Ordering {
    b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is positive and far below 2^53; as saturates"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

/// In which order rows are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) by: SortBy,
    reversed: bool,
}

impl Order {
    pub(super) const fn by(by: SortBy) -> Self {
        Self {
            by,
            reversed: false,
        }
    }

    /// Returns the order after this column was asked for: asked for twice, it is turned round.
    pub(super) fn asked(self, by: SortBy) -> Self {
        let reversed = self.by == by && !self.reversed;
        Self { by, reversed }
    }
}

/// Returns the rows of a snapshot, with rates if there is an earlier one.
pub(super) fn rows(before: Option<&NodeSnapshot>, now: &NodeSnapshot, order: Order) -> Vec<Row> {
    let mut rows: Vec<Row> = now
        .mounts
        .iter()
        .map(|mount| Row::of(before, now, mount))
        .collect();
    let column = COLUMNS.iter().find(|column| column.by == order.by);
    rows.sort_by(|a, b| {
        let first = column.map_or(Ordering::Equal, |column| (column.order)(a, b));
        first.then_with(|| a.mountpoint.cmp(&b.mountpoint))
    });
    if order.reversed {
        rows.reverse();
    }
    rows
}

/// Describes the node in a line.
pub(super) fn node_line(node: &NodeView) -> String {
    let workers = node.workers.len() as u64;
    let mut parts = vec![
        format!("yolofs {}", node.version),
        format!("pid {}", node.pid),
        format!("up {}", age(node.uptime_seconds)),
        count(node.mounts, "mount"),
        count(workers, "worker"),
        count(node.worker_restarts, "restart"),
        format!("kept by {}", node.keeper),
    ];
    let outdated = node.workers.iter().filter(|worker| !worker.current).count();
    if outdated > 0 {
        parts.push(format!("{outdated} of an older program"));
    }
    if node.draining {
        parts.push("draining".to_owned());
    }
    parts.join(", ")
}

fn age(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Writes everything as text.
pub(super) fn text(before: Option<&NodeSnapshot>, now: &NodeSnapshot, order: Order) -> String {
    let mut lines = vec![
        COLUMNS
            .iter()
            .map(|column| column.title.to_owned())
            .collect(),
    ];
    let cells = |row: &Row| COLUMNS.iter().map(|column| (column.cell)(row)).collect();
    lines.extend(rows(before, now, order).iter().map(cells));
    format!("{}\n{}", node_line(&now.node), table(&lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::memory::two_sights;

    fn snapshots() -> (NodeSnapshot, NodeSnapshot) {
        let (at, [(node, before), (later, mounts)]) = (Instant::now(), two_sights());
        let before = NodeSnapshot {
            at,
            node,
            mounts: before,
        };
        let now = NodeSnapshot {
            at: at + Duration::from_secs(2),
            node: later,
            mounts,
        };
        (before, now)
    }

    fn names(order: Order) -> Vec<String> {
        let (before, now) = snapshots();
        let rows = rows(Some(&before), &now, order);
        rows.into_iter().map(|row| row.mountpoint).collect()
    }

    #[test]
    fn rates_are_differences() {
        let (before, now) = snapshots();
        let text = text(Some(&before), &now, Order::by(SortBy::Name));
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "MOUNT POINT  STATE       READS/S  FROM BOOT  SOURCE/S  DIVERGED  RESTARTS",
            "/mnt/a       serving     50       32.3 %     2.0 MiB   2.5 %     2",
            "/mnt/b       restarting  -        -          -         -         3",
            "/mnt/c       serving     5        100.0 %    0 B       30.0 %    0",
            "/mnt/new     serving     -        97.6 %     -         2.5 %     2",
        ];
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn every_column_sorts() {
        let cases = [
            (SortBy::Name, "a b c new"),
            (SortBy::State, "b a c new"),
            (SortBy::Reads, "a c b new"),
            (SortBy::Boot, "b a new c"),
            (SortBy::Source, "a c b new"),
            (SortBy::Divergence, "c a new b"),
            (SortBy::Restarts, "b a new c"),
        ];
        for (by, wanted) in cases {
            let wanted: Vec<_> = wanted
                .split(' ')
                .map(|name| format!("/mnt/{name}"))
                .collect();
            let order = Order::by(by);
            assert_eq!(names(order), wanted, "{by:?}");
            let turned = names(order.asked(by));
            assert!(turned.iter().eq(wanted.iter().rev()), "{by:?}");
            assert_eq!(names(order.asked(by).asked(by)), wanted, "{by:?}");
        }
    }

    #[test]
    fn the_node_has_a_line() {
        let (_, mut now) = snapshots();
        now.node.draining = true;
        now.node.worker_restarts = 1;
        now.node.workers[0].current = false;
        now.node.uptime_seconds = 3 * 3600 + 61;
        let line = node_line(&now.node);
        assert_eq!(
            line,
            "yolofs 0.1.0, pid 4200, up 3 h 1 min, 4 mounts, 1 worker, 1 restart, \
             kept by systemd, 1 of an older program, draining"
        );
    }
}
