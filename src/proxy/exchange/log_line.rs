//! The log message for an edited request. It has counts and fixed words, and nothing that a client wrote.

use std::fmt;
use std::time::Duration;

use super::{AnswerHead, Exchange};
use crate::dialect::AnswerEnd;
use crate::engine::WaitCause;
use crate::plan::{Action, Change, Report};
use crate::proxy::RequestId;
use crate::relay::tap::TapReport;
use crate::tokens::factor::Factor;
use crate::units::grouped;

/// The values that the message shows.
#[derive(Debug)]
pub(super) struct LogLine<'a> {
    pub(super) id: RequestId,
    pub(super) report: &'a Report,
    pub(super) dry_run: bool,
    pub(super) offloaded_bytes: usize,
    pub(super) added: Duration,
    pub(super) summary_time: Option<Duration>,
    pub(super) prefix_kept: Option<f64>,
}

/// Each action that the message counts by its label, with the verb and the noun that it uses, and whether it stores texts.
const COUNTED: [(&str, &str, &str, bool); 10] = [
    ("summarize", "summarised", "message", false),
    ("clear", "cleared", "result", true),
    ("clear_input", "cleared the arguments of", "call", true),
    ("truncate", "truncated", "result", true),
    ("deduplicate", "deduplicated", "result", true),
    ("drop_call", "filtered", "call", false),
    ("insert", "patched", "dangling call", false),
    ("move", "moved", "result", false),
    ("drop", "dropped", "result", false),
    ("mend", "mended", "value", false),
];

impl Exchange {
    /// Logs one line per request: at info if it was edited and is not a mere count, else at debug. Never content, never a key.
    pub(super) fn log(&self, tap_report: &TapReport, end: AnswerEnd) {
        let Some(AnswerHead { status, after, bytes }) = self.answer else { return };
        let (status, first_byte_ms) = (status.as_u16(), millis(after));
        let client = self.client.as_ref().and_then(|name| name.to_str().ok());
        let Some(edit) = &self.edit else {
            return tracing::debug!(request_id = %self.id, client, status, first_byte_ms, bytes_answered = bytes, ?end, "passed");
        };
        let TapReport { stop_reason, usage, overflowed, .. } = tap_report;
        let report = edit.report.as_ref();
        let (bytes_in, bytes_out) = report.map_or((0, 0), |report| (report.bytes_before, report.bytes_after));
        macro_rules! line {
            ($level:ident, $outcome:literal, $edits:expr, $message:expr) => {
                tracing::$level!(
                    request_id = %self.id,
                    outcome = $outcome,
                    edits = $edits,
                    client,
                    upstream = self.upstream.is_route().then_some(self.upstream.as_str()),
                    rescue = self.rescue.map(tracing::field::display),
                    model = report.and_then(|report| report.model.as_deref()),
                    bytes_in,
                    bytes_out,
                    tokens_in = report.and_then(|report| report.tokens_before),
                    tokens_out = report.and_then(|report| report.tokens_after),
                    token_factor = edit.token_factor().map(Factor::ratio),
                    beyond_window = report.and_then(|report| report.beyond_window),
                    left_out = report.map(|report| report.left_out.len()).filter(|n| *n > 0),
                    status,
                    first_byte_ms,
                    bytes_answered = bytes,
                    ?end,
                    stop_reason = stop_reason.as_deref(),
                    input_tokens = usage.map(|usage| usage.input),
                    cached_tokens = usage.map(|usage| usage.cached),
                    output_tokens = usage.map(|usage| usage.output),
                    tap_overflowed = overflowed.then_some(true),
                    added_ms = millis(self.added),
                    summary_ms = edit.waits.total(WaitCause::Summary).map(millis),
                    handler_ms = edit.waits.total(WaitCause::Handlers).map(millis),
                    offloaded_bytes = (edit.offloaded_bytes > 0).then_some(edit.offloaded_bytes),
                    prefix_kept = self.prefix_kept.map(|share| (share * 1000.0).round() / 1000.0),
                    "{}", $message
                )
            };
        }
        let sentence = report.map(|report| {
            let (dry_run, offloaded_bytes) = (edit.dry_run, edit.offloaded_bytes);
            let summary_time = edit.waits.total(WaitCause::Summary);
            let (id, added, prefix_kept) = (self.id, self.added, self.prefix_kept);
            LogLine { id, report, dry_run, offloaded_bytes, added, summary_time, prefix_kept }
        });
        match edit.counts().as_deref().zip(sentence) {
            None if self.rescue.is_some() => line!(info, "unedited", None::<&str>, "unedited"),
            None => line!(debug, "unedited", None::<&str>, "unedited"),
            Some((edits, said)) if self.conversation.is_none() => line!(debug, "counted", Some(edits), said),
            Some((edits, said)) if edit.dry_run => line!(info, "would_be_edited", Some(edits), said),
            Some((edits, said)) => line!(info, "edited", Some(edits), said),
        }
    }
}

