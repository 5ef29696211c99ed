//! The program that is tested: that of this build, or the one that `ABRIDGE_BINARY` names, such as one for another C library.

use std::process::Command;
use std::sync::LazyLock;

pub(crate) fn binary() -> &'static str {
    static BINARY: LazyLock<String> =
        LazyLock::new(|| std::env::var("ABRIDGE_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_abridge").to_owned()));
    &BINARY
}

/// Whether it is a static program, into which no library can be preloaded: what loads a dynamic one complains of a library
/// that is not there.
pub(crate) fn is_static() -> bool {
    let output = Command::new(binary()).arg("--version").env("LD_PRELOAD", "/nowhere.so").output().unwrap();
    output.status.success() && output.stderr.is_empty()
}
