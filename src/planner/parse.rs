//! Reads the body of a request that is planned.

use std::borrow::Cow;

use bytes::Bytes;

use crate::conversation::Conversation;
use crate::dialect::{Dialect, ParseError};
use crate::draft::PlanContext;
use crate::string_index::PathFacts;

/// The conversation in a body. Everything that was hashed of it while it arrived is not hashed again.
pub(super) fn parse<'a>(
    dialect: &dyn Dialect,
    body: &'a Bytes,
    context: &PlanContext<'a>,
) -> Result<Conversation<'a>, ParseError> {
    let mut conversation = dialect.parse_indexed(body, context.strings)?;
    let PathFacts { model, is_framed } = context.strings.path();
    conversation.model = conversation.model.or(model.as_deref().map(Cow::Borrowed));
    conversation.traits.is_answer_framed = *is_framed;
    for unit in &conversation.units {
        if let Some(content) = unit.content.and_then(|content| context.strings.fingerprint(content)) {
            unit.set_content_fingerprint(body, content);
        }
    }
    Ok(conversation)
}
