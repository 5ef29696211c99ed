//! The sentence that the log has for an edited request. It has numbers and words of ours, and nothing that a client wrote.

use std::fmt::Write as _;
use std::time::Duration;

use super::RequestId;
use crate::plan::{Action, Report};
use crate::units::grouped;

/// What the sentence tells.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) id: RequestId,
    pub(super) report: &'a Report,
    pub(super) dry_run: bool,
    pub(super) offloaded_bytes: usize,
    pub(super) added: Duration,
    pub(super) summary_time: Option<Duration>,
    pub(super) prefix_kept: Option<f64>,
}

/// What can be done to how many of what.
const DEEDS: [(Deed, &str, &str); 8] = [
    (Deed::Summarise, "summarised", "message"),
    (Deed::Clear, "cleared", "result"),
    (Deed::ClearInput, "cleared the arguments of", "call"),
    (Deed::Truncate, "truncated", "result"),
    (Deed::DropCall, "filtered", "call"),
    (Deed::Insert, "patched", "dangling call"),
    (Deed::Move, "moved", "result"),
    (Deed::Drop, "dropped", "result"),
];

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Deed {
    Summarise,
    Clear,
    ClearInput,
    Truncate,
    DropCall,
    Insert,
    Move,
    Drop,
}

impl Line<'_> {
    /// `chat 3f2a  48,900→8,800 tok  cleared 12 results (offloaded 31 kB)  0.8 ms  prefix kept 71 %`
    pub(super) fn text(&self) -> String {
        let id = self.id.to_string();
        let mut parts = vec![format!("chat {}", id.get(4..8).unwrap_or_default())];
        parts.extend(self.dry_run.then(|| "dry run".to_owned()));
        let report = self.report;
        parts.push(match (report.tokens_before, report.tokens_after) {
            (Some(before), Some(after)) => format!("{}→{} tok", grouped(before), grouped(after)),
            _ => format!("{}→{}", bytes(report.bytes_before), bytes(report.bytes_after)),
        });
        let mut offloaded = Some(self.offloaded_bytes).filter(|n| *n > 0);
        for (deed, verb, noun) in DEEDS {
            let n: usize = report.changes.iter().map(|change| counts_as(change.action, deed, change.edit)).sum();
            if n == 0 {
                continue;
            }
            let mut part = format!("{verb} {} {noun}{}", grouped(n), if n == 1 { "" } else { "s" });
            if let Some(n) = offloaded.take_if(|_| matches!(deed, Deed::Clear | Deed::ClearInput | Deed::Truncate)) {
                // Into a String nothing fails.
                let _written = write!(part, " (offloaded {})", bytes(n));
            }
            parts.push(part);
        }
        parts.extend(offloaded.map(|n| format!("offloaded {}", bytes(n))));
        parts.push(format!("{:.1} ms", self.added.as_secs_f64() * 1e3));
        parts.extend(self.summary_time.map(|time| format!("waited {:.1} s for a summary", time.as_secs_f64())));
        parts.extend(self.prefix_kept.map(|share| format!("prefix kept {:.0} %", share * 100.0)));
        parts.join("  ")
    }
}

/// How many of what a deed is done to a change stands for.
fn counts_as(action: Action, deed: Deed, edit: &str) -> usize {
    let is_deed = match action {
        Action::Insert { .. } => deed == Deed::Insert,
        Action::Move { .. } => deed == Deed::Move,
        // The results of calls that are left out leave with them.
        Action::Drop { .. } => deed == Deed::Drop && edit != "filter",
        Action::DropCall { .. } => deed == Deed::DropCall,
        Action::Truncate { .. } => deed == Deed::Truncate,
        Action::Clear { .. } => deed == Deed::Clear,
        Action::ClearInput { .. } => deed == Deed::ClearInput,
        Action::Summarize { from, to } => return if deed == Deed::Summarise { to.saturating_sub(from) } else { 0 },
    };
    usize::from(is_deed)
}

/// `31 kB`
fn bytes(n: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
    let float = n as f64;
    match n {
        0..1000 => format!("{n} B"),
        1000..1_000_000 => format!("{:.0} kB", float / 1e3),
        _ => format!("{:.1} MB", float / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Change, Sizes};

    fn change(edit: &'static str, action: Action) -> Change {
        let (bytes, handles) = (Sizes::default(), Vec::new());
        Change { edit, action, call_id: "secret".to_owned(), tool_name: None, bytes, tokens: None, handles }
    }

    fn line(report: &Report) -> Line<'_> {
        Line {
            id: RequestId(0x3f2a_0000_0000_0001),
            report,
            dry_run: false,
            offloaded_bytes: 0,
            added: Duration::from_micros(840),
            summary_time: None,
            prefix_kept: None,
        }
    }

    #[test]
    fn it_reads_as_people_read() {
        let mut changes = vec![change("clear", Action::Clear { message: 2 }); 12];
        changes.push(change("patch", Action::Insert { behind: 1 }));
        let report = Report { changes, tokens_before: Some(48_900), tokens_after: Some(8_800), ..Report::default() };
        let line = Line { offloaded_bytes: 31_400, prefix_kept: Some(0.709), ..line(&report) };
        assert_eq!(
            line.text(),
            "chat 3f2a  48,900→8,800 tok  cleared 12 results (offloaded 31 kB)  patched 1 dangling call  0.8 ms  prefix kept 71 %"
        );
    }

    #[test]
    fn it_has_bytes_where_there_are_no_tokens_and_says_what_took_time() {
        let changes = vec![
            change("summarize", Action::Summarize { from: 1, to: 41 }),
            change("filter", Action::DropCall { message: 1 }),
            change("filter", Action::Drop { message: 2 }),
            change("patch", Action::Drop { message: 9 }),
        ];
        let report = Report { changes, bytes_before: 1_234_567, bytes_after: 999, ..Report::default() };
        let summary_time = Some(Duration::from_millis(3210));
        let line = Line { dry_run: true, offloaded_bytes: 2_000_000, summary_time, ..line(&report) };
        assert_eq!(
            line.text(),
            "chat 3f2a  dry run  1.2 MB→999 B  summarised 40 messages  filtered 1 call  dropped 1 result  offloaded 2.0 MB  0.8 ms  waited 3.2 s for a summary"
        );
    }
}
