//! Checks of `[clear_tool_results]`, and of what it may go by: prices, and the tools that read and write files.

use super::Checker;
use crate::config::Config;
use crate::config::error::ConfigError;
use crate::edit::clear_tool_results::{AtLeast, Frontier};
use crate::edit::trigger::Moment;
use crate::tokens::prices::{self, Price};

impl Checker<'_> {
    pub(super) fn clearing(&self) -> Result<(), ConfigError> {
        let Config { clear_tool_results: settings, prices, tools, .. } = self.config;
        if settings.frontier == Frontier::Sliding {
            for (key, value, is_set) in [
                ("when", "turn", settings.when == Some(Moment::Turn)),
                ("clear_at_least", "auto", settings.clear_at_least == Some(AtLeast::Auto)),
            ] {
                if is_set {
                    let message = format!(
                        "{value:?} needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\""
                    );
                    return self.refuse(&["clear_tool_results", key], message);
                }
            }
        }
        for (name, tool) in tools {
            for (key, argument) in [("reads", &tool.reads), ("edits", &tool.edits)] {
                let message = match argument.as_deref() {
                    Some("") => "empty; allowed: the name of an argument",
                    Some(_) if tool.reads.is_some() && tool.edits.is_some() => {
                        "a call reads a file or writes it; allowed: one of reads and edits"
                    }
                    _ => continue,
                };
                return self.refuse(&["tools", name, key], message);
            }
        }
        self.prices(prices)
    }

    fn prices(&self, prices: &[prices::Settings]) -> Result<(), ConfigError> {
        for (n, table) in prices.iter().enumerate() {
            let n = n.to_string();
            if let Some((key, message)) = check_pair(table.read, table.write) {
                return self.refuse(&["prices", &n, key], message);
            }
            let prices::Settings { model: _, upstream: _, read, write, on_break, input, output } = table;
            if (read, write, on_break, input, output) == (&None, &None, &None, &None, &None) {
                let message = "the table sets nothing; allowed: at least one of read, write, break, input and output";
                return self.refuse(&["prices", &n], message);
            }
        }
        Ok(())
    }
}

/// The key of a price that is wrong, and a message.
fn check_pair(read: Option<Price>, write: Option<Price>) -> Option<(&'static str, &'static str)> {
    if read.is_some_and(|read| read > Price::INPUT) {
        return Some(("read", "more than a token that no cache knows; allowed: 0 to 1"));
    }
    (write? < read?).then_some(("write", "less than a token that is read costs; allowed: read or more"))
}
