//! Prints a simulation as one page of HTML that needs nothing else: no script, no font, no other file.

use std::fmt::{self, Write as _};

use super::regret::{Fault, Missed, PieceKind};
use super::{Simulation, TranscriptResult};
use crate::units::grouped;

/// A simulation as a page.
#[derive(Debug)]
pub struct Page<'a>(pub &'a Simulation);

/// The most transcripts that are drawn, and the most faults that are listed.
const MAX_DRAWN: usize = 12;
const MAX_LISTED: usize = 300;

/// The most points of a line; of more requests, the largest of some neighbours is drawn.
const MAX_POINTS: usize = 400;

/// The size of a drawing, and of its margin on the left and below, in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
const MARGIN: f64 = 46.0;

/// The number of colours in the style; the policies take them in turn.
const N_COLOURS: usize = 6;

const STYLE: &str = include_str!("page.css");

/// A text in HTML.
struct Text<'a>(&'a str);

/// The scale of an axis.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Simulation { prices, transcripts, totals, .. } = self.0;
        write!(
            f,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>abridge simulate</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>abridge simulate</h1>\n\
             <p>{} transcripts, {} answers. Cost is in uncached input tokens: {} for a cached one, {} for one that is \
             written to the cache.</p>\n",
            transcripts.len(),
            grouped(totals.first().map_or(0, |total| total.outcome.regret.answers)),
            prices.cache_read,
            prices.cache_write,
        )?;
        if let Some(verdict) = &self.0.verdict {
            f.write_str("<h2>What was paid, and what would be saved</h2>\n")?;
            writeln!(f, "<pre id=\"verdict\">{}</pre>", Text(&verdict.to_string()))?;
        }
        self.front(f)?;
        self.lines(f)?;
        self.faults(f)?;
        f.write_str("</body>\n</html>\n")
    }
}

impl Page<'_> {
    /// The policies by cost and faults.
    fn front(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "<h2>Cost and faults</h2>\n<p>A fault is a text that an answer repeats and that the policy has taken out of \
             sight; it is hard if an edit fails without it. Cost with recalls, in percent of the cost without edits, has \
             one more request for each fault. No policy is better in both than those on the dashed line.</p>\n<figure>\n",
        )?;
        let regrets = self.0.totals.iter().map(|total| &total.outcome.regret);
        let points: Vec<_> = regrets.map(|of| (of.percent_with_recalls(), of.per_100(of.faults))).collect();
        let costs = || points.iter().map(|point| point.0);
        let (low, high) = (costs().fold(100.0, f64::min), costs().fold(100.0, f64::max));
        let across = Axis { low: (low - 5.0).max(0.0), high: high + 5.0 };
        let up = Axis { low: 0.0, high: points.iter().map(|point| point.1).fold(1.0, f64::max) * 1.1 };
        open_drawing(f, "Faults by cost", &format!("{:.2} faults in 100 requests", up.high))?;
        for (x, anchor) in [(across.low, "start"), (across.high, "end")] {
            label(f, across.x(x), HEIGHT - MARGIN + 16.0, anchor, &format!("cost {x:.0} %"))?;
        }
        // Another point that costs no more, has no more faults, and is not the same.
        let is_beaten =
            |point: (f64, f64)| points.iter().any(|other| other.0 <= point.0 && other.1 <= point.1 && *other != point);
        let mut front: Vec<_> = points.iter().filter(|point| !is_beaten(**point)).collect();
        front.sort_by(|a, b| a.0.total_cmp(&b.0));
        polyline(f, "front", front.iter().map(|point| (across.x(point.0), up.y(point.1))))?;
        for (n, (point, total)) in points.iter().zip(&self.0.totals).enumerate() {
            let (x, y) = (across.x(point.0), up.y(point.1));
            let name = Text(&total.policy);
            writeln!(
                f,
                "<circle class=\"point {}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{name}: {:.1} %, {:.2}</title></circle>",
                colour(n),
                point.0,
                point.1
            )?;
            let (at, anchor) = if x > WIDTH * 0.8 { (x - 7.0, "end") } else { (x + 7.0, "start") };
            label(f, at, y - 5.0, anchor, &total.policy)?;
        }
        f.write_str("</svg>\n</figure>\n")?;
        self.table(f)
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "<div class=\"scroll\"><table>\n<tr><th>policy</th><th>tokens sent</th><th>cost</th><th>with recalls</th>\
             <th>in dollars</th><th>faults in 100</th><th>hard in 100</th><th>noise in 100</th></tr>\n",
        )?;
        for (n, total) in self.0.totals.iter().enumerate() {
            let regret = &total.outcome.regret;
            let noise = regret.placebo.map(|noise| format!("{:.2}", regret.per_100(noise)));
            let noise = noise.as_deref().unwrap_or("not measured");
            writeln!(
                f,
                "<tr><td><span class=\"key {}\">{}</span></td><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td>\
                 <td>{:.2}</td><td>{:.2}</td><td>{noise}</td></tr>",
                colour(n),
                Text(&total.policy),
                grouped(total.outcome.figures.tokens_sent),
                grouped(total.outcome.figures.cost),
                regret.percent_with_recalls(),
                if self.0.verdict.is_some() { total.outcome.dollars.to_string() } else { "not known".to_owned() },
                regret.per_100(regret.faults),
                regret.per_100(regret.hard),
            )?;
        }
        f.write_str("</table></div>\n")
    }

    /// The tokens of each request.
    fn lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<h2>Tokens of each request</h2>\n<p>")?;
        for (n, total) in self.0.totals.iter().enumerate() {
            write!(f, "<span class=\"key {}\">{}</span> &emsp;", colour(n), Text(&total.policy))?;
        }
        f.write_str("</p>\n")?;
        self.0.transcripts.iter().take(MAX_DRAWN).try_for_each(|played| lines_of(f, played))?;
        more(f, self.0.transcripts.len(), MAX_DRAWN, "transcripts are not drawn")
    }

    /// Returns what was missed, by policy and transcript.
    fn faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<h2>What was missed</h2>\n")?;
        let runs = || self.0.transcripts.iter().flat_map(|played| played.runs.iter().map(move |run| (played, run)));
        let faults =
            || runs().flat_map(|(played, run)| run.outcome.regret.list.iter().map(move |fault| (played, run, fault)));
        let n_faults = faults().count();
        if n_faults == 0 {
            f.write_str("<p id=\"no-faults\">Nothing: no answer repeats what was taken out of sight.</p>\n")?;
        }
        for (played, run, fault) in faults().take(MAX_LISTED) {
            list_fault(f, &played.name, &run.policy, fault)?;
        }
        more(f, n_faults, MAX_LISTED, "faults are not listed; --json has all")
    }
}

