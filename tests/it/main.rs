//! The real binary, as its users run it.

mod config; // settings and the commands that need no upstream
