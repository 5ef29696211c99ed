//! Joins messages of the model whose calls were removed with its next message, in dialects whose servers want the user and
//! the model to alternate.

use super::{
    Draft, ParsedRequest, UnitIndex,
    replacement::{NewValue, Replacement},
};
use crate::{
    conversation::Role,
    plan::{Action, Sizes},
    span::Splice,
};

impl Draft<'_> {
    /// Moves the text of each such message to the beginning of the next message, if that is the model's.
    pub fn join_texts(&mut self, edit: &'static str) {
        let mut run: Vec<UnitIndex> = Vec::new();
        for row in self.rows() {
            let own = row.unit.filter(|_| row.role == Role::Assistant);
            run.extend(own);
            let has_lost_all = own.is_some_and(|unit| self.batches.get(&unit) == Some(&0));
            if !has_lost_all {
                self.join_run(edit, &std::mem::take(&mut run));
            }
        }
        self.join_run(edit, &run);
    }

    /// Moves the texts of a run of messages into the last one.
    fn join_run(&mut self, edit: &'static str, run: &[UnitIndex]) {
        let Some((last, before)) = run.split_last().filter(|(_, before)| !before.is_empty()) else { return };
        let ParsedRequest { dialect, body, .. } = self.request;
        let spans: Vec<_> = before.iter().map(|unit| self.span(*unit)).collect();
        let Some(Splice { span, with }) = dialect.join_messages(body, &spans, self.span(*last)) else { return };
        self.n_bytes += with.len(); // no fewer than there are
        self.replacements.insert(span.start, Replacement::new(span, NewValue::whole(with), body, None));
        self.tokens_now.borrow_mut().remove(last);
        for unit in before {
            if self.take(*unit) {
                let action = Action::Move { message: unit.get(), behind: last.get() };
                self.journal.make(self.about_result(edit, action, *unit, Sizes::default()));
                self.n_bytes_removed += self.span(*unit).len();
            }
        }
    }
}
