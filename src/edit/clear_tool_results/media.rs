//! Keeps a request within the images and bytes that its host accepts, whether the trigger holds or not.
//!
//! Hosts refuse a request with too many images or bytes, whatever its tokens. The oldest images in results are cleared: at
//! each model call at which there are too many, down to a part of the limit, so that the next images change nothing. That is
//! decided by replay of the messages alone. Images of the user count and stay, and so do images that the model has not read.

use memchr::memmem;

use super::{ClearToolResults, LABEL, Part};
use crate::conversation::UnitIndex;
use crate::dialect::Form;
use crate::dialect::media::{self, MediaPart};
use crate::draft::{Draft, ReplaceOptions, TextCut};
use crate::plan::Action;
use crate::span::Span;
use crate::tokens::{image::Dimensions, models::MediaLimits};

/// The host whose limits others have that ask for few images.
const ANTHROPIC: &str = "api.anthropic.com";

/// The part of the limit that is left of too many images.
const LEFT_IMAGES: Part = Part(1, 2);

/// The part of the limit that is left of too many bytes.
const LEFT_BYTES: Part = Part(3, 4);

/// The images of a message.
struct Images {
    unit: UnitIndex,
    n: usize,
    n_bytes: usize,
    /// Whether one of them is too large to be one of many.
    is_large: bool,
    /// Whether they are in a result that may be cleared.
    may_clear: bool,
    is_cleared: bool,
}

/// The images of a conversation as it grows. Each is looked at a few times, however many model calls there are.
#[derive(Default)]
struct Walk {
    images: Vec<Images>,
    /// How many have come.
    n_came: usize,
    /// The images that have come and are not cleared.
    n_images: usize,
    n_bytes_cleared: usize,
    /// The first that has not been considered: of all, and of the large ones.
    oldest: usize,
    oldest_large: usize,
}

impl ClearToolResults {
    /// Clears the oldest images in results where the upstream would refuse them.
    pub(super) fn fit_media(&self, draft: &mut Draft<'_>) {
        let body = draft.body;
        let may_exceed = |limits: &&MediaLimits| {
            body.len() > limits.body || memmem::find_iter(body, b"\"image").nth(limits.many).is_some()
        };
        let is_asked = draft.forms.contains(&Form::FewImages) && self.settings.clear_media;
        let learnt = || if is_asked { MediaLimits::of_host(ANTHROPIC) } else { None };
        let Some(limits) = self.media_limits.or_else(learnt).filter(may_exceed) else { return };
        let conversation = draft.conversation;
        let start = conversation.elements.first().map_or(0, |element| element.span.start);
        let end = conversation.elements.last().map_or(0, |element| element.span.end);
        let images = self.images(draft, limits.side);
        let mut walk = Walk { images, ..Walk::default() };
        for model_call in conversation.model_calls() {
            let n_bytes = conversation.unit(model_call).map_or(end, |unit| unit.span.start).saturating_sub(start);
            if walk.model_call(limits, model_call, n_bytes) {
                draft.prefix_changes(model_call);
            }
        }
        for Images { unit, .. } in walk.images.into_iter().filter(|images| images.is_cleared) {
            self.clear_media(draft, unit);
        }
    }

    /// The images of all messages, in their order.
    fn images(&self, draft: &Draft<'_>, side: usize) -> Vec<Images> {
        let body = draft.body;
        let is_large = |part: &MediaPart<'_>| {
            let data = str::from_utf8(part.data.of(body)).ok();
            data.and_then(Dimensions::in_string).is_some_and(|of| of.width.max(of.height) > side)
        };
        let images = |(content, (unit, is_result)): (Span, (UnitIndex, bool))| {
            let parts = media::parts(body, content);
            let n_bytes = parts.iter().map(|part| part.span.len()).sum();
            let is_large = parts.iter().any(is_large);
            let may_clear = is_result && self.clears(draft.tool_of(draft.pairing().answered_block(unit)));
            Images { unit, n: parts.len(), n_bytes, is_large, may_clear, is_cleared: false }
        };
        draft.contents().into_iter().map(images).filter(|images| images.n > 0).collect()
    }

    /// Clears the images of a result, and no text.
    fn clear_media(&self, draft: &mut Draft<'_>, unit: UnitIndex) {
        let options = ReplaceOptions { stored: self.settings.offload, smaller: false, media: true };
        let tool = draft.tool_of(draft.pairing().answered_block(unit));
        let proposed = draft.propose_result(unit, options, |text| {
            text.media?;
            Some(TextCut { from: 0, to: text.len, words: self.words(text, tool) })
        });
        if let Ok(proposed) = proposed {
            draft.apply(LABEL, Action::Clear { message: unit.get() }, proposed);
        }
    }
}

impl Walk {
    /// The model is called with the messages before a place, which have `n_bytes`. Returns whether some are cleared for that.
    fn model_call(&mut self, limits: &MediaLimits, place: UnitIndex, n_bytes: usize) -> bool {
        let n_read = self.n_came;
        while let Some(images) = self.images.get(self.n_came).filter(|images| images.unit < place) {
            self.n_images += images.n;
            self.n_came += 1;
        }
        let &MediaLimits { images: most, many, body, .. } = limits;
        let n_bytes_cleared = self.n_bytes_cleared;
        if self.n_images > many {
            while self.oldest_large < n_read {
                self.clear(self.oldest_large, |images| images.is_large);
                self.oldest_large += 1;
            }
        }
        let too_many = self.n_images > most;
        let too_long = n_bytes - self.n_bytes_cleared > body;
        while self.oldest < n_read
            && ((too_many && self.n_images > LEFT_IMAGES.of(most))
                || (too_long && n_bytes - self.n_bytes_cleared > LEFT_BYTES.of(body)))
        {
            self.clear(self.oldest, |_| true);
            self.oldest += 1;
        }
        self.n_bytes_cleared > n_bytes_cleared
    }

    fn clear(&mut self, n: usize, which: impl Fn(&Images) -> bool) {
        let may_clear = |images: &&mut Images| images.may_clear && !images.is_cleared && which(images);
        if let Some(images) = self.images.get_mut(n).filter(may_clear) {
            images.is_cleared = true;
            self.n_images -= images.n;
            self.n_bytes_cleared += images.n_bytes;
        }
    }
}
