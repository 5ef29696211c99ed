//! What takes the place of a JSON value.

use std::borrow::Cow;

use bytes::Bytes;

use super::ChangeId;
use crate::{
    dialect::strings,
    payload::{Fingerprint, PayloadName},
    span::{Span, Splice},
};

/// A JSON value of the body that is replaced by another one.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) span: Span,
    /// The JSON value that stands there now.
    pub(super) with: Bytes,
    /// The fingerprint of that value.
    pub(super) fingerprint: Fingerprint,
    /// The name of what stood there, if that is stored.
    pub(super) stored: Option<PayloadName>,
    /// What is stored, as it is written: the value that is replaced, or base64 in it.
    pub(super) source: Span,
    /// The change that says so; none for one that is proposed only.
    pub(super) change: Option<ChangeId>,
}

impl Replacement {
    pub(super) fn new(span: Span, with: Bytes, stored: Option<PayloadName>) -> Self {
        Self { span, fingerprint: Fingerprint::of(&with), with, stored, source: span, change: None }
    }

    /// A message that another one stands for.
    pub(super) fn whole(span: Span, with: Bytes, change: ChangeId) -> Self {
        Self { span, fingerprint: Fingerprint::of(&with), with, stored: None, source: span, change: Some(change) }
    }

    pub(super) fn splice(&self) -> Splice {
        Splice { span: self.span, with: self.with.clone() }
    }

    /// What the value says that stands there now, if that is a string.
    pub(super) fn text(&self) -> Cow<'_, str> {
        let whole = Span { start: 0, end: self.with.len() };
        strings::text(&self.with, whole).unwrap_or_default()
    }
}
