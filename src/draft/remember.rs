//! Offers that are remembered: a long result that comes again is neither unescaped nor cut again.
//!
//! What an offer says follows from the content as it is written, from who sent it, from the tool, the model that counts and
//! the way back. All of these are the key; what else it follows from are settings, which last as long as the memory does.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};

use super::{
    Draft,
    replace::{Offer, Refused, Slot},
};
use crate::{
    payload::{Caller, Fingerprint, Name},
    plan::Sizes,
    span::Span,
};

/// How many bytes the texts that are remembered may have: those of a request of 8 MiB with nothing but long results, and
/// some more, as the shares of the memory do not fill alike.
const MOST_BYTES: u64 = 12 << 20;

/// About so many there are then; it decides in how many parts the memory is locked.
const SOME: usize = 1024;

/// What an offer takes beside its texts.
const PLACE: u64 = 256;

/// The offers of one edit. It takes memory as it fills, and the least used leave first.
pub struct Offers {
    known: Cache<Key, Result<Arc<Known>, Refused>, Weight>,
    hasher: RandomState,
}

/// Who sent it, what was sent, and what else it follows from. Whatever hashes do, no caller is ever given what came of a
/// text of another one.
type Key = (Caller, Fingerprint, u64);

/// An offer, wherever its content stands.
#[derive(Debug)]
struct Known {
    slots: Vec<KnownSlot>,
    bytes: Sizes,
}

#[derive(Debug)]
struct KnownSlot {
    /// Counted from the beginning of the content.
    span: Span,
    with: Bytes,
    print: Fingerprint,
    stored: Option<Name>,
}

#[derive(Clone, Debug)]
struct Weight;

impl Default for Offers {
    fn default() -> Self {
        Self { known: Cache::with_weighter(SOME, MOST_BYTES, Weight), hasher: RandomState::new() }
    }
}

impl fmt::Debug for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offers").field("n", &self.known.len()).finish_non_exhaustive()
    }
}

impl Weighter<Key, Result<Arc<Known>, Refused>> for Weight {
    fn weight(&self, _: &Key, offer: &Result<Arc<Known>, Refused>) -> u64 {
        let slots = offer.as_ref().map_or(&[][..], |known| &known.slots);
        PLACE + slots.iter().map(|slot| slot.with.len() as u64).sum::<u64>()
    }
}

impl Draft<'_> {
    /// What `offer` says about a result of `tool`: out of memory, or else asked now.
    pub fn remembered(
        &self,
        offers: &Offers,
        unit: usize,
        tool: &str,
        offer: impl FnOnce() -> Result<Offer, Refused>,
    ) -> Result<Offer, Refused> {
        let content = self.source.conversation.units.get(unit).and_then(|unit| unit.content);
        // Where an earlier edit has written, it is not the content alone that decides.
        let Some(content) = content.filter(|_| !self.is_written_on(unit)) else { return offer() };
        let rest = offers.hasher.hash_one((tool, self.source.conversation.model.as_deref(), self.way()));
        let key = (self.situation.caller, self.prints(unit).content, rest);
        if let Some(known) = offers.known.get(&key) {
            return known.map(|known| self.placed(&known, unit, content));
        }
        let offer = offer();
        offers.known.insert(key, offer.as_ref().map(|offer| Arc::new(Known::of(offer, content))).map_err(|why| *why));
        offer
    }

    fn placed(&self, known: &Known, unit: usize, content: Span) -> Offer {
        let slots = known.slots.iter().map(|slot| {
            let span = Span { start: content.start + slot.span.start, end: content.start + slot.span.end };
            Slot { span, with: slot.with.clone(), print: slot.print, stored: slot.stored, change: 0 }
        });
        let call = self.pairing().answered_block(unit);
        Offer { unit, call, slots: slots.collect(), bytes: known.bytes, why: None }
    }
}

impl Known {
    fn of(offer: &Offer, content: Span) -> Self {
        let slots = offer.slots.iter().map(|slot| KnownSlot {
            span: Span { start: slot.span.start - content.start, end: slot.span.end - content.start },
            with: slot.with.clone(),
            print: slot.print,
            stored: slot.stored,
        });
        Self { slots: slots.collect(), bytes: offer.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Keys;

    #[test]
    fn an_offer_weighs_what_its_texts_take() {
        let slot = |n: usize| KnownSlot {
            span: Span::default(),
            with: Bytes::from(vec![b'x'; n]),
            print: Fingerprint::default(),
            stored: None,
        };
        let weight = |slots: Vec<KnownSlot>| {
            let key = (Keys::new([0; 32]).caller(&[]), Fingerprint::default(), 0);
            Weight.weight(&key, &Ok(Arc::new(Known { slots, bytes: Sizes::default() })))
        };
        assert_eq!(weight(vec![]), PLACE);
        assert_eq!(weight(vec![slot(1000), slot(500)]), PLACE + 1500);
    }
}