fn lines_of(f: &mut fmt::Formatter<'_>, played: &TranscriptResult) -> fmt::Result {
    let n_requests = played.runs.iter().map(|run| run.outcome.tokens.len()).max().unwrap_or_default();
    let most = played.runs.iter().flat_map(|run| &run.outcome.tokens).max().copied().unwrap_or_default();
    writeln!(f, "<figure>\n<figcaption>{}</figcaption>", Text(&played.name))?;
    open_drawing(f, "Tokens of each request", &format!("{} tokens", grouped(most)))?;
    label(f, WIDTH, HEIGHT - MARGIN + 16.0, "end", &format!("request {}", grouped(n_requests)))?;
    let (across, up) = (Axis { low: 0.0, high: float(n_requests) }, Axis { low: 0.0, high: float(most) });
    let width = n_requests.div_ceil(MAX_POINTS).max(1);
    for (n, run) in played.runs.iter().enumerate() {
        let largest = run.outcome.tokens.chunks(width).map(|some| some.iter().max().copied().unwrap_or_default());
        let points = largest.enumerate().map(|(n, tokens)| (across.x(float(n * width + 1)), up.y(float(tokens))));
        polyline(f, &format!("line {}", colour(n)), points)?;
    }
    f.write_str("</svg>\n</figure>\n")
}

fn list_fault(f: &mut fmt::Formatter<'_>, transcript: &str, policy: &str, fault: &Fault) -> fmt::Result {
    let Fault { request, from, hard, n_missed, missed, .. } = fault;
    let what = match from.kind {
        PieceKind::Result => "the result",
        PieceKind::Arguments => "the arguments",
        PieceKind::Message => "the text",
    };
    let tool = from.tool.as_deref().map_or_else(String::new, |tool| format!(" of {tool}"));
    let id = from.call_id.as_deref().map_or_else(String::new, |id| format!(", call {id}"));
    writeln!(
        f,
        "<details><summary>{}{}, {}: request {request} missed {what}{} in message {}</summary>\n<p>{n_missed} lines and \
         names of the answer had stood there{}:</p>\n<ul>",
        if *hard { "<span class=\"hard\">hard</span> " } else { "" },
        Text(policy),
        Text(transcript),
        Text(&tool),
        from.message,
        Text(&id),
    )?;
    for Missed { text, line, .. } in missed {
        writeln!(f, "<li>line {line}: <code>{}</code></li>", Text(text))?;
    }
    f.write_str("</ul>\n")?;
    more(f, *n_missed, missed.len(), "are not listed")?;
    f.write_str("</details>\n")
}

/// Says how many are left out.
fn more(f: &mut fmt::Formatter<'_>, n: usize, shown: usize, what: &str) -> fmt::Result {
    match n.checked_sub(shown) {
        Some(left) if left > 0 => writeln!(f, "<p class=\"more\">{} more {what}.</p>", grouped(left)),
        _ => Ok(()),
    }
}

// === drawing ===

/// Opens a drawing with its two axes, and labels the vertical one, from 0 up.
fn open_drawing(f: &mut fmt::Formatter<'_>, name: &str, high: &str) -> fmt::Result {
    let floor = HEIGHT - MARGIN;
    writeln!(f, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\">")?;
    writeln!(f, "<path class=\"axis\" d=\"M{MARGIN} 18V{floor}H{WIDTH}\" fill=\"none\"/>")?;
    label(f, MARGIN, 12.0, "start", high)?;
    label(f, MARGIN - 6.0, floor, "end", "0")
}

fn label(f: &mut fmt::Formatter<'_>, x: f64, y: f64, anchor: &str, text: &str) -> fmt::Result {
    writeln!(f, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", Text(text))
}

fn polyline(f: &mut fmt::Formatter<'_>, class: &str, points: impl Iterator<Item = (f64, f64)>) -> fmt::Result {
    write!(f, "<polyline class=\"{class}\" points=\"")?;
    points.into_iter().try_for_each(|(x, y)| write!(f, "{x:.1},{y:.1} "))?;
    f.write_str("\"/>\n")
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
        18.0 + (1.0 - self.part(at)) * (HEIGHT - MARGIN - 18.0)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if c.is_control() && !['\t', '\n'].contains(&c) => f.write_char(char::REPLACEMENT_CHARACTER),
            c => f.write_char(c),
        })
    }
}
