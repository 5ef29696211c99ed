//! Metrics at one moment, written as OpenMetrics text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::histogram::Snapshot;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metric families in the order in which they are written.
#[derive(Debug, Default)]
pub struct Exposition(Vec<Family>);

/// The samples of one name.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    samples: Vec<(Labels, Value)>,
}

/// The labels of a sample.
pub type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Counter(u64),
    Gauge(u64),
    Ratio(f64),
    Histogram(Snapshot),
    Info,
}

// === impl Exposition ===

impl Exposition {
    /// Adds a counter. `_total` is appended to its name.
    pub fn counter(&mut self, name: &'static str, help: &'static str, n: u64) {
        self.counters(name, help, [(Labels::new(), n)]);
    }

    /// Adds a counter with labels.
    pub fn counters(&mut self, name: &'static str, help: &'static str, each: impl IntoIterator<Item = (Labels, u64)>) {
        let samples = each.into_iter().map(|(labels, n)| (labels, Value::Counter(n))).collect();
        self.0.push(Family { name, help, unit: None, kind: MetricType::Counter, samples });
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, n: u64) {
        let samples = vec![(Labels::new(), Value::Gauge(n))];
        self.0.push(Family { name, help, unit: None, kind: MetricType::Gauge, samples });
    }

    /// Adds a gauge of ratios with labels.
    pub fn ratios(&mut self, name: &'static str, help: &'static str, each: impl IntoIterator<Item = (Labels, f64)>) {
        let samples = each.into_iter().map(|(labels, x)| (labels, Value::Ratio(x))).collect();
        self.0.push(Family { name, help, unit: None, kind: MetricType::Gauge, samples });
    }

    /// Adds histograms of times. `_seconds` is appended to the name.
    pub fn times(
        &mut self,
        name: &'static str,
        help: &'static str,
        each: impl IntoIterator<Item = (Labels, Snapshot)>,
    ) {
        self.histograms(name, help, Some(Unit::Seconds), each);
    }

    /// Adds histograms of sizes.
    pub fn sizes(
        &mut self,
        name: &'static str,
        help: &'static str,
        each: impl IntoIterator<Item = (Labels, Snapshot)>,
    ) {
        self.histograms(name, help, None, each);
    }

    fn histograms(
        &mut self,
        name: &'static str,
        help: &'static str,
        unit: Option<Unit>,
        each: impl IntoIterator<Item = (Labels, Snapshot)>,
    ) {
        let samples = each.into_iter().map(|(labels, snapshot)| (labels, Value::Histogram(snapshot))).collect();
        self.0.push(Family { name, help, unit, kind: MetricType::Histogram, samples });
    }

    /// Adds an info metric. `_info` is appended to the name.
    pub fn info(&mut self, name: &'static str, help: &'static str, labels: Labels) {
        self.0.push(Family { name, help, unit: None, kind: MetricType::Info, samples: vec![(labels, Value::Info)] });
    }

    /// The whole text, with its end marker.
    pub fn into_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _written = encode(&mut text, &registry);
        text
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, unit, kind, samples } in &self.0 {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for (labels, value) in samples {
                match value {
                    Value::Info => family.encode_info(labels)?,
                    _ if labels.is_empty() => value.encode(&mut family)?,
                    _ => value.encode(&mut family.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, to: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(n) => to.encode_counter::<NoLabelSet, _, f64>(n, None),
            Self::Gauge(n) => to.encode_gauge(n),
            Self::Ratio(x) => to.encode_gauge(x),
            Self::Histogram(Snapshot { sum, count, buckets }) => {
                to.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
            Self::Info => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_openmetrics() {
        let mut exposition = Exposition::default();
        exposition.counters("a", "An \"a\".", [(vec![("x", "q\"b\\\n".to_owned())], 3)]);
        exposition.counters("none", "Not there.", []);
        exposition.gauge("g", "A g.", 7);
        exposition.ratios("r", "An r.", [(vec![("x", "y".to_owned())], 1.55)]);
        let buckets = vec![(0.5, 1), (f64::INFINITY, 2)];
        exposition.times("t", "Times.", [(Labels::new(), Snapshot { sum: 2.5, count: 3, buckets })]);
        exposition.info("i", "Words.", vec![("version", "1".to_owned())]);
        let expected = "# HELP a An \"a\".\n# TYPE a counter\na_total{x=\"q\\\"b\\\\\\n\"} 3\n\
            # HELP none Not there.\n# TYPE none counter\n\
            # HELP g A g.\n# TYPE g gauge\ng 7\n\
            # HELP r An r.\n# TYPE r gauge\nr{x=\"y\"} 1.55\n\
            # HELP t_seconds Times.\n# TYPE t_seconds histogram\n# UNIT t_seconds seconds\n\
            t_seconds_sum 2.5\nt_seconds_count 3\nt_seconds_bucket{le=\"0.5\"} 1\nt_seconds_bucket{le=\"+Inf\"} 3\n\
            # HELP i Words.\n# TYPE i info\ni_info{version=\"1\"} 1\n# EOF\n";
        assert_eq!(exposition.into_text(), expected);
    }
}
