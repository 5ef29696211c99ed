//! Indices that cannot be mixed: a place in each list has its own type.

/// Declares the type of the places in one list.
macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(usize);

        impl $name {
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
            pub const fn numbers(places: &std::ops::Range<Self>) -> std::ops::Range<usize> {
                places.start.0..places.end.0
            }

            /// Places that stand together, one by one.
            pub fn each(
                places: &std::ops::Range<Self>,
            ) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone + use<> {
                Self::numbers(places).map(Self)
            }
        }
    };
}

pub(crate) use index;

index! {
    /// An element of a [`Conversation`](super::Conversation).
    ElementIndex
}

index! {
    /// A unit of a [`Conversation`](super::Conversation).
    UnitIndex
}

index! {
    /// A block of a [`Conversation`](super::Conversation).
    BlockIndex
}

index! {
    /// A call of a [`Pairing`](super::Pairing).
    CallIndex
}
