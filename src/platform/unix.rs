//! Linux, macOS and other systems of the Unix family.

pub mod files;
pub mod process;
pub mod sockets;
#[cfg(test)]
pub(crate) mod testing;
