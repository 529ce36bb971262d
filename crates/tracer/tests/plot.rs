//! The picture: well-formed whatever is in it, inside its frame, bounded, and of what was asked.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use blocks::{Access, BlockIndex, BlockRange, Event, Extent, FileId, ReplayPlan, Version, Warmth};
use proptest::prelude::*;
use tracer::plot::{Mark, Plot};
use tracer::{CommandId, Trace, TraceEvent, TraceInfo, TracedFile};

fn mark(time_ms: f64, row: usize, group: usize) -> Mark {
    Mark {
        time_ms,
        lasts_ms: 1.0,
        row,
        offset: 4096,
        len: 4096,
        group,
    }
}

/// Checks that tags nest, and that no text breaks out of its place.
fn check_xml(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>'), "a bare > in {text:?}");
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<'), "a bare < in {tag:?}");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag:?}");
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty());
    let entity = |part: &str| {
        ["amp;", "lt;", "gt;", "quot;"]
            .iter()
            .any(|e| part.starts_with(e))
    };
    assert!(svg.split('&').skip(1).all(entity), "a bare &");
    assert!(svg.chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "no numbers");
    assert!(!svg.contains("<script") && !svg.contains("href"));
}

/// Returns left, top, width and height of every mark that was drawn.
fn drawn(svg: &str) -> Vec<[f64; 4]> {
    let paths = svg
        .split(" d=\"M")
        .skip(1)
        .map(|path| path.split('"').next().unwrap());
    let numbers = |rect: &str| -> [f64; 4] {
        let parts: Vec<f64> = rect
            .trim_end_matches('z')
            .split([' ', 'h', 'v'])
            .take(4)
            .map(|part| part.parse().unwrap())
            .collect();
        parts.try_into().unwrap()
    };
    paths
        .flat_map(|path| path.split('M'))
        .map(numbers)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_plot_is_well_formed_and_inside_its_frame(
        title in any::<String>(),
        rows in proptest::collection::vec(any::<String>(), 0..60),
        groups in proptest::collection::vec(any::<String>(), 0..12),
        marks in proptest::collection::vec(
            (any::<f64>(), any::<f64>(), 0_usize..60, any::<u64>(), any::<u64>(), 0_usize..12),
            0..50,
        ),
        sane in proptest::collection::vec((0.0..9e4, 0.0..100.0, 0_usize..60, 0_u64..1 << 31, 0_u64..1 << 20, 0_usize..12), 0..50),
    ) {
        let mark = |(time_ms, lasts_ms, row, offset, len, group)| Mark { time_ms, lasts_ms, row, offset, len, group };
        let marks = marks.into_iter().chain(sane).map(mark).collect();
        let svg = Plot { title, subtitle: String::new(), rows, groups, marks }.svg();
        check_xml(&svg);
        for [x, y, width, height] in drawn(&svg) {
            prop_assert!(x >= 270.0 && x + width <= 1240.0 - 80.0 + 2.5, "{x} {width}");
            prop_assert!(y >= 165.0 && y + height <= 166.0 + 1000.0 + 0.5, "{y} {height}");
        }
    }
}

#[test]
fn marks_of_nothing_are_left_out_and_equal_ones_drawn_once() {
    let plot = Plot {
        rows: vec!["a".into(), "b".into()],
        groups: vec!["g".into()],
        marks: vec![
            mark(1.0, 0, 0),
            mark(1.0, 0, 0),
            mark(900.0, 1, 0),
            mark(1.0, 2, 0),
            mark(1.0, 0, 1),
            mark(-1.0, 0, 0),
            mark(f64::NAN, 0, 0),
        ],
        ..Plot::default()
    };
    assert_eq!(drawn(&plot.svg()).len(), 2);
}

#[test]
fn later_is_further_right_and_the_next_file_further_down() {
    let plot = Plot {
        rows: vec!["a".into(), "b".into()],
        groups: vec!["g".into()],
        marks: vec![mark(0.0, 0, 0), mark(500.0, 1, 0), mark(999.0, 1, 0)],
        ..Plot::default()
    };
    let marks = drawn(&plot.svg());
    assert!(marks[0][0] < marks[1][0] && marks[1][0] < marks[2][0]);
    assert!(marks[0][1] < marks[1][1]);
}

