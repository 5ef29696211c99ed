//! Indices that cannot be mixed: a place in each list has its own type.

use std::ops::Range;

/// A place in one list. Each list has another number; 4 and 5 are those of `draft`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Index<const LIST: u8>(usize);

/// An element of a [`Conversation`](super::Conversation).
pub type ElementIndex = Index<0>;

/// A unit of a [`Conversation`](super::Conversation).
pub type UnitIndex = Index<1>;

/// A block of a [`Conversation`](super::Conversation).
pub type BlockIndex = Index<2>;

/// A call of a [`Pairing`](super::Pairing).
pub type CallIndex = Index<3>;

impl<const LIST: u8> Index<LIST> {
    /// The place with this number, from 0 on.
    pub const fn new(number: usize) -> Self {
        Self(number)
    }

    /// The number of the place, from 0 on.
    pub const fn get(self) -> usize {
        self.0
    }

    /// The place after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The place so many further on.
    #[must_use]
    pub const fn plus(self, n: usize) -> Self {
        Self(self.0 + n)
    }

    /// The numbers of places that stand together.
    pub const fn numbers(places: &Range<Self>) -> Range<usize> {
        places.start.0..places.end.0
    }

    /// Places that stand together, one by one.
    pub fn each(places: &Range<Self>) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone + use<LIST> {
        Self::numbers(places).map(Self)
    }
}
