//! The metrics page.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use sandbox::{Counts, ZygoteCounts};
use sandbox_handlers::HandlerCounts;

use crate::bodies::Stats;

/// The media type of the page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug)]
struct Page(Stats);

/// Returns the page.
pub(crate) fn page(stats: Stats) -> String {
    let mut registry = Registry::with_prefix("sandbox");
    registry.register_collector(Box::new(Page(stats)));
    let mut page = String::new();
    match prometheus_client::encoding::text::encode(&mut page, &registry) {
        Ok(()) => page,
        Err(error) => format!("# {error}\n"),
    }
}

/// A counter: its name, what it counts, and its value.
type Counter = (&'static str, &'static str, u64);

fn of_sandboxes(sandboxes: Counts, zygotes: ZygoteCounts) -> Vec<Counter> {
    vec![
        ("started", "Sandboxes that were started", sandboxes.started),
        ("failed", "Starts that failed", sandboxes.failed),
        ("ended", "Sandboxes that have ended", sandboxes.ended),
        (
            "adopted",
            "Sandboxes of an earlier daemon that were taken over",
            sandboxes.adopted,
        ),
        (
            "python_exact",
            "Python from a Zygote with all packages",
            zygotes.exact,
        ),
        (
            "python_partial",
            "Python from a Zygote with some packages",
            zygotes.partial,
        ),
        (
            "python_fresh",
            "Python with an interpreter of its own",
            zygotes.fresh,
        ),
        ("zygotes_made", "Zygotes that were made", zygotes.made),
        (
            "zygotes_derived",
            "Zygotes that were forked from others",
            zygotes.derived,
        ),
        (
            "zygotes_replaced",
            "Zygotes that hung, grew or broke the protocol",
            zygotes.replaced,
        ),
        (
            "zygotes_evicted",
            "Zygotes that were evicted for others",
            zygotes.evicted,
        ),
    ]
}

fn of_handlers(handlers: HandlerCounts) -> Vec<Counter> {
    vec![
        (
            "handler_hits",
            "Requests that found a sandbox of their handler",
            handlers.hits,
        ),
        (
            "handler_starts",
            "Requests for which a sandbox was started",
            handlers.starts,
        ),
        (
            "handler_spares",
            "Requests that got a spare sandbox",
            handlers.spares,
        ),
        (
            "handler_busy",
            "Requests that were refused because too many waited",
            handlers.busy,
        ),
        (
            "handler_late",
            "Requests that missed their deadline",
            handlers.late,
        ),
        (
            "handler_failed",
            "Requests whose handler failed",
            handlers.failed,
        ),
        (
            "handler_hit_microseconds",
            "Time of requests that found a sandbox",
            handlers.hit_micros,
        ),
        (
            "handler_start_microseconds",
            "Time of requests for which one was started",
            handlers.start_micros,
        ),
        (
            "kept_evicted_instances",
            "Frozen sandboxes of handlers that were ended for the budget",
            handlers.evicted_instances,
        ),
        (
            "kept_evicted_zygotes",
            "Zygotes that were ended for the budget",
            handlers.evicted_zygotes,
        ),
        (
            "kept_evicted_packages",
            "Packages that were removed for the budget",
            handlers.evicted_packages,
        ),
    ]
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Stats {
            sandboxes,
            zygotes,
            handlers,
            live,
        } = self.0;
        let mut counters = of_sandboxes(sandboxes, zygotes);
        counters.extend(of_handlers(handlers));
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let gauges = [
            ("live", "Sandboxes that run or are paused", live),
            (
                "kept_bytes",
                "Memory of Zygotes and frozen sandboxes of handlers",
                handlers.kept_bytes,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_on_the_page() {
        let mut stats = Stats {
            live: 3,
            ..Stats::default()
        };
        stats.sandboxes.started = 7;
        let page = page(stats);
        assert!(page.contains("sandbox_started_total 7\n"), "{page}");
        assert!(page.contains("sandbox_live 3\n"), "{page}");
        assert!(page.ends_with("# EOF\n"));
    }
}
