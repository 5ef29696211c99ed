//! Reads the body of a request that is planned.

use bytes::Bytes;

use crate::conversation::Conversation;
use crate::dialect::{Dialect, ParseError};
use crate::draft::PlanContext;

/// The conversation in a body. Everything that was hashed of it while it arrived is not hashed again.
pub(super) fn parse<'a>(
    dialect: &dyn Dialect,
    body: &'a Bytes,
    context: &PlanContext<'a>,
) -> Result<Conversation<'a>, ParseError> {
    let conversation = dialect.parse_indexed(body, context.strings)?;
    for unit in &conversation.units {
        if let Some(content) = unit.content.and_then(|content| context.strings.fingerprint(content)) {
            unit.set_content_fingerprint(body, content);
        }
    }
    Ok(conversation)
}
