//! Hands what libFuzzer makes up to the target of this name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| abridge_fuzz::deduplicate::run(input));
