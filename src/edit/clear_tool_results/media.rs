//! Images that an upstream takes no more of: the oldest ones in results are cleared, whether the trigger holds or not.
//!
//! Hosts refuse a request with more images than they take, or with more bytes, whatever its tokens. What leaves is found by
//! replay of the messages alone: at each model call, what was too much is cleared down to a part of the limit, so that the next
//! images change nothing. Images of the user count and stay; so does what the model had not read.

use std::collections::BTreeMap;

use memchr::memmem;

use super::{ClearToolResults, Edit, Part};
use crate::{
    conversation::{Role, UnitIndex},
    dialect::media::{self, MediaPart},
    draft::{Draft, ReplaceOptions, TextCut},
    plan::Action,
    tokens::{image::Dimensions, models::MediaLimits},
};

/// What is left of the images where there were too many.
const LEFT_IMAGES: Part = Part(1, 2);

/// What is left of the bytes where there were too many.
const LEFT_BYTES: Part = Part(3, 4);

/// The images of a message.
#[derive(Debug)]
struct Images {
    unit: UnitIndex,
    n: usize,
    n_bytes: usize,
    is_large: bool,
    is_result: bool,
    is_cleared: bool,
}

impl ClearToolResults {
    /// Clears the oldest images in results where the upstream would refuse them.
    pub(super) fn fit_media(&self, draft: &mut Draft<'_>) {
        let Some(limits) = self.media_limits.filter(|limits| may_exceed(limits, draft.body())) else { return };
        let mut images = self.images(draft, limits.side);
        let (conversation, n_bytes) = (draft.conversation(), draft.body().len());
        let mut read_until = UnitIndex::default();
        for model_call in conversation.model_calls() {
            let n_came = images.partition_point(|images| images.unit < model_call);
            let n_read = images.partition_point(|images| images.unit < read_until);
            let n_bytes = conversation.unit(model_call).map_or(n_bytes, |unit| unit.span.start);
            if clear_too_many(limits, images.get_mut(..n_came).unwrap_or_default(), n_read, n_bytes) {
                draft.prefix_changes(model_call);
            }
            read_until = model_call;
        }
        for Images { unit, .. } in images.into_iter().filter(|images| images.is_cleared) {
            self.clear_media(draft, unit);
        }
    }

    /// The images of all messages, in their order.
    fn images(&self, draft: &Draft<'_>, side: usize) -> Vec<Images> {
        let (body, conversation) = (draft.body(), draft.conversation());
        let is_large = |part: &MediaPart<'_>| {
            let data = str::from_utf8(part.data.of(body)).ok();
            data.and_then(Dimensions::in_string).is_some_and(|of| of.width.max(of.height) > side)
        };
        let images = |unit, parts: Vec<MediaPart<'_>>, is_result| Images {
            unit,
            n: parts.len(),
            n_bytes: parts.iter().map(|part| part.span.len()).sum(),
            is_large: parts.iter().any(is_large),
            is_result,
            is_cleared: false,
        };
        let of_results =
            conversation.indexed_units().filter(|(_, unit)| unit.role == Role::Tool).map(|(index, unit)| {
                let call = draft.pairing().answered_block(index);
                let is_result = self.clears(call.map_or("", |call| conversation.tool_name(call)));
                let parts = unit.content.map(|content| media::parts(body, content)).unwrap_or_default();
                (unit.span.start, images(index, parts, is_result))
            });
        let of_others = conversation.elements.iter().filter_map(|element| {
            let content = media::content(body, element.span)?;
            Some((content.start, images(element.units.start, media::parts(body, content), false)))
        });
        // A message that is one result is found both ways, and has its images once.
        let found: BTreeMap<_, _> = of_others.chain(of_results).map(|(_, images)| (images.unit, images)).collect();
        found.into_values().filter(|images| images.n > 0).collect()
    }

    /// Clears the images of a result, and no text.
    fn clear_media(&self, draft: &mut Draft<'_>, unit: UnitIndex) {
        let options = ReplaceOptions { stored: self.settings.offload, smaller: false, media: true };
        let call = draft.pairing().answered_block(unit);
        let tool = call.map_or("", |call| draft.conversation().tool_name(call));
        let proposed = draft.propose_result(unit, options, |text| {
            text.media?;
            Some(TextCut { from: 0, to: text.len, words: self.words(text, tool) })
        });
        if let Ok(proposed) = proposed {
            draft.apply(self.label(), Action::Clear { message: unit.get() }, proposed);
        }
    }
}

/// Whether a body may have more than the upstream takes.
fn may_exceed(limits: &MediaLimits, body: &[u8]) -> bool {
    body.len() > limits.body || memmem::find_iter(body, b"\"image").nth(limits.many).is_some()
}

/// Marks those to clear at a model call for which the first `n_read` have been read, and to which `n_bytes` go; whether there
/// were any.
fn clear_too_many(limits: &MediaLimits, images: &mut [Images], n_read: usize, n_bytes: usize) -> bool {
    let sum = |images: &[Images], is_cleared: bool, of: fn(&Images) -> usize| -> usize {
        images.iter().filter(|images| images.is_cleared == is_cleared).map(of).sum()
    };
    let count = |images: &[Images]| sum(images, false, |images| images.n);
    let bytes = |images: &[Images]| n_bytes.saturating_sub(sum(images, true, |images| images.n_bytes));
    let n_before = sum(images, true, |_| 1);
    let too_many = [count(images) > limits.many, count(images) > limits.images, bytes(images) > limits.body];
    let [too_many_at_once, too_many_images, too_many_bytes] = too_many;
    for n in 0..n_read {
        let has_too_many = (too_many_images && count(images) > LEFT_IMAGES.of(limits.images))
            || (too_many_bytes && bytes(images) > LEFT_BYTES.of(limits.body));
        let Some(oldest) = images.get_mut(n) else { break };
        oldest.is_cleared |= oldest.is_result && (has_too_many || (too_many_at_once && oldest.is_large));
    }
    sum(images, true, |_| 1) > n_before
}