impl fmt::Display for LogLine<'_> {
    /// `chat 3f2a  48,900→8,800 tok  cleared 12 results (offloaded 31 kB)  0.8 ms  prefix kept 71 %`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        write!(f, "chat {:04x}{}", self.id.0 >> 48, if self.dry_run { "  dry run" } else { "" })?;
        match (report.tokens_before, report.tokens_after) {
            (Some(before), Some(after)) => write!(f, "  {}→{} tok", grouped(before), grouped(after))?,
            _ => write!(f, "  {}→{}", bytes(report.bytes_before), bytes(report.bytes_after))?,
        }
        let mut offloaded = Some(self.offloaded_bytes).filter(|n| *n > 0);
        for (label, verb, noun, stores) in COUNTED {
            // The result of a filtered call is dropped with it, and is not counted again.
            let is_counted =
                |change: &&Change| change.action.label() == label && !(label == "drop" && change.edit == "filter");
            let n_items = |change: &Change| match change.action {
                Action::Summarize { from, to } => to.saturating_sub(from),
                _ => 1,
            };
            let n: usize = report.changes.iter().filter(is_counted).map(n_items).sum();
            if n == 0 {
                continue;
            }
            write!(f, "  {verb} {} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })?;
            offloaded.take_if(|_| stores).map_or(Ok(()), |n| write!(f, " (offloaded {})", bytes(n)))?;
        }
        offloaded.map_or(Ok(()), |n| write!(f, "  offloaded {}", bytes(n)))?;
        let regrets = report.regrets;
        let regrets_of = [(regrets.repeated, "repeated"), (regrets.recalled, "recalled")];
        let mut some = regrets_of.into_iter().filter(|(n, _)| *n > 0);
        some.try_for_each(|(n, what)| write!(f, "  {what} {} cleared", grouped(n)))?;
        f.write_str(if regrets.keep_doubled { "  keep doubled" } else { "" })?;
        write!(f, "  {:.1} ms", self.added.as_secs_f64() * 1e3)?;
        let waited = self.summary_time.map(|time| time.as_secs_f64());
        waited.map_or(Ok(()), |seconds| write!(f, "  waited {seconds:.1} s for a summary"))?;
        self.prefix_kept.map_or(Ok(()), |share| write!(f, "  prefix kept {:.0} %", share * 100.0))
    }
}

/// Milliseconds, with one decimal.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

/// `31 kB`
fn bytes(n: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "the value is rounded")]
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
    use crate::plan::Sizes;

    fn change(edit: &'static str, action: Action) -> Change {
        let (bytes, handles) = (Sizes::default(), Vec::new());
        Change { edit, action, call_id: "secret".to_owned(), tool_name: None, bytes, tokens: None, handles, why: None }
    }

    fn line(report: &Report) -> LogLine<'_> {
        LogLine {
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
    fn the_message_has_tokens_edits_time_and_the_kept_prefix() {
        let mut changes = vec![change("clear", Action::Clear { message: 2 }); 12];
        changes.push(change("patch", Action::Insert { behind: 1 }));
        let report = Report { changes, tokens_before: Some(48_900), tokens_after: Some(8_800), ..Report::default() };
        let line = LogLine { offloaded_bytes: 31_400, prefix_kept: Some(0.709), ..line(&report) };
        assert_eq!(
            line.to_string(),
            "chat 3f2a  48,900→8,800 tok  cleared 12 results (offloaded 31 kB)  patched 1 dangling call  0.8 ms  prefix kept 71 %"
        );
    }

    #[test]
    fn without_token_counts_the_message_has_bytes_and_the_wait_for_a_summary() {
        let changes = vec![
            change("summarize", Action::Summarize { from: 1, to: 41 }),
            change("filter", Action::DropCall { message: 1 }),
            change("filter", Action::Drop { message: 2 }),
            change("patch", Action::Drop { message: 9 }),
        ];
        let report = Report { changes, bytes_before: 1_234_567, bytes_after: 999, ..Report::default() };
        let summary_time = Some(Duration::from_millis(3210));
        let line = LogLine { dry_run: true, offloaded_bytes: 2_000_000, summary_time, ..line(&report) };
        assert_eq!(
            line.to_string(),
            "chat 3f2a  dry run  1.2 MB→999 B  summarised 40 messages  filtered 1 call  dropped 1 result  offloaded 2.0 MB  0.8 ms  waited 3.2 s for a summary"
        );
    }
}
