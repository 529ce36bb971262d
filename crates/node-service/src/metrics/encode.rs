//! The page in Prometheus' text format, version 0.0.4: the textfile collector of node_exporter reads no other.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serving::metrics::exposition;

use super::{Kind, Metric, Sample, Seen, Value, all};

/// What OpenMetrics ends with, and version 0.0.4 does not have.
const END: &str = "# EOF\n";

/// Returns the page with all metrics of these samples.
pub(super) fn page(seen: Seen) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(seen));
    let mut page = exposition(&registry);
    if page.ends_with(END) {
        page.truncate(page.len() - END.len());
    }
    page
}

impl Collector for Seen {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        all().try_for_each(|metric| metric.encode(&metric.samples(self), &mut encoder))
    }
}

impl Metric {
    /// Writes a metric with all its values. One without values is left out.
    fn encode(&self, samples: &[Sample], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if samples.is_empty() {
            return Ok(());
        }
        let help = format!("{} Unit: {}. {}", self.help, self.unit, self.question);
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
        };
        let mut encoder = encoder.encode_descriptor(self.name, &help, None, kind)?;
        for sample in samples {
            let labels = self.labels.iter().copied();
            let labels: Vec<(&str, &str)> = labels
                .zip(sample.labels.iter().map(String::as_str))
                .collect();
            match labels.is_empty() {
                true => sample.value.encode(&mut encoder)?,
                false => sample.value.encode(&mut encoder.encode_family(&labels)?)?,
            }
        }
        Ok(())
    }
}

impl Value {
    /// Writes a value. A counter is written as a gauge is: in this version of the format the suffix `_total`
    /// belongs to its name.
    fn encode(self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => encoder.encode_gauge(&count),
            Self::Ratio(ratio) => encoder.encode_gauge(&ratio),
        }
    }
}
