//! Metrics in the text format of OpenMetrics, with numbers that are read at the moment of a scrape.
//!
//! Values that are counted where they occur are a `Counter` or a `Histogram` of [`prometheus_client`]. Values
//! from elsewhere, such as the bytes of a store, are a [`Sample`] that a function reads.
//!
//! ```
//! use prometheus_client::registry::Registry;
//! use serving::metrics::{Sample, exposition, register_samples};
//!
//! let mut registry = Registry::with_prefix("disk");
//! register_samples(&mut registry, || {
//!     vec![
//!         Sample::gauge("used_bytes", "Bytes in use.", 512),
//!         Sample::counter("writes", "Writes since the start.", 3),
//!     ]
//! });
//! let page = exposition(&registry);
//! assert!(page.contains("# TYPE disk_used_bytes gauge\ndisk_used_bytes 512\n"));
//! assert!(page.contains("# TYPE disk_writes counter\ndisk_writes_total 3\n"));
//! ```

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The media type of an [`exposition`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A number without labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    name: &'static str,
    help: &'static str,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Counter(u64),
    Gauge(u64),
}

impl Sample {
    /// Returns a number that only grows. It is exposed as `NAME_total`.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        let value = Value::Counter(value);
        Self { name, help, value }
    }

    /// Returns a number that grows and shrinks.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        let value = Value::Gauge(value);
        Self { name, help, value }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut write = |metric: &dyn EncodeMetric| {
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(self.name, self.help, None, kind)?)
        };
        match self.value {
            Value::Counter(value) => write(&ConstCounter::new(value)),
            Value::Gauge(value) => write(&ConstGauge::new(value)),
        }
    }
}

/// Has `read` called at each scrape, for samples without labels.
pub fn register_samples<F>(registry: &mut Registry, read: F)
where
    F: Fn() -> Vec<Sample> + Send + Sync + 'static,
{
    registry.register_collector(Box::new(Samples(read)));
}

struct Samples<F>(F);

impl<F> fmt::Debug for Samples<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Samples")
    }
}

impl<F: Fn() -> Vec<Sample> + Send + Sync + 'static> Collector for Samples<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = (self.0)();
        samples
            .iter()
            .try_for_each(|sample| sample.encode(&mut encoder))
    }
}

/// Returns all metrics of a registry.
#[must_use]
pub fn exposition(registry: &Registry) -> String {
    let mut text = String::new();
    if let Err(error) = encode(&mut text, registry) {
        // A string takes all that is written.
        log::error!("the metrics cannot be encoded: {error}");
    }
    text
}
