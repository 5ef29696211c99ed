//! One line for each mistake.
