//! The verdict on growth: compares the last quarter of a run with the second one.
//!
//! The figure of a quarter is the median of its samples, so that a single slow second does not count as growth, and
//! steady growth does. For latencies, the samples are windows of some seconds: the 50th and the 99th percentile of the
//! requests through abridge, less those of the requests straight to the upstream.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::probe::Pair;
use super::sampler::Sample;
use crate::load::stats::{median, quantile};

const QUARTERS: u32 = 4;

/// The number of windows in a quarter.
const WINDOWS: u32 = 5;

#[derive(Debug)]
pub(super) struct Verdict {
    rows: Vec<Row>,
    kept: Vec<&'static str>,
    end: Sample,
    idle: Sample,
}

/// One figure, in its unit, quarter by quarter.
#[derive(Debug)]
struct Row {
    what: &'static str,
    unit: Unit,
    idle: Option<f64>,
    quarters: Vec<f64>,
    end: Option<f64>,
    allowed: f64,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Count,
    Bytes,
    Micros,
}

/// The allowed growth from the second to the last quarter: a fraction, and an absolute amount.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    part: f64,
    more: f64,
}

/// The factor on the allowance of a short run, which is warm late.
const SHORT_RUN_FACTOR: f64 = 4.0;

/// The factor on the latency allowance of a short run, which has few requests per window and so more noise.
const SHORT_RUN_LATENCY_FACTOR: f64 = 10.0;

/// The allowance for the store's file in a short run, which does not fill the store: the file grows in steps.
const SHORT_RUN_STORE_BYTES: f64 = 16.0 * MIB;

const MIB: f64 = 1024.0 * 1024.0;

impl Verdict {
    pub(super) fn new(time: Duration, samples: &[Sample], pairs: &[Pair], idle: Sample, end: Sample) -> Self {
        let is_short = time < super::UNIQUE_TEXTS_FROM;
        let allowance = |part: f64, more: f64, short: f64| {
            let times = if is_short { short } else { 1.0 };
            Allowance { part: part * times, more: more * times }
        };
        let held = |what, unit, of: fn(&Sample) -> f64, part, more| {
            let quarters = (0..QUARTERS).map(|n| {
                let (from, to) = (time * n / QUARTERS, time * (n + 1) / QUARTERS);
                let seen: Vec<_> = samples.iter().filter(|now| (from..to).contains(&now.at)).map(of).collect();
                median(&seen)
            });
            Row::new(what, unit, quarters.collect(), allowance(part, more, SHORT_RUN_FACTOR))
                .beside(of(&idle), of(&end))
        };
        let added = |what, per_mille, part, more| {
            Row::new(what, Unit::Micros, added(time, pairs, per_mille), allowance(part, more, SHORT_RUN_LATENCY_FACTOR))
        };
        let file = if is_short { SHORT_RUN_STORE_BYTES } else { MIB };
        let rows = vec![
            held("resident memory", Unit::Bytes, |now| now.memory_bytes, 0.05, 4.0 * MIB),
            held("descriptors", Unit::Count, |now| now.descriptors, 0.03, 16.0),
            held("threads", Unit::Count, |now| now.threads, 0.0, 4.0),
            held("tasks", Unit::Count, |now| now.tasks, 0.03, 16.0),
            held("requests in flight", Unit::Count, |now| now.in_flight, 0.03, 16.0),
            held("bytes of bodies", Unit::Bytes, |now| now.buffered_bytes, 0.0, 4.0 * MIB),
            held("the store's file", Unit::Bytes, |now| now.store_bytes, 0.10, file),
            added("added p50", 500, 0.25, 100.0),
            added("added p99", 990, 0.50, 1000.0),
        ];
        Self { rows, kept: end.exceeding(&idle), end, idle }
    }

    /// Fails if anything has grown.
    pub(super) fn check(&self) -> Result<()> {
        let grown: Vec<_> = self.rows.iter().filter(|row| !row.is_flat()).map(|row| row.what).collect();
        ensure!(grown.is_empty(), "not flat: {}", grown.join(", "));
        ensure!(self.kept.is_empty(), "not given back: {}, {:?} after {:?}", self.kept.join(", "), self.end, self.idle);
        Ok(())
    }
}

impl Row {
    fn new(what: &'static str, unit: Unit, quarters: Vec<f64>, allowance: Allowance) -> Self {
        let second = quarters.get(1).copied().unwrap_or_default();
        let allowed = second + second.max(0.0) * allowance.part + allowance.more;
        Self { what, unit, idle: None, quarters, end: None, allowed }
    }

    fn beside(self, idle: f64, end: f64) -> Self {
        Self { idle: Some(idle), end: Some(end), ..self }
    }

    fn is_flat(&self) -> bool {
        self.quarters.last().is_some_and(|last| *last <= self.allowed)
    }
}

/// The latency that abridge adds in each quarter, in microseconds.
fn added(time: Duration, pairs: &[Pair], per_mille: usize) -> Vec<f64> {
    let n = QUARTERS * WINDOWS;
    let windows: Vec<_> = (0..n).map(|window| (time * window / n)..(time * (window + 1) / n)).collect();
    let added = |window: &std::ops::Range<Duration>| {
        let of = |part: fn(&Pair) -> f64| {
            let times: Vec<_> = pairs.iter().filter(|pair| window.contains(&pair.at)).map(part).collect();
            quantile(&times, per_mille)
        };
        of(|pair| pair.through) - of(|pair| pair.direct)
    };
    windows.chunks(WINDOWS as usize).map(|quarter| median(&quarter.iter().map(added).collect::<Vec<_>>())).collect()
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | before | warm-up | second quarter | third | last | allowed | after | |")?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|---|")?;
        for row in &self.rows {
            let text = |value: &f64| row.unit.text(*value);
            let beside = |value: &Option<f64>| value.as_ref().map(text).unwrap_or_default();
            let quarters: Vec<_> = row.quarters.iter().map(text).collect();
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} |",
                row.what,
                beside(&row.idle),
                quarters.join(" | "),
                text(&row.allowed),
                beside(&row.end),
                if row.is_flat() { "flat" } else { "**grows**" }
            )?;
        }
        Ok(())
    }
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Self::Count => format!("{value:.0}"),
            Self::Bytes => format!("{:.1} MiB", value / MIB),
            Self::Micros => format!("{value:.0} µs"),
        }
    }
}
