//! Prints a simulation as one page of HTML that needs nothing else: no script, no font, no other file.

use std::fmt::{self, Display};

use super::regret::{Fault, Missed, PieceKind};
use super::{PolicyResult, Simulation, TranscriptResult};
use crate::template::{fill, section};
use crate::units::grouped;

/// A simulation as a page.
#[derive(Debug)]
pub struct Page<'a>(pub &'a Simulation);

/// The most transcripts that are drawn, and the most faults that are listed.
const MAX_DRAWN: usize = 12;
const MAX_LISTED: usize = 300;

/// The size of a drawing, and of its margin on the left and below, in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
const MARGIN: f64 = 46.0;

/// The height of the horizontal axis, and of labels below it.
const FLOOR: f64 = HEIGHT - MARGIN;
const BELOW: f64 = FLOOR + 16.0;

/// The number of colours in the style; the policies take them in turn.
const N_COLOURS: usize = 6;

const STYLE: &str = include_str!("page.css");

/// The parts of the page.
const PARTS: &str = include_str!("page.html");

/// The scale of an axis.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
}

impl Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Simulation { verdict, prices, transcripts, totals, .. } = self.0;
        let verdict = verdict.as_ref().map(|verdict| part("verdict", &[("verdict", &html(&verdict.to_string()))]));
        let key =
            |(n, total): (_, &PolicyResult)| part("key", &[("colour", &colour(n)), ("policy", &html(&total.policy))]);
        let runs = || transcripts.iter().flat_map(|played| played.runs.iter().map(move |run| (played, run)));
        let faults =
            || runs().flat_map(|(played, run)| run.outcome.regret.list.iter().map(move |fault| (played, run, fault)));
        let n_faults = faults().count();
        let listed = faults().take(MAX_LISTED).map(|(played, run, fault)| list_fault(&played.name, &run.policy, fault));
        let none = (n_faults == 0).then(|| part("no faults", &[]));
        f.write_str(&part(
            "page",
            &[
                ("style", &STYLE),
                ("n", &transcripts.len()),
                ("answers", &grouped(totals.first().map_or(0, |total| total.outcome.regret.answers))),
                ("read", &prices.cache_read),
                ("write", &prices.cache_write),
                ("verdict", &verdict.unwrap_or_default()),
                ("front", &self.front()),
                ("rows", &totals.iter().enumerate().map(|(n, total)| self.row(n, total)).collect::<String>()),
                ("keys", &totals.iter().enumerate().map(key).collect::<String>()),
                ("figures", &transcripts.iter().take(MAX_DRAWN).map(lines_of).collect::<String>()),
                ("undrawn", &more(transcripts.len(), MAX_DRAWN, "transcripts are not drawn")),
                ("faults", &none.into_iter().chain(listed).collect::<String>()),
                ("unlisted", &more(n_faults, MAX_LISTED, "faults are not listed; --json has all")),
            ],
        ))
    }
}

impl Page<'_> {
    /// The policies by cost and faults.
    fn front(&self) -> String {
        let regrets = self.0.totals.iter().map(|total| &total.outcome.regret);
        let points: Vec<_> = regrets.map(|of| (of.percent_with_recalls(), of.per_100(of.faults))).collect();
        let costs = || points.iter().map(|point| point.0);
        let (low, high) = (costs().fold(100.0, f64::min), costs().fold(100.0, f64::max));
        let across = Axis { low: (low - 5.0).max(0.0), high: high + 5.0 };
        let up = Axis { low: 0.0, high: points.iter().map(|point| point.1).fold(1.0, f64::max) * 1.1 };
        let ends = [(across.low, "start"), (across.high, "end")];
        let ends = ends.map(|(x, anchor)| label(across.x(x), BELOW, anchor, &format!("cost {x:.0} %")));
        // Each policy with fewer faults than all that cost no more.
        let mut front = points.clone();
        front.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        front.dedup_by(|next, best| next.1 >= best.1);
        let front = polyline("front", front.iter().map(|point| (across.x(point.0), up.y(point.1))));
        let points = points.iter().zip(&self.0.totals).enumerate().map(|(n, (point, PolicyResult { policy, .. }))| {
            let (x, y) = (across.x(point.0), up.y(point.1));
            let place: [(&str, &dyn Display); 2] = [("x", &format_args!("{x:.1}")), ("y", &format_args!("{y:.1}"))];
            let [cost, faults] = [format!("{:.1}", point.0), format!("{:.2}", point.1)];
            let values: [(&str, &dyn Display); 4] =
                [("colour", &colour(n)), ("policy", &html(policy)), ("cost", &cost), ("faults", &faults)];
            let (at, anchor) = if x > WIDTH * 0.8 { (x - 7.0, "end") } else { (x + 7.0, "start") };
            part("point", &[&place[..], &values].concat()) + &label(at, y - 5.0, anchor, policy)
        });
        let shapes: String = ends.into_iter().chain([front]).chain(points).collect();
        drawing("Faults by cost", &format!("{:.2} faults in 100 requests", up.high), &shapes)
    }

    /// A policy in the table.
    fn row(&self, n: usize, total: &PolicyResult) -> String {
        let regret = &total.outcome.regret;
        let noise = regret.placebo.map(|noise| format!("{:.2}", regret.per_100(noise)));
        let dollars = self.0.verdict.as_ref().map(|_| total.outcome.dollars.to_string());
        part(
            "row",
            &[
                ("colour", &colour(n)),
                ("policy", &html(&total.policy)),
                ("sent", &grouped(total.outcome.figures.tokens_sent)),
                ("cost", &grouped(total.outcome.figures.cost)),
                ("recalls", &format_args!("{:.1}", regret.percent_with_recalls())),
                ("dollars", &dollars.as_deref().unwrap_or("not known")),
                ("faults", &format_args!("{:.2}", regret.per_100(regret.faults))),
                ("hard", &format_args!("{:.2}", regret.per_100(regret.hard))),
                ("noise", &noise.as_deref().unwrap_or("not measured")),
            ],
        )
    }
}