#[test]
fn the_last_block_of_a_large_file_is_seen_within_its_band() {
    let last = Mark {
        offset: (1 << 40) - 4096,
        ..mark(1.0, 0, 0)
    };
    let plot = Plot {
        rows: vec!["disk".into()],
        groups: vec!["g".into()],
        marks: vec![last],
        ..Plot::default()
    };
    let [_, y, _, height] = drawn(&plot.svg())[0];
    assert!(height >= 2.0, "{height}");
    assert!(y + height <= 166.0 + 420.0 + 0.2, "{y} {height}");
}

#[test]
fn a_boot_of_a_hundred_thousand_reads_is_still_a_picture() {
    let marks = (0..100_000_u32).map(|i| Mark {
        time_ms: f64::from(i % 1000),
        lasts_ms: 0.1,
        row: 0,
        offset: u64::from(i % 317) << 20,
        len: 4096,
        group: 0,
    });
    let plot = Plot {
        rows: vec!["disk".into()],
        groups: vec!["qemu".into()],
        marks: marks.collect(),
        ..Plot::default()
    };
    let count = drawn(&plot.svg()).len();
    assert!((1000..=100_000).contains(&count), "{count}");
    let twice = Plot {
        marks: plot.marks.iter().chain(&plot.marks).copied().collect(),
        ..plot.clone()
    };
    assert_eq!(drawn(&twice.svg()).len(), count);
}

#[test]
fn a_trace_is_drawn_by_file_and_program() {
    let file = |id: u32, path: &[u8]| TracedFile {
        file: FileId(id),
        version: Version {
            size: 10_000,
            ..Version::default()
        },
        path: path.to_vec(),
    };
    let read = |at_us, command, id, offset, len| TraceEvent {
        at_us,
        took_us: 5,
        pid: 1,
        command: CommandId(command),
        what: Event::Read(Access {
            file: FileId(id),
            offset,
            len,
            warmth: Warmth::Unknown,
        }),
    };
    let trace = Trace {
        info: TraceInfo {
            label: b"dir:/<&>".to_vec(),
            ..TraceInfo::default()
        },
        files: vec![file(1, b"late"), file(2, b"early")],
        commands: vec![b"sh".to_vec(), b"cat".to_vec()],
        events: vec![
            read(0, 0, 2, 0, 4096),
            read(1000, 1, 1, 0, 9000),
            read(2000, 1, 1, 8192, 4096),
            read(3000, 1, 1, 20_000, 4096), // past the end
        ],
        ..Trace::default()
    };
    let plot = Plot::of_trace(&trace);
    assert_eq!(plot.rows, ["early", "late"], "by first use");
    assert_eq!(plot.groups, ["cat", "sh"], "by bytes");
    assert_eq!(plot.marks.len(), 3);
    assert_eq!(plot.marks[2].len, 10_000 - 8192);
    let svg = plot.svg();
    check_xml(&svg);
    for shown in ["early", "late", "cat", "sh", "dir:/&lt;&amp;&gt;"] {
        assert!(svg.contains(shown), "{shown}");
    }
}

#[test]
fn a_plan_is_drawn_by_bin_and_stability() {
    let extent = |file, start, bin, seen| Extent {
        file: FileId(file),
        range: BlockRange::with_len(BlockIndex(start), 2),
        bin,
        seen,
    };
    let plan = ReplayPlan {
        runs: 3,
        bin_ms: 150,
        extents: vec![extent(5, 0, 0, 3), extent(4, 7, 2, 2), extent(5, 9, 2, 1)],
        touches: Vec::new(),
    };
    let plot = Plot::of_plan("p".into(), &plan, |file| format!("file {}", file.0));
    assert_eq!(plot.rows, ["file 5", "file 4"]);
    let marks: Vec<(usize, usize, u64)> = plot
        .marks
        .iter()
        .map(|m| (m.row, m.group, m.offset))
        .collect();
    assert_eq!(marks, [(0, 0, 0), (1, 1, 7 * 4096), (0, 2, 9 * 4096)]);
    assert!((plot.marks[1].time_ms - 300.0).abs() < 1e-9);
    check_xml(&plot.svg());
}
