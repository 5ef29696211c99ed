//! Answers, real and not.
