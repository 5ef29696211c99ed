//! Metrics at one moment, written as OpenMetrics text or in the text format of Prometheus.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// A form of the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TextFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The text format of Prometheus, 0.0.4, which every collector and `promtool check metrics` read.
    Prometheus,
}

/// Metric families in the order in which they are written.
#[derive(Debug, Default)]
pub struct Exposition(Vec<Family>);

/// The samples of one name.
#[derive(derive_more::Debug)]
struct Family {
    name: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    #[debug(skip)]
    samples: Vec<(Labels, Value)>,
}

type Value = Box<dyn EncodeMetric + Send + Sync>;

/// The labels of a sample.
pub type Labels = Vec<(&'static str, String)>;

/// The labels with these names and values.
pub fn labels<const N: usize>(each: [(&'static str, &str); N]) -> Labels {
    each.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

/// The help texts of the metrics. A line is a name, a blank, and a sentence.
const HELP: &str = include_str!("help.txt");

// === impl TextFormat ===

impl TextFormat {
    /// The form that a scrape asks for with its `accept` fields: OpenMetrics if that is named and wanted at least as much as
    /// anything else that is text.
    pub fn of_scrape(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut openmetrics, mut other) = (0.0, 0.0);
        for range in values.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
            let media = parts.next().unwrap_or_default();
            let parameters: Vec<_> = parts.collect();
            let value = |key| parameters.iter().find_map(|part| part.strip_prefix(key));
            let wanted = value("q=").map_or(Some(1.0), |q| q.parse::<f64>().ok()).unwrap_or(0.0);
            let best = match &*media {
                "application/openmetrics-text"
                    if value("version=").is_none_or(|of| of.trim_matches('\u{22}') == "1.0.0") =>
                {
                    &mut openmetrics
                }
                "text/plain" | "text/*" | "*/*" => &mut other,
                _ => continue,
            };
            *best = wanted.max(*best);
        }
        if openmetrics > 0.0 && openmetrics >= other { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

// === impl Exposition ===

impl Exposition {
    /// Adds a counter. `_total` is appended to its name.
    pub fn counter(&mut self, name: &'static str, n: u64) {
        self.counters(name, [(Labels::new(), n)]);
    }

    /// Adds a counter with labels.
    pub fn counters(&mut self, name: &'static str, each: impl IntoIterator<Item = (Labels, u64)>) {
        self.add(name, None, MetricType::Counter, each, |n| Box::new(ConstCounter::new(n)));
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &'static str, n: u64) {
        self.add(name, None, MetricType::Gauge, [(Labels::new(), n)], |n| Box::new(ConstGauge::new(n)));
    }

    /// Adds a gauge of ratios with labels.
    pub fn ratios(&mut self, name: &'static str, each: impl IntoIterator<Item = (Labels, f64)>) {
        self.add(name, None, MetricType::Gauge, each, |ratio| Box::new(ConstGauge::new(ratio)));
    }

    /// Adds histograms of times. `_seconds` is appended to the name.
    pub fn times(&mut self, name: &'static str, each: impl IntoIterator<Item = (Labels, Histogram)>) {
        self.add(name, Some(Unit::Seconds), MetricType::Histogram, each, |histogram| Box::new(histogram));
    }

    /// Adds histograms of sizes.
    pub fn sizes(&mut self, name: &'static str, each: impl IntoIterator<Item = (Labels, Histogram)>) {
        self.add(name, None, MetricType::Histogram, each, |histogram| Box::new(histogram));
    }

    /// Adds an info metric. `_info` is appended to the name.
    pub fn info(&mut self, name: &'static str, labels: Labels) {
        self.add(name, None, MetricType::Info, [(Labels::new(), labels)], |labels| Box::new(Info::new(labels)));
    }

    fn add<T>(
        &mut self,
        name: &'static str,
        unit: Option<Unit>,
        kind: MetricType,
        each: impl IntoIterator<Item = (Labels, T)>,
        value: fn(T) -> Value,
    ) {
        let samples = each.into_iter().map(|(labels, n)| (labels, value(n))).collect();
        self.0.push(Family { name, unit, kind, samples });
    }

    /// The whole text.
    pub fn into_text(self, format: TextFormat) -> String {
        match format {
            TextFormat::OpenMetrics => self.into_openmetrics(),
            TextFormat::Prometheus => self.into_prometheus(),
        }
    }

    /// The text format of Prometheus differs from OpenMetrics in its comments: a family has the name of its samples, an info
    /// metric is a gauge, and there are neither units nor an end marker.
    fn into_prometheus(self) -> String {
        let suffixes = self.0.iter().filter_map(|family| match family.kind {
            MetricType::Counter => Some((family.name, "_total")),
            MetricType::Info => Some((family.name, "_info")),
            _ => None,
        });
        let suffixes: HashMap<_, _> = suffixes.collect();
        let mut text = String::new();
        for line in self.into_openmetrics().lines() {
            let mut words = line.splitn(4, ' ');
            // Writing to a `String` cannot fail.
            let _written = match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some(word @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
                    let rest = if (word, rest) == ("TYPE", "info") { "gauge" } else { rest };
                    writeln!(text, "# {word} {name}{} {rest}", suffixes.get(name).unwrap_or(&""))
                }
                (Some("#"), ..) => Ok(()),
                _ => writeln!(text, "{line}"),
            };
        }
        text
    }

    fn into_openmetrics(self) -> String {
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
        for Family { name, unit, kind, samples } in &self.0 {
            let mut family = encoder.encode_descriptor(name, help(name), unit.as_ref(), *kind)?;
            match samples.as_slice() {
                [(labels, value)] if labels.is_empty() => value.encode(family)?,
                _ => samples.iter().try_for_each(|(labels, value)| value.encode(family.encode_family(labels)?))?,
            }
        }
        Ok(())
    }
}

fn help(name: &str) -> &'static str {
    HELP.lines().filter_map(|line| line.split_once(' ')).find(|(of, _)| *of == name).map_or("", |(_, help)| help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_gets_the_form_that_it_asks_for() {
        let format = |accept: &[&'static str]| {
            let values = accept.iter().map(|value| (ACCEPT, http::HeaderValue::from_static(value)));
            TextFormat::of_scrape(&values.collect())
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for accept in
            [prometheus, "application/openmetrics-text", "Application/OpenMetrics-Text; Version=\"1.0.0\", */*"]
        {
            assert_eq!(format(&[accept]), TextFormat::OpenMetrics, "{accept}");
        }
        assert_eq!(format(&["text/html", "application/openmetrics-text"]), TextFormat::OpenMetrics);
        for accept in [
            "*/*",
            "text/plain",
            "",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;version=2.0.0",
            "text/plain, application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=x",
        ] {
            assert_eq!(format(&[accept]), TextFormat::Prometheus, "{accept}");
        }
        assert_eq!(format(&[]), TextFormat::Prometheus);
    }

    #[test]
    fn the_text_is_openmetrics_or_that_of_prometheus() {
        let expected = "# HELP abridge_errors Answers of abridge's own, by the code in x-abridge-error\n# TYPE abridge_errors counter\nabridge_errors_total{x=\"q\\\"b\\\\\\n\"} 3\n\
            # HELP abridge_recalls Answers to recalls by outcome\n# TYPE abridge_recalls counter\n\
            # HELP abridge_streams Answers in progress\n# TYPE abridge_streams gauge\nabridge_streams 7\n\
            # HELP r \n# TYPE r gauge\nr{x=\"y\"} 1.55\n\
            # HELP t_seconds \n# TYPE t_seconds histogram\n# UNIT t_seconds seconds\n\
            t_seconds_sum 2.5\nt_seconds_count 3\nt_seconds_bucket{le=\"0.5\"} 1\nt_seconds_bucket{le=\"+Inf\"} 3\n\
            # HELP abridge This abridge\n# TYPE abridge info\nabridge_info{version=\"1\"} 1\n# EOF\n";
        assert_eq!(example().into_text(TextFormat::OpenMetrics), expected);
        let expected = expected
            .replace("P abridge_errors ", "P abridge_errors_total ")
            .replace("E abridge_errors ", "E abridge_errors_total ")
            .replace(" abridge_recalls ", " abridge_recalls_total ")
            .replace("P abridge ", "P abridge_info ")
            .replace("E abridge info", "E abridge_info gauge")
            .replace("# UNIT t_seconds seconds\n", "")
            .replace("# EOF\n", "");
        assert_eq!(example().into_text(TextFormat::Prometheus), expected);
    }

    fn example() -> Exposition {
        let mut exposition = Exposition::default();
        exposition.counters("abridge_errors", [(vec![("x", "q\"b\\\n".to_owned())], 3)]);
        exposition.counters("abridge_recalls", []);
        exposition.gauge("abridge_streams", 7);
        exposition.ratios("r", [(vec![("x", "y".to_owned())], 1.55)]);
        let histogram = Histogram::new([0.5]);
        for value in [0.5, 0.75, 1.25] {
            histogram.observe(value);
        }
        exposition.times("t", [(Labels::new(), histogram)]);
        exposition.info("abridge", vec![("version", "1".to_owned())]);
        exposition
    }
}
