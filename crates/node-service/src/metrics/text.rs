//! Prometheus' text format, version 0.0.4.

use std::fmt::Write as _;

use super::{Metric, Sample};

/// Appends a metric with all its values. One without values is left out.
pub(super) fn write(page: &mut String, metric: &Metric, samples: &[Sample]) {
    if samples.is_empty() {
        return;
    }
    let name = metric.name;
    let mut line = |text: std::fmt::Arguments<'_>| {
        // A String takes everything.
        let _written = page.write_fmt(text);
        page.push('\n');
    };
    let (help, unit, question) = (metric.help, metric.unit, metric.question);
    line(format_args!(
        "# HELP {name} {help} Unit: {unit}. {question}"
    ));
    line(format_args!("# TYPE {name} {}", metric.kind.word()));
    for sample in samples {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .zip(&sample.labels)
            .map(label)
            .collect();
        if labels.is_empty() {
            line(format_args!("{name} {}", sample.value));
        } else {
            line(format_args!(
                "{name}{{{}}} {}",
                labels.join(","),
                sample.value
            ));
        }
    }
}

fn label((name, value): (&&str, &String)) -> String {
    let escaped = value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n");
    format!("{name}=\"{escaped}\"")
}
