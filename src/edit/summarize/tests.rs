//! What is summarised, when, and what stands for it.
