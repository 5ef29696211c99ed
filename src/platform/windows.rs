//! Windows, from version 10 on.

pub mod files;
pub mod process;
pub mod sockets;
#[cfg(test)]
pub(crate) mod testing;