/// The tokens of each request.
fn lines_of(played: &TranscriptResult) -> String {
    let n_requests = played.runs.iter().map(|run| run.outcome.tokens.len()).max().unwrap_or_default();
    let most = played.runs.iter().flat_map(|run| &run.outcome.tokens).max().copied().unwrap_or_default();
    let (across, up) = (Axis { low: 0.0, high: float(n_requests) }, Axis { low: 0.0, high: float(most) });
    let last = label(WIDTH, BELOW, "end", &format!("request {}", grouped(n_requests)));
    let lines = played.runs.iter().enumerate().map(|(n, run)| {
        let requests = run.outcome.tokens.iter().enumerate();
        let points = requests.map(|(n, tokens)| (across.x(float(n + 1)), up.y(float(*tokens))));
        polyline(&format!("line {}", colour(n)), points)
    });
    let shapes: String = std::iter::once(last).chain(lines).collect();
    let drawing = drawing("Tokens of each request", &format!("{} tokens", grouped(most)), &shapes);
    part("figure", &[("name", &html(&played.name)), ("drawing", &drawing)])
}

fn list_fault(transcript: &str, policy: &str, fault: &Fault) -> String {
    let Fault { request, from, hard, n_missed, missed, .. } = fault;
    let what = match from.kind {
        PieceKind::Result => "the result",
        PieceKind::Arguments => "the arguments",
        PieceKind::Message => "the text",
    };
    let tool = from.tool.as_deref().map_or_else(String::new, |tool| format!(" of {tool}"));
    let id = from.call_id.as_deref().map_or_else(String::new, |id| format!(", call {id}"));
    let line = |Missed { text, line, .. }: &Missed| part("missed", &[("line", line), ("text", &html(text))]);
    part(
        "fault",
        &[
            ("hard", &if *hard { "<span class=\"hard\">hard</span> " } else { "" }),
            ("policy", &html(policy)),
            ("transcript", &html(transcript)),
            ("request", request),
            ("what", &what),
            ("tool", &html(&tool)),
            ("message", &from.message),
            ("n", n_missed),
            ("id", &html(&id)),
            ("missed", &missed.iter().map(line).collect::<String>()),
            ("more", &more(*n_missed, missed.len(), "are not listed")),
        ],
    )
}

/// Says how many are left out.
fn more(n: usize, shown: usize, what: &str) -> String {
    let left = n.saturating_sub(shown);
    if left > 0 { part("more", &[("n", &grouped(left)), ("what", &what)]) } else { String::new() }
}

fn part(name: &str, values: &[(&str, &dyn Display)]) -> String {
    fill(section(PARTS, name), values)
}

// === drawing ===

/// A drawing with its two axes, of which the vertical one is labelled from 0 up.
fn drawing(name: &str, high: &str, shapes: &str) -> String {
    let labels = [label(MARGIN, 12.0, "start", high), label(MARGIN - 6.0, FLOOR, "end", "0")];
    part(
        "drawing",
        &[
            ("name", &name),
            ("width", &WIDTH),
            ("height", &HEIGHT),
            ("margin", &MARGIN),
            ("floor", &FLOOR),
            ("shapes", &(labels.concat() + shapes)),
        ],
    )
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
    part("label", &[("x", &x), ("y", &y), ("anchor", &anchor), ("text", &html(text))])
}

fn polyline(class: &str, points: impl Iterator<Item = (f64, f64)>) -> String {
    let points: Vec<_> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    part("polyline", &[("class", &class), ("points", &points.join(" "))])
}

fn colour(n: usize) -> String {
    format!("p{}", n % N_COLOURS)
}

#[expect(clippy::cast_precision_loss, reason = "it is drawn")]
fn float(n: usize) -> f64 {
    n as f64
}

// === impl Axis ===

impl Axis {
    fn part(self, at: f64) -> f64 {
        if self.high > self.low { (at - self.low) / (self.high - self.low) } else { 0.0 }
    }

    fn x(self, at: f64) -> f64 {
        MARGIN + self.part(at) * (WIDTH - MARGIN)
    }

    fn y(self, at: f64) -> f64 {
        18.0 + (1.0 - self.part(at)) * (FLOOR - 18.0)
    }
}

/// A text in HTML.
fn html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let is_control = |c: char| c.is_control() && !['\t', '\n'].contains(&c);
    text.replace('"', "&quot;").replace('\'', "&#39;").replace(is_control, "\u{fffd}")
}
