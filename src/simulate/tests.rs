//! Small transcripts, with figures worked out by hand.
